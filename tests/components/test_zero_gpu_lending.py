"""Lending on ZeroGPU, with a stand-in for its package: nothing is fetched or lent before a refusal, and every refusal is a sentence."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from packaging.requirements import Requirement

from analyzers.checkpoints import Access
from analyzers.core import limits
from analyzers.core.errors import HiddenRepository, LimitExceeded, MantissaError, ModelTooLarge
from analyzers.core.request import Progress, Request
from analyzers.exit_feedback import ExitRequest
from analyzers.gradient_conflict import ConflictRequest
from analyzers.language_models.samples import sample_folder
from analyzers.precision_variants import PrecisionRequest
from components.conflict.form import request
from components.forms.form import smaller
from components.running import zero_gpu
from components.running.page_runs import error_status
from components.running.zero_gpu import GpuRefused
from tests.hub import LocalHub

ROOT = Path(__file__).parents[2]
STAND_IN = ROOT / "tests" / "space"
# In a process of its own, as on a Space: the package must come before torch. For each line of JSON on its input, variables of its
# environment, it asks for a GPU and prints what happens.
PROGRAM = """
import json
import os
import sys
import tempfile
import time
import spaces
from components.running import zero_gpu
from analyzers.core.request import Progress
from analyzers.checkpoints import Access
from analyzers.gradient_conflict import ConflictRequest

def task(request, seconds, access, folder):
    open(os.path.join(folder, "weights"), "w").close()
    yield Progress(done=1, total=2, unit="layers", note=f"{request.device} {access.token}")
    time.sleep(float(os.environ.get("TASK_SECONDS", "0")))
    if "TASK_FAILS" in os.environ:
        raise RuntimeError("of the task")
    yield Progress(done=2, total=2, unit="layers", note="done")

lend = spaces.GPU(duration=lambda request, seconds, *others: seconds)(task)
request = ConflictRequest(model="sample:tiny-bf16", samples=4, max_length=32)
tempfile.tempdir = tempfile.mkdtemp()
for line in sys.stdin:
    asked = json.loads(line)
    os.environ.update(asked)
    zero_gpu._START_SECONDS = int(os.environ.get("START_SECONDS", "15"))
    try:
        for item in zero_gpu._with_gpu(request, Access(token="hf_visitor"), lend):
            print(item.unit, item.note)
    except zero_gpu.GpuRefused as error:
        print("refused:", error)
    assert not any(files for _, _, files in os.walk(tempfile.tempdir))  # torch may make a folder of its own
    print("over", flush=True)
    for name in asked:
        del os.environ[name]
"""


@pytest.fixture(scope="module")
def space() -> Iterator["subprocess.Popen[str]"]:
    """The program, running."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPACES")}
    variables = {"PYTHONPATH": f"{STAND_IN}{os.pathsep}{ROOT}", "SPACES_ZERO_GPU": "true"}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=ROOT, env=kept | variables, stdin=pipe, stdout=pipe, text=True) as program:
        yield program
        assert program.stdin
        program.stdin.close()


def _lent(space: "subprocess.Popen[str]", folder: Path, **scheduler: str) -> tuple[list[str], list[int]]:
    """The lines that the program prints, and the seconds of each GPU that was lent."""
    log = folder / "lent"
    assert space.stdin
    space.stdin.write(json.dumps({"SPACES_LOG": str(log), **scheduler}) + "\n")
    space.stdin.flush()
    lines = list(iter(lambda: _line(space), "over"))
    return lines, [int(line) for line in log.read_text().splitlines()] if log.exists() else []


def _line(space: "subprocess.Popen[str]") -> str:
    assert space.stdout
    line = space.stdout.readline()
    assert line, "the program ended"
    return line.rstrip("\n")


def test_the_estimate_is_shown_and_then_a_gpu_is_lent(space: "subprocess.Popen[str]", tmp_path: Path) -> None:
    lines, lent = _lent(space, tmp_path)
    *_, estimate, first, second = lines
    assert re.fullmatch(r"turns asking for a GPU for about 16 s, 8% of the quota that a free account has for a day", estimate)
    assert (first, second) == ("layers cuda hf_visitor", "layers done")
    assert lent == [24]


@pytest.mark.parametrize(
    ("scheduler", "said", "lendings"),
    [
        ({"SPACES_QUOTA_LEFT": "5"}, "You have not enough GPU time left", 0),
        ({"SPACES_PREEMPT": "1"}, "The GPU was taken back", 1),
        ({"START_SECONDS": "0", "TASK_SECONDS": "60"}, "The run needs more GPU time", 1),
        ({"TASK_FAILS": "1"}, "The run failed on the GPU", 1),
    ],
    ids=["quota", "preempted", "expired", "failed"],
)
def test_what_zero_gpu_refuses_is_a_sentence(
    space: "subprocess.Popen[str]", tmp_path: Path, scheduler: dict[str, str], said: str, lendings: int
) -> None:
    lines, lent = _lent(space, tmp_path, **scheduler)
    assert lines[-1].startswith(f"refused: {said}")
    assert len(lent) == lendings


