"""A checkpoint counted in parts: however it is cut, the report is that of one part."""

import random
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from analyzers.checkpoints import Access, Span, Tensor, whole_spans
from analyzers.core.request import Progress
from analyzers.dtype_detection import DtypeRequest, Inspection, Partial
from tests.dtype_detection.checkpoints import normal, through, write, write_sharded
from tests.dtype_detection.reports import exact, inspect, steady

spans_module = import_module("analyzers.checkpoints.reading.spans")
LOCAL = Access(local=True)
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


def tensors() -> dict[str, torch.Tensor]:
    """All widths, odd shapes, a tensor of many spans, buffers, values that float64 sums round differently in another order."""
    huge = normal(150, 257, seed=7)
    huge[3] *= 1e12
    return {
        "model.embed_tokens.weight": through(normal(200, 96, seed=1), F16, F32),
        "model.layers.0.mlp.up_proj.weight": huge,
        "model.layers.0.mlp.down_proj.weight": normal(16, 3000, seed=2).to(BF16),
        "model.layers.0.self_attn.q_proj.weight": normal(100, 100, seed=3).to(F16),
        "model.layers.0.input_layernorm.weight": 1 + normal(100, seed=4),
        "model.layers.0.wide.weight": normal(40, 50, seed=5).double(),
        "model.layers.0.scalar": torch.tensor(2.5),
        "model.layers.0.empty": torch.zeros(0, 7),
        "lm_head.weight": normal(100, 96, seed=6),
    }


def plain(folder: Path) -> Path:
    """In three files."""
    return write_sharded(folder, tensors(), 3)


def scaled(folder: Path) -> Path:
    """fp8 in blocks of 128 x 128, whose values are made with scales while they are read."""
    codes = normal(520, 384, seed=8, scale=50).to(torch.float8_e4m3fn)
    name = "model.layers.0.mlp.up_proj.weight"
    scales = normal(5, 3, seed=9).abs()
    return write(folder, {name: codes, f"{name}_scale_inv": scales, "model.norm.weight": 1 + normal(384, seed=4).to(BF16)})


def pickled(folder: Path) -> Path:
    """Views that do not lie in their file as they are seen."""
    folder.mkdir(exist_ok=True)
    wide = normal(200, 300, seed=8)
    torch.save({"model.a.weight": wide.t(), "model.b.weight": wide[:, ::2], "model.c.weight": normal(64, 64)}, folder / "pytorch_model.bin")
    return folder


def count(inspection: Inspection, part: int, parts: int) -> Partial:
    *steps, partial = inspection.count(part, parts)
    assert all(isinstance(step, Progress) for step in steps) and isinstance(partial, Partial)
    assert partial.nbytes == max((step.done for step in steps if isinstance(step, Progress)), default=0)
    return partial


def in_parts(folder: Path, parts: Sequence[int], total: int, threads: int | None = None) -> dict[str, Any]:
    """The report from parts counted in the order of ``parts``, by two inspections in turn, of which neither makes the report."""
    request = DtypeRequest(model=str(folder), mode="exact")
    with Inspection(request, LOCAL, threads=threads) as one, Inspection(request, LOCAL, threads=threads) as other:
        found = [count(helper, part, total) for helper, part in zip(cycle((one, other)), parts, strict=False)]
    with Inspection(request, LOCAL) as inspection:
        return steady(inspection.report(found))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans of 20 kB and chunks of 4 kB, so that tensors have many."""
    monkeypatch.setattr(spans_module, "SPAN_BYTES", 20_000)
    monkeypatch.setattr("analyzers.core.limits.CHUNK_BYTES", 4_000)


@pytest.mark.parametrize("total", [2, 3, 40])
@pytest.mark.parametrize("make", [plain, scaled, pickled])
@pytest.mark.usefixtures("small")
def test_any_number_of_parts_in_any_order(make: Callable[[Path], Path], total: int, tmp_path: Path) -> None:
    folder = make(tmp_path)
    order = list(range(total))
    random.Random(total).shuffle(order)
    assert in_parts(folder, order, total, threads=1 + total % 3) == steady(exact(folder))


@pytest.mark.parametrize("make", [plain, scaled])
def test_how_spans_are_cut_changes_nothing(make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make(tmp_path)
    monkeypatch.setattr("analyzers.core.limits.CHUNK_BYTES", 4_000)
    found = []
    for span_bytes, threads in ((4_000, 1), (20_000, 8), (64 << 20, 16)):
        monkeypatch.setattr(spans_module, "SPAN_BYTES", span_bytes)
        monkeypatch.setattr("analyzers.core.limits.cores", lambda threads=threads: threads)
        report = steady(exact(folder))
        found.append({name: value for name, value in report.items() if name not in ("bytes_read", "requests")})  # scales are read by span
    assert all(report == found[0] for report in found)


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=3), st.integers(64, 9000), st.integers(64, 90_000))
def test_chunks_begin_where_they_would_in_one_span(shape: list[int], chunk_bytes: int, span_bytes: int) -> None:
    if torch.Size(shape).numel() > 100_000:
        shape = shape[:1]
    elements = torch.Size(shape).numel()
    tensor = Tensor("t", "F32", tuple(shape), 0, 8, 4 * elements, "other", None, False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans_module, "SPAN_BYTES", span_bytes)
        patch.setattr("analyzers.core.limits.CHUNK_BYTES", chunk_bytes)
        spans = whole_spans([(tensor,)])
    row = shape[-1]
    chunk_bytes = chunk_bytes // 64 * 64
    chunk = chunk_bytes // 4 // row * row if 0 < row <= chunk_bytes // 4 else max(chunk_bytes // 4 // 1024 * 1024, 1)
    assert sum(span.count for span in spans) == elements
    assert all(span.start % chunk == 0 for span in spans)


def test_parts_are_whole_and_even() -> None:
    from analyzers.dtype_detection.collect import part_of

    tensor = Tensor("t", "BF16", (1_000, 100), 0, 8, 200_000, "other", None, False)
    spans = [Span.of(tensor, start, 100) for start in range(0, 100_000, 100)]
    for total in (1, 3, 16, 99):
        parts = [part_of(spans, part, total) for part in range(total)]
        assert [span for part in parts for span in part] == spans
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_parts_that_are_missing_or_there_twice(tmp_path: Path) -> None:
    folder = write(tmp_path, {"a.weight": normal(64, 64)})
    with Inspection(DtypeRequest(model=str(folder), mode="exact"), LOCAL) as inspection:
        first, second, alone = count(inspection, 0, 2), count(inspection, 1, 2), count(inspection, 0, 1)
        for partials in ([], [first], [first, first], [first, second, second], [first, alone], [alone, alone]):
            with pytest.raises(ValueError, match="once each"):
                inspection.report(partials)


def test_quick_mode_has_one_part_and_the_same_report(tmp_path: Path) -> None:
    folder = write(tmp_path, tensors())
    with Inspection(DtypeRequest(model=str(folder), budget=100_000), LOCAL) as inspection:
        assert inspection.parts(1) == 1 and inspection.nbytes <= 100_000
        report = inspection.report([count(inspection, 0, 1)])
    assert steady(report) == steady(inspect(folder, budget=100_000))


def test_number_of_parts(tmp_path: Path) -> None:
    folder = write(tmp_path, tensors())
    with Inspection(DtypeRequest(model=str(folder), mode="exact"), LOCAL) as inspection:
        assert inspection.parts(inspection.nbytes) == 1 and inspection.parts(inspection.nbytes // 2 + 1) == 2
        assert inspection.parts(1) == len([t for t in tensors().values() if t.numel()])
