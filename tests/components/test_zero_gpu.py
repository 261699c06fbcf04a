"""Analyses that run a model on behalf of a visitor: their limits, their lane, and what crosses from the process that has the GPU."""

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from analyzers.checkpoints import Access
from analyzers.core import limits
from analyzers.core.errors import InvalidReference, LimitExceeded, MantissaError, ModelTooLarge
from analyzers.core.request import Progress, Request
from analyzers.exit_feedback import ExitRequest
from analyzers.gradient_conflict import ConflictReport, ConflictRequest
from analyzers.precision_variants import PrecisionRequest
from components.running import jobs, zero_gpu
from tests.components.conflict_reports import PAIRS

ROOT = Path(__file__).parents[2]
REQUEST = ConflictRequest(model="sample:tiny-bf16", pairs=PAIRS[:4], weights=False)


def test_a_job_ends_at_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JOB_SECONDS", 0)
    with pytest.raises(LimitExceeded, match="fewer or shorter samples, a smaller model or the command line"):
        list(jobs.job(REQUEST))


@pytest.mark.parametrize("request_", [REQUEST, PrecisionRequest(model=REQUEST.model), ExitRequest(model=REQUEST.model)])
def test_more_than_the_page_runs_is_refused_before_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch, request_: Request) -> None:
    monkeypatch.setattr(limits, "WEB_MODEL_WORK", 1_000_000)
    with pytest.raises(LimitExceeded, match="MANTISSA_WEB_MODEL_WORK"):
        list(jobs.job(request_))


def test_local_paths_cannot_be_reached() -> None:
    with pytest.raises(InvalidReference, match="command line"):
        list(jobs.job(REQUEST.model_copy(update={"model": "/etc/passwd"})))


def test_a_gpu_is_asked_for_by_the_size_of_the_work() -> None:
    small = zero_gpu.gpu_seconds(135_000_000, 270_000_000, 16 * 128)
    large = zero_gpu.gpu_seconds(6_738_415_616, 13_476_831_232, 2 * 50 * 200)
    assert 15 < small < large < 60
    assert large < zero_gpu.gpu_seconds(6_738_415_616, 13_476_831_232, 50 * 2_000)


def test_what_comes_from_the_process_with_the_gpu_can_be_sent_and_keeps_its_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)  # and put back
    sent = [pickle.loads(pickle.dumps(item)) for item in zero_gpu.borrowed(REQUEST, 60, Access(), str(tmp_path))]
    assert isinstance(sent[-1], ConflictReport) and all(isinstance(item, Progress) for item in sent[:-1])
    *_, last = zero_gpu.borrowed(REQUEST.model_copy(update={"model": "sample:none"}), 60, Access(), str(tmp_path))
    error = pickle.loads(pickle.dumps(last))
    assert isinstance(error, MantissaError) and "no built-in sample" in str(error)


def test_on_zero_gpu_weights_are_fetched_first_and_errors_are_raised_here() -> None:
    asked: list[Any] = []

    def lend(request: Any, seconds: int, access: Access, folder: str) -> Any:
        asked.append((request.device, seconds))
        yield Progress(done=1, total=2, unit="layers")
        yield ModelTooLarge("Needs more.")

    items = zero_gpu._with_gpu(REQUEST, Access(), lend)
    with pytest.raises(ModelTooLarge, match="Needs more"):
        list(items)
    facts = 205_376
    assert asked == [("cuda", zero_gpu.gpu_seconds(facts, 2 * facts, 50 * 512))]


@pytest.mark.exhaustive
@pytest.mark.parametrize("zero", [False, True])
def test_a_gpu_is_lent_on_zero_gpu_only(tmp_path: Path, zero: bool) -> None:
    # ZeroGPU's own package runs beside a CUDA torch only: this one has its decorator's signature
    package = tmp_path / "spaces"
    package.mkdir()
    decorator = "def GPU(*, duration):\n    return lambda task: lambda *given: [task.__name__, duration(*given)]\n"
    (package / "__init__.py").write_text(decorator)
    (package / "zero.py").write_text("def startup():\n    print('announced')\n")
    lent = "zero_gpu._lend and zero_gpu._lend('request', 42, None, '')"
    program = f"from components.running import zero_gpu; zero_gpu.announce(); print({lent})"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPACES")}
    variables = kept | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"} | ({"SPACES_ZERO_GPU": "true"} if zero else {})
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=110)
    assert run.stdout.strip() == ("announced\n['borrowed', 42]" if zero else "None"), run.stderr[-500:]


@pytest.mark.exhaustive
def test_pages_are_there_before_torch_is() -> None:
    """Whoever starts the app need not wait for the libraries that run models: those are loaded while the first page is looked at."""
    heavy = "{'torch', 'transformers', 'accelerate', 'sklearn'}"
    program = f"import sys; from components.server.launch import build; build(); print(sorted({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert run.stdout.strip() == "[]", run.stderr[-500:]