def _never(request: Any, seconds: int, access: Access, folder: str) -> Iterator[Any]:
    raise AssertionError("a GPU was asked for")
    yield


REFUSED: dict[str, tuple[Request, type[MantissaError], str]] = {
    "work": (ConflictRequest(model="org/name", samples=4), LimitExceeded, "MANTISSA_WEB_MODEL_WORK"),
    "seconds": (ConflictRequest(model="org/name", samples=4), GpuRefused, "MANTISSA_GPU_SECONDS"),
    "memory": (PrecisionRequest(model="org/name", variants=("bf16",), sequences=1, sequence_length=16), ModelTooLarge, "memory"),
    "missing": (ExitRequest(model="org/none"), HiddenRepository, "not found"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_be_refused_is_refused_before_files_and_gpu(hub: LocalHub, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    hub.add("org/name", {path.name: path for path in sample_folder("tiny-bf16").iterdir()})
    request, error, said = REFUSED[name]
    monkeypatch.setattr(limits, "WEB_MODEL_WORK", 1_000 if name == "work" else limits.WEB_MODEL_WORK)
    monkeypatch.setattr(limits, "GPU_SECONDS", 5 if name == "seconds" else limits.GPU_SECONDS)
    monkeypatch.setattr(zero_gpu, "_GPU_BYTES", 1_000_000 if name == "memory" else 45_000_000_000)
    with pytest.raises(error, match=said):
        list(zero_gpu._with_gpu(request, Access(), _never))
    whole = sum(path.stat().st_size for path in sample_folder("tiny-bf16").glob("*.safetensors"))
    assert not any(each.path.endswith(".safetensors") and each.sent >= whole for each in hub.requests)


def test_weights_are_on_disk_before_a_gpu_is_lent_and_gated_ones_are_not_left_there(hub: LocalHub, tmp_path: Path) -> None:
    files: Any = {path.name: path for path in sample_folder("tiny-bf16").iterdir()}
    hub.add("org/name", files)
    hub.add("org/gated", files, gated="auto")
    hub.user("hf_ann", "ann", ["org/gated"])
    kept: list[list[Path]] = []

    def lend(request: Any, seconds: int, access: Access, folder: str) -> Iterator[Any]:
        kept.append([path for path in tmp_path.rglob("model.safetensors") if "models--org" in str(path)])
        yield Progress(done=1, total=1, unit="layers")

    for model, access in (("org/name", Access()), ("org/gated", Access(token="hf_ann"))):
        list(zero_gpu._with_gpu(ConflictRequest(model=model, samples=2, max_length=16), access, lend))
    assert kept[0] and kept[0] == kept[1]


def test_a_smaller_run_is_one_click_away() -> None:
    shown = error_status(GpuRefused("You have not enough GPU time left."), partial(request, {"model": "org/name", "samples": "50"}))
    assert 'href="conflict?model=org%2Fname&amp;samples=25&amp;max_length=256' in shown and "Try a smaller run</a>" in shown
    least = smaller(ConflictRequest(model="org/name", samples=4, max_length=64))
    assert least is None
    shown = error_status(GpuRefused("Refused."), partial(request, {"model": "org/name", "samples": "4", "max_length": "64"}))
    assert "Try a smaller run" not in shown
    assert "Refused. The command: mantissa conflict org/name --samples=4 --max-length=64</div>" in shown
    assert "Try a smaller run" not in error_status(LimitExceeded("The app is restarting."), partial(request, {"model": "org/name"}))


def test_requirements_resolve_to_what_zero_gpu_serves() -> None:
    """Served, by its documentation: Python 3.12 (and 3.10), torch 2.8 to 2.11."""
    served = ("2.8.0", "2.9.1", "2.10.0", "2.11.0")
    listed = {each.name: each.specifier for each in map(Requirement, _lines("requirements.txt"))}
    first = {each.name: each.specifier for each in map(Requirement, _lines("pre-requirements.txt"))}
    assert [version for version in served if version in first["torch"]] == [served[-1]]
    assert served[-1] in listed["torch"]  # it is installed already, and stays
    assert "spaces" not in listed  # a Space brings its own
    front = (ROOT / "README.md").read_text().split("---")[1]
    assert 'python_version: "3.12"' in front and f"gradio[mcp,oauth]=={gr.__version__}" in _lines("requirements.txt")
    assert f"sdk_version: {gr.__version__}" in front


def _lines(name: str) -> list[str]:
    return [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]
