"""Where to count is decided without importing torch unless somebody asked for CUDA."""

import subprocess
import sys
from types import SimpleNamespace

import accelerate
import pytest
import torch

from analyzers.core.errors import InvalidRequest
from analyzers.numerics import Accumulator, BitHistogram, device_rates
from analyzers.numerics.device import choose_device


def test_the_cpu_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto") == "cpu"
    assert choose_device("cpu") == "cpu"
    assert choose_device("cuda") == "cuda"
    assert choose_device("auto", ["cuda", "cuda"]) == "cuda"
    assert choose_device("cpu", ["cuda"]) == choose_device("auto", ["cuda", "cpu"]) == "cpu"


def test_no_cuda_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidRequest, match="No CUDA device"):
        choose_device("cuda")


@pytest.mark.parametrize(
    ("kind", "rates", "expected"),
    [("cuda", (2.0, 1.0), "cuda"), ("cuda", (1.0, 2.0), "cpu"), ("cpu", (2.0, 1.0), "cpu"), ("mps", (2.0, 1.0), "cpu")],
)
def test_a_launched_process_takes_the_faster_device(
    kind: str, rates: tuple[float, float], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(accelerate, "PartialState", lambda: SimpleNamespace(device=SimpleNamespace(type=kind)))
    speeds = dict(zip(("cuda", "cpu"), rates, strict=True))
    monkeypatch.setattr(device_rates, "bytes_per_second", lambda device, pairs: speeds[device])
    device_rates.faster_device.cache_clear()
    assert choose_device("auto") == expected
    assert choose_device("cpu") == "cpu"
    device_rates.faster_device.cache_clear()


def test_the_rate_of_a_device_counts_what_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []

    class Counting(Accumulator):
        def take(self) -> BitHistogram:
            counted.append(super().take())
            return counted[-1]

    monkeypatch.setattr(device_rates, "Accumulator", Counting)
    assert device_rates.bytes_per_second("cpu", False, 0.01) > 0
    assert {int(each.counts.sum()) for each in counted} == {4 << 20}
    assert device_rates.bytes_per_second("cpu", True, 0.01) > 0


def test_neither_choice_nor_counting_imports_torch() -> None:
    code = (
        "import sys, numpy; from analyzers.numerics import Accumulator; from analyzers.numerics.device import choose_device\n"
        "a = Accumulator('F32', choose_device('auto')); a.update(numpy.arange(9, dtype=numpy.uint32)); a.take()\n"
        "sys.exit(1 if {'torch', 'accelerate', 'transformers', 'pandas'} & set(sys.modules) else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=110).returncode == 0
