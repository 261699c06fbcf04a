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

from tests.browser.conftest import serve

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
SKILL = (ROOT / "SKILL.md").read_text(encoding="utf-8")
NETWORK = "## Over the network"
# Nothing may be asked of a network.
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def run_blocks(given: list[str], folder: Path) -> list[int | None]:
    """Run them in one fresh process, as in a notebook; what each shows."""
    environment = os.environ | OFFLINE | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    program = [sys.executable, str(ROOT / "tests" / "mantissa" / "cells.py")]
    run = subprocess.run(program, input=json.dumps(given), cwd=folder, env=environment, capture_output=True, text=True, timeout=290)
    assert run.returncode == 0, run.stderr[-3000:]
    shown: list[int | None] = json.loads(run.stdout.splitlines()[-1])
    return shown


def test_the_blocks_of_the_page_run(tmp_path: Path) -> None:
    run_blocks(blocks(PAGE.split(NETWORK)[0], "python"), tmp_path)
    assert len((tmp_path / "updates.jsonl").read_text().splitlines()) == 2


def test_the_notebook_runs_offline(tmp_path: Path) -> None:
    notebook = json.loads((ROOT / "docs" / "samples.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells)
    shown = run_blocks(["".join(cell["source"]) for cell in cells], tmp_path)
    assert shown[0] is not None and shown[0] > 1_000_000  # the whole result, with Plotly's script
    assert [each is not None for each in shown] == [True, True, True, True, False, True]


def test_the_app_of_the_command_answers_the_network_block(tmp_path: Path) -> None:
    (block,) = blocks(PAGE.split(NETWORK)[1], "python")
    with serve(tmp_path / "app", OFFLINE["HF_ENDPOINT"], ("-m", "mantissa", "app")) as url:
        assert "http://127.0.0.1:7860" in block
        run_blocks([block.replace("http://127.0.0.1:7860", url)], tmp_path)


@pytest.mark.parametrize("line", "".join(blocks(SKILL, "sh")).splitlines())
def test_the_commands_of_the_skill_run(line: str, tmp_path: Path) -> None:
    program, *words = shlex.split(line)
    assert program == "mantissa" and words[-1] == "--json"
    environment = os.environ | OFFLINE | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-m", "mantissa", *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=290
    )
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    fields = re.findall(r"^\|.*\| (.+?) \|$", SKILL.split("| --- | --- |")[1], re.MULTILINE)
    named = [path for field in fields for path in re.findall(r"`([\w.\[\]]+)`", field) if field.endswith(f"of `{words[0]}`")]
    named = [path for path in named if path != words[0]]
    named += [path for path in re.findall(r"`((?:lineage|training|fp16_risk)\.\w+)`", SKILL) if words[0] == "dtype"]
    for path in named:
        assert _at(report, path) is not None, path


def test_llms_txt_leads_to_files() -> None:
    links = re.findall(r"\]\((\S+?)\)", (ROOT / "llms.txt").read_text(encoding="utf-8"))
    assert len(links) == 4 and all((ROOT / link).is_file() for link in links)


def _at(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = value[part.removesuffix("[]")]
        if part.endswith("[]"):
            value = value[0]
    return value
