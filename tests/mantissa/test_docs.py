"""What the documentation shows: its blocks and commands, the notebook, and the commands of SKILL.md are run.

A section says which extra it needs, "Needs `mantissa[models]`"; its blocks run in an environment with that and nothing else, those of a
section that says nothing with the base alone. docs/deploy.md has a test of its own.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mantissa.__main__ import main

from .environments import ROOT, linked

SKILL = (ROOT / "SKILL.md").read_text(encoding="utf-8")
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md") if path.name != "deploy.md"))
NOT_HERE = {
    'client = Client("http://127.0.0.1:7860")': "needs a running app: tests/components/test_server.py asks one",
    "cluster = SLURMCluster": "needs a Slurm cluster",
    "uvx --from": "installs from the network",
    "pip install": "installs from the network",
    "mantissa scan LIST --out DIR --dask local": "starts processes for seconds: tests/scan/test_engines.py does",
    "mantissa scan LIST --out DIR --dask tcp": "needs several hosts",
    "dask ": "needs several hosts",
    "accelerate launch": "needs GPUs",
    "hf jobs run": "needs the Hub's machines",
}
"""What blocks and commands that are not run begin with or contain, and why they are not."""
# Nothing may be asked of a network.
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page. extras: what it needs."""

    page: str
    language: str
    text: str
    extras: tuple[str, ...]


@cache
def blocks() -> tuple[Block, ...]:
    """Every block of the pages, in order, but for those that are `NOT_HERE`."""
    return tuple(block for page in PAGES for block in _blocks(page) if not (block.language == "python" and _absent(block.text)))


def _blocks(page: str) -> Iterator[Block]:
    whole = ""
    for number, section in enumerate(re.split(r"^##+ ", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)):
        needs = ",".join(re.findall(r"Needs `mantissa\[([\w,]+)\]`", section))
        whole = needs if number == 0 else whole
        extras = tuple(sorted({*(needs or whole).split(",")} - {""}))
        for language, text in re.findall(r"^```(\w+)\n(.*?)^```", section, re.DOTALL | re.MULTILINE):
            yield Block(page, language, text, extras)


def _absent(text: str) -> bool:
    return any(mark in text for mark in NOT_HERE)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], Path]:
    """By extras, the folder of programs of an environment that has them, the program mantissa among them."""

    @cache
    def made(extras: tuple[str, ...]) -> Path:
        folder = linked(tmp_path_factory.mktemp("environment") / "venv", *extras)
        (folder / "mantissa").write_text(f"#!{folder / 'python'}\nimport sys\nfrom mantissa.__main__ import main\nsys.exit(main())\n")
        (folder / "mantissa").chmod(0o755)
        return folder

    return made


def run(folder: Path, command: list[str], cwd: Path, **options: Any) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HF_", "MANTISSA_", "VIRTUAL_"))}
    environment |= OFFLINE | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=290, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the documents are run: with a list of models, and what `scan` made of it."""
    where = tmp_path_factory.mktemp("docs")
    (where / "LIST").write_text("sample:tiny-bf16\nsample:tiny-overflow\n")
    return where


def cells() -> list[dict[str, Any]]:
    """The code cells of the notebook."""
    notebook = json.loads((ROOT / "docs" / "samples.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4 and "Needs `mantissa[models]`" in "".join(notebook["cells"][0]["source"])
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def show(folder: Path, program: Path, *documents: list[str]) -> list[list[int | None]]:
    """What the blocks of the documents show, run in one fresh process, each document with names of its own."""
    ran = run(
        program, [str(program / "python"), str(ROOT / "tests" / "mantissa" / "document_cells.py")], folder, input=json.dumps(documents)
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    lengths: list[list[int | None]] = json.loads(ran.stdout.splitlines()[-1])
    return lengths


def commands() -> list[tuple[Block, str, str]]:
    """Every command of the pages, with what the page shows of its output."""
    found = []
    for block in blocks():
        if block.language == "sh":
            found += [(block, line, "") for line in block.text.splitlines() if not _absent(block.text)]
        elif block.text.startswith("$ "):
            line, _, output = block.text.removeprefix("$ ").partition("\n")
            found.append((block, line, output))
    return found


def test_every_block_is_run_or_has_a_reason() -> None:
    every = [block for page in PAGES for block in _blocks(page)]
    assert all(any(mark in block.text for block in every) for mark in NOT_HERE)
    assert all(block.language in ("python", "sh", "text", "yaml") for block in every)
    assert {block.page for block in every if block.language == "python"} == {"README.md", "docs/python.md", "docs/scan.md"}
    assert all(line.startswith("mantissa ") for _, line, _ in commands()) and len(commands()) >= 4


@pytest.mark.exhaustive
def test_commands_run_as_shown(programs: Callable[[tuple[str, ...]], Path], folder: Path) -> None:
    """In order: a later one may read what an earlier one wrote. Lines that are shown are among those printed, in their order."""
    for block, line, output in commands():
        program = programs(block.extras)
        ran = run(program, ["bash", "-c", line], folder)
        assert ran.returncode == 0, (line, ran.stderr[-3000:])
        printed = iter(ran.stdout.splitlines())
        for shown in filter(None, map(str.rstrip, output.splitlines())):
            pattern = re.sub(r"\d+\\.\d+\\ s$", r"[\\d.]+ s", re.escape(shown).replace(r"\.\.\.", ".*"))
            assert any(re.fullmatch(pattern, each.rstrip()) for each in printed), (line, shown, ran.stdout)
    assert any(line.startswith("mantissa scan") for _, line, _ in commands()), "the tables below are read from it"


@pytest.mark.parametrize(
    "extras",
    [
        # Those of docs/scan.md read what the commands of the page wrote, which are exhaustive.
        pytest.param(extras, marks=pytest.mark.exhaustive if "scan" in extras else ())
        for extras in sorted({block.extras for block in blocks() if block.language == "python" and "models" not in block.extras})
    ],
)
def test_blocks_run_with_what_their_section_needs(
    extras: tuple[str, ...], programs: Callable[[tuple[str, ...]], Path], folder: Path
) -> None:
    """Those before them on the page that need no more are run first: they share its names."""
    documents = [
        [block.text for block in blocks() if (block.page, block.language) == (page, "python") and {*block.extras} <= {*extras}]
        for page in dict.fromkeys(block.page for block in blocks() if block.extras == extras)
    ]
    show(folder, programs(extras), *documents)


@pytest.fixture(scope="module")
def shown(programs: Callable[[tuple[str, ...]], Path], folder: Path) -> list[list[int | None]]:
    """What docs/python.md and the notebook show with the extra models, and without what serves pages."""
    page = [block.text for block in blocks() if block.page == "docs/python.md" and block.language == "python"]
    return show(folder, programs(("models",)), page, ["".join(cell["source"]) for cell in cells()])


@pytest.mark.exhaustive
def test_the_blocks_of_the_page_run(shown: list[list[int | None]], folder: Path) -> None:
    assert len((folder / "updates.jsonl").read_text().splitlines()) == 2


@pytest.mark.exhaustive
def test_the_notebook_runs_offline(shown: list[list[int | None]]) -> None:
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells())
    _, notebook = shown
    assert notebook[0] is not None and 10_000 < notebook[0] < 300_000  # the result, without figures
    assert [each is not None for each in notebook] == [True, True, True, True, False, True]


@pytest.mark.parametrize("line", "".join(re.findall(r"^```sh\n(.*?)^```", SKILL, re.DOTALL | re.MULTILINE)).splitlines())
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
