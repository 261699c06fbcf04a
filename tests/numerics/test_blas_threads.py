"""While weights are streamed, numpy's BLAS runs on the thread that calls it."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from threadpoolctl import threadpool_info, threadpool_limits

from analyzers.checkpoints import Access, open_checkpoint, stream, whole_spans
from analyzers.numerics.blas_threads import one_blas_thread


def threads() -> set[int]:
    """Return the number of threads of each BLAS that is loaded."""
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}


def test_a_stream_has_one_and_leaves_as_many_as_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    save_file({f"layers.{i}.weight": np.ones((8, 8), np.float32) for i in range(3)}, tmp_path / "model.safetensors")
    found = []
    with threadpool_limits(2, user_api="blas"):
        with open_checkpoint(str(tmp_path), Access(local=True)) as checkpoint:
            for _ in stream([checkpoint], whole_spans([(each,) for each in checkpoint.tensors]), lambda *_: found.append(threads())):
                pass
        assert threads() == {2}
    assert found == [{1}] * 3


def test_the_last_of_overlapping_streams_restores_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    with threadpool_limits(2, user_api="blas"):
        first, second = one_blas_thread(), one_blas_thread()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert threads() == {1}
        second.__exit__(None, None, None)
        assert threads() == {2}
