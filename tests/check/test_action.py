"""The GitHub action: its step runs in a shell as GitHub runs it, with the package that is installed."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml

from analyzers.check import CheckReport
from tests.check.test_check import BF16, CONFIG, HEALTHY, UP, wide, with_value
from tests.dtype.checkpoints import normal, write

ROOT = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
_, CHECK = (step for step in ACTION["runs"]["steps"] if "run" in step)


class Outcome(NamedTuple):
    """What a step left behind."""

    status: int
    lines: list[str]
    summary: str
    report: str


def in_shell(step: dict[str, Any], folder: Path, given: dict[str, str], **more: str) -> "subprocess.CompletedProcess[str]":
    """A step as GitHub runs it: its expressions replaced, its script in bash."""
    inputs = {name: each.get("default", "") for name, each in ACTION["inputs"].items()} | given
    own = {
        name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda match: inputs[match[1]], text) for name, text in step.get("env", {}).items()
    }
    files = {"GITHUB_STEP_SUMMARY": folder / "summary", "GITHUB_OUTPUT": folder / "output", "RUNNER_TEMP": folder}
    environ = {**os.environ, **more, **own, **{name: str(path) for name, path in files.items()}, "GITHUB_ACTION_PATH": str(ROOT)}
    (folder / "script.sh").write_text(step["run"])
    bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(folder / "script.sh")]
    return subprocess.run(bash, cwd=folder, env=environ, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture
def check(tmp_path: Path) -> Any:
    installed = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def run(model: str, **given: str) -> Outcome:
        done = in_shell(CHECK, tmp_path, {"model": model, **{name.replace("_", "-"): text for name, text in given.items()}}, **installed)
        assert done.stderr == ""
        summary = tmp_path / "summary"
        (output,) = (tmp_path / "output").read_text().splitlines()
        return Outcome(done.returncode, done.stdout.splitlines(), summary.read_text() if summary.exists() else "", output)

    return run


@pytest.mark.exhaustive
def test_a_warning_is_annotated_and_fails_only_where_it_is_asked_to(check: Any, tmp_path: Path) -> None:
    write(tmp_path / "model", wide(HEALTHY), {**CONFIG, "dtype": "float32"})
    (tmp_path / "analyzers").mkdir()  # of the workspace, not the one installed
    (tmp_path / "analyzers/__init__.py").write_text("raise SystemExit(7)")
    done = check("./model")
    assert done.status == 0 and "| warning | upcast |" in done.summary
    (line,) = done.lines
    assert line.startswith("::warning title=upcast%3A Stored wider than needed::4 tensors in fp32")
    path = done.report.removeprefix("report=")
    assert CheckReport.model_validate_json(Path(path).read_text()).saving_bytes > 0


def test_an_error_fails_and_nothing_in_a_name_is_a_command(check: Any, tmp_path: Path) -> None:
    name = "x\n::error::owned%0A::warning,y.weight"
    write(tmp_path / "model", {name: with_value(normal(64, 64), torch.nan).to(BF16), UP: HEALTHY[UP]}, CONFIG)
    done = check("./model", fail_on="warning")
    assert done.status == 1 and [line.split(" ")[0] for line in done.lines] == ["::error"]
    assert "%250A" in done.lines[0] and "owned" in done.summary
