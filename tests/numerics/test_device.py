"""Where to count is decided without importing torch unless somebody asked for CUDA."""

from types import SimpleNamespace

import accelerate
import pytest
import torch

from analyzers.core.errors import InvalidRequest
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


@pytest.mark.parametrize(("kind", "expected"), [("cuda", "cuda"), ("cpu", "cpu"), ("mps", "cpu")])
def test_a_launched_process_takes_the_device_it_was_given(kind: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(accelerate, "PartialState", lambda: SimpleNamespace(device=SimpleNamespace(type=kind)))
    assert choose_device("auto") == expected
    assert choose_device("cpu") == "cpu"
