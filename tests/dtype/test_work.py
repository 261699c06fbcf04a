"""Work done, as processor time relative to a plain loop over the same tensors in the same process."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from analyzers.checkpoints import Access
from analyzers.dtype import DtypeRequest, analyze
from tests.dtype.checkpoints import write

TENSORS, SHAPE = 1500, (16, 32)
# A tensor costs as much as a few dozen calls of numpy; exact mode once took 140 times as long as the loop, and now takes 30.
MOST = {"exact": 50, "quick": 20}


def _tensors() -> dict[str, torch.Tensor]:
    values = (torch.randn(TENSORS, *SHAPE, generator=torch.Generator().manual_seed(0)) * 0.02).to(torch.bfloat16)
    return {f"model.layers.{i // 100}.mlp.experts.{i % 100}.up_proj.weight": values[i].clone() for i in range(TENSORS)}


def _plain_loop(file: Path) -> None:
    """Read each tensor and compute its extremes and norm, one tensor after the other, in float64."""
    nbytes = 2 * SHAPE[0] * SHAPE[1]
    with file.open("rb") as opened:
        start = 8 + int.from_bytes(opened.read(8), "little")
        for i in range(TENSORS):
            opened.seek(start + i * nbytes)
            codes = np.frombuffer(opened.read(nbytes), np.uint16).astype(np.uint32) << 16
            values = np.abs(codes.view(np.float32).astype(np.float64))
            _ = values.min(), values.max(), np.sqrt(values @ values)


def _seconds(work: Callable[[], object]) -> float:
    """Return the least processor time of three runs."""
    found = []
    for _ in range(3):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


def _inspect(request: DtypeRequest) -> None:
    for _ in analyze(request, Access(local=True)):
        pass


def test_small_tensors_cost_little_each(tmp_path: Path) -> None:
    folder = write(tmp_path, _tensors())
    plain = _seconds(lambda: _plain_loop(folder / "model.safetensors"))
    for mode, most in MOST.items():
        request = DtypeRequest(model=str(folder), mode="exact") if mode == "exact" else DtypeRequest(model=str(folder), budget=500_000)
        ratio = _seconds(partial(_inspect, request)) / plain
        assert ratio < most, (mode, ratio)
