"""Seconds requested from ZeroGPU follow those that runs took."""

import math
from typing import Any

import pytest

from analyzers.checkpoints import Access
from analyzers.core import limits
from analyzers.core.request import Progress
from analyzers.gradient_conflict import ConflictRequest
from components.running import zero_gpu
from components.running.gpu_rates import GpuRates
from tests.components.conflict_reports import PAIRS

REQUEST = ConflictRequest(model="sample:tiny-bf16", pairs=PAIRS[:4], weights=False)


def test_the_longest_of_the_newest_runs_decides() -> None:
    rates = GpuRates()
    for seconds in (30.0, 3.0):
        rates.record("conflict", seconds, 20)
    assert rates.factor("conflict") == 1  # too few
    rates.record("conflict", 4.0, 20)
    assert rates.factor("conflict") == 1.5 * 1.5 and rates.factor("exit") == 1
    for _ in range(8):
        rates.record("conflict", 8.0, 20)
    assert math.isclose(rates.factor("conflict"), 1.5 * 0.4)  # the 30 s are forgotten
    for seconds, bound in ((1e6, 4.0), (1e-6, 0.25)):
        for _ in range(8):
            rates.record("conflict", seconds, 20)
        assert rates.factor("conflict") == bound


def test_the_next_run_requests_what_the_last_ones_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zero_gpu, "rates", GpuRates())
    monkeypatch.setattr(limits, "GPU_SECONDS", 1e6)
    clock = [0.0]
    monkeypatch.setattr("components.running.zero_gpu.time.monotonic", lambda: clock[0])
    requested: list[int] = []

    def lend(request: Any, seconds: int, access: Access, folder: str) -> Any:
        requested.append(seconds)
        yield Progress(done=0, total=0, unit="")
        clock[0] += 32.0

    for _ in range(4):
        list(zero_gpu._with_gpu(REQUEST, Access(), lend))
    assert requested == [requested[0]] * 3 + [48]
