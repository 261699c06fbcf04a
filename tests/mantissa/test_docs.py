"""What the documentation shows: every block of docs/python.md, the notebook, and the commands of SKILL.md are run."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mantissa.__main__ import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
SKILL = (ROOT / "SKILL.md").read_text(encoding="utf-8")
NETWORK = "## Over the network"
# Nothing may be asked of a network.
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the documents are run."""
    return tmp_path_factory.mktemp("docs")


@pytest.fixture(scope="module")
def shown(folder: Path) -> tuple[list[int | None], list[int | None]]:
    """What the blocks of docs/python.md and those of the notebook show, run in one fresh process, each document with names of its own."""
    documents = [blocks(PAGE.split(NETWORK)[0], "python"), ["".join(cell["source"]) for cell in cells()]]
    environment = os.environ | OFFLINE | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    program = [sys.executable, str(ROOT / "tests" / "mantissa" / "cells.py")]
    run = subprocess.run(program, input=json.dumps(documents), cwd=folder, env=environment, capture_output=True, text=True, timeout=290)
    assert run.returncode == 0, run.stderr[-3000:]
    page, notebook = json.loads(run.stdout.splitlines()[-1])
    return page, notebook


def cells() -> list[dict[str, Any]]:
    """The code cells of the notebook."""
    notebook = json.loads((ROOT / "docs" / "samples.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_the_blocks_of_the_page_run(shown: tuple[list[int | None], ...], folder: Path) -> None:
    assert len((folder / "updates.jsonl").read_text().splitlines()) == 2


def test_the_notebook_runs_offline(shown: tuple[list[int | None], list[int | None]]) -> None:
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells())
    _, notebook = shown
    assert notebook[0] is not None and 10_000 < notebook[0] < 300_000  # the result, without figures
    assert [each is not None for each in notebook] == [True, True, True, True, False, True]


@pytest.mark.parametrize("line", "".join(blocks(SKILL, "sh")).splitlines())
def test_the_commands_of_the_skill_run(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    program, *words = shlex.split(line)
    assert program == "mantissa" and words[-1] == "--json"
    monkeypatch.setattr(sys, "argv", [program, *words])
    assert main() == 0
    report = json.loads(capsys.readouterr().out)
    fields = re.findall(r"^\|.*\| (.+?) \|$", SKILL.split("| --- | --- |")[1], re.MULTILINE)
    named = [path for field in fields for path in re.findall(r"`([\w.\[\]]+)`", field) if field.endswith(f"of `{words[0]}`")]
    named = [path for path in named if path != words[0]]
    named += [path for path in re.findall(r"`((?:lineage|training|fp16_risk)\.\w+)`", SKILL) if words[0] == "dtype"]
    for path in named:
        assert _at(report, path) is not None, path


def test_llms_txt_leads_to_files() -> None:
    links = re.findall(r"\]\((\S+?)\)", (ROOT / "llms.txt").read_text(encoding="utf-8"))
    assert len(links) == 5 and all((ROOT / link).is_file() for link in links)


def _at(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = value[part.removesuffix("[]")]
        if part.endswith("[]"):
            value = value[0]
    return value
