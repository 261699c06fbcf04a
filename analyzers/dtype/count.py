"""Counts each span of a tensor: its bit histogram, and its rows and grids, which depend on position."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import Chunk, Span, Tensor, row_length, whole_rows
from analyzers.grids import Grids, GridSearch, together
from analyzers.numerics import Accumulator, BitHistogram
from analyzers.numerics.row_kernels import exact_rows16, exact_rows32

# Elements on a device that are read to see whether they may be on a grid
LOOKED_AT = 1 << 20

_FEW = 1 << 16  # values of a span that are counted here before a GPU has begun

# Shortest row that is examined alone: it must be able to hold enough different values.
SHORTEST_ROW = 32

# Different informative values that prove a row exact in a narrower format: chance^n below 1e-9, and at least 8
ROW_EVIDENCE = {"F32": 8, "F16": 10}


class ExactRows(NamedTuple):
    """Numbers of rows: those examined, and of them those spread like a float's values that are exact in bf16, or else in fp16."""

    examined: int = 0
    bf16: int = 0
    fp16: int = 0

    def plus(self, *more: int) -> "ExactRows":
        """Add the numbers of other rows."""
        return ExactRows(*map(sum, zip(self, more, strict=True)))


@dataclass(slots=True)
class Counted:
    """Counts of some elements of one tensor, or of several tensors; `together` merges them (associative, commutative).

    grids: meaningful for one tensor only.
    """

    histogram: BitHistogram
    values: int = 0
    exact_rows: ExactRows = ExactRows()  # noqa: RUF009 - immutable
    grids: Grids = field(default_factory=dict)

    @classmethod
    def together(cls, parts: Sequence["Counted"]) -> "Counted":
        """Merge one or more counts."""
        if len(parts) == 1:
            return parts[0]
        whole = cls(BitHistogram.together([each.histogram for each in parts]))
        whole.grids = together([each.grids for each in parts])
        for each in parts:
            whole.values += each.values
            whole.exact_rows = whole.exact_rows.plus(*each.exact_rows)
        return whole


class SpanCounter:
    """The work of a stream: counts a span chunk by chunk. Several threads may call it; each has its own tables.

    grids: whether spans are searched for grids.
    """

    def __init__(self, device: str, grids: bool = True) -> None:
        self._device = device
        self._grids = grids
        self._mine = threading.local()

    def __call__(self, span: Span, chunks: Iterator[Chunk]) -> Counted:
        """Count all of ``span``."""
        counted = Counted(BitHistogram(span.tensor.counted_as), span.count)
        accumulator = None
        grids = GridSearch(span.tensor) if self._grids else None
        for chunk in chunks:
            accumulator = accumulator or self._accumulator(span.tensor.counted_as, self._device if span.count >= _FEW else "cpu")
            accumulator.update(chunk.codes)
            if _has_rows(span.tensor):
                _count_rows(span.tensor, _read(chunk.codes), chunk.start, counted)
            if grids is not None and not grids.done:
                _search(grids, span.tensor, chunk)
                counted.grids = grids.found
        if accumulator:
            counted.histogram = accumulator.take()
        return counted

    def _accumulator(self, *kind: str) -> Accumulator:
        """Return this thread's accumulator of a dtype on a device."""
        accumulators: dict[tuple[str, ...], Accumulator] = self._mine.__dict__.setdefault("accumulators", {})
        if kind not in accumulators:
            accumulators[kind] = Accumulator(*kind)
        return accumulators[kind]


def _has_rows(tensor: Tensor) -> bool:
    """Return whether rows of a tensor are counted that are exact in a narrower format."""
    return tensor.read_as in ROW_EVIDENCE and len(tensor.shape) > 1 and row_length(tensor) >= SHORTEST_ROW


def _count_rows(tensor: Tensor, codes: NDArray[Any], start: int, counted: Counted) -> None:
    """Count the exact rows of a chunk of whole rows."""
    row, need = row_length(tensor), ROW_EVIDENCE[tensor.read_as]
    if start % row or len(codes) % row:
        return
    rows = exact_rows32(codes, row, need) if tensor.read_as == "F32" else (exact_rows16(codes, row, need), 0)
    counted.exact_rows = counted.exact_rows.plus(len(codes) // row, *rows)


def _search(grids: GridSearch, tensor: Tensor, chunk: Chunk) -> None:
    """Search a chunk for grids. Of one on a device only a part is read, unless that part is on a grid."""
    part = chunk.codes if isinstance(chunk.codes, np.ndarray) else chunk.codes[: whole_rows(LOOKED_AT, row_length(tensor))]
    grids.add(part if part is chunk.codes else _read(part), chunk.start)
    if len(part) < len(chunk.codes) and not grids.done:
        grids.add(_read(chunk.codes[len(part) :]), chunk.start + len(part))


def _read(patterns: Any) -> NDArray[Any]:
    """Return patterns as unsigned integers, copied from their device."""
    return patterns if isinstance(patterns, np.ndarray) else patterns.cpu().numpy().view(f"u{patterns.element_size()}")
