"""Counts each span of a tensor: its bit histogram, and its rows and runs, which depend on position."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import Chunk, Span, Tensor, row_length, whole_rows
from analyzers.grids import Grids, GridSearch, together
from analyzers.numerics import Accumulator, BitHistogram
from analyzers.numerics.few_significands import RUN, RUN_COUNTS, runs_of_few_significands
from analyzers.numerics.formats import BF16, FP16, FP32
from analyzers.numerics.row_kernels import exact_rows16, exact_rows32

# The dtypes whose runs of neighbours are examined for a scaled fp8 grid.
_FORMATS = {"F32": FP32, "F16": FP16, "BF16": BF16}

# About this many runs are examined of a whole tensor, or of each block of a sample: a single run that does not fit refutes.
RUNS_EXAMINED = 1024

# Elements on a device that are read to see whether they may be on a grid
LOOKED_AT = 1 << 20

_FEW = 1 << 16  # values of a span that are counted here before a GPU has begun

# Shortest row that is examined alone: it must be able to hold enough different values.
SHORTEST_ROW = 32

# Different informative values that prove a row exact in a narrower format: chance^n below 1e-9, and at least 8
ROW_EVIDENCE = {"F32": 8, "F16": 10}


@dataclass(slots=True)
class Counted:
    """Counts of some elements of one tensor, or of several tensors; `together` merges them (associative, commutative).

    runs: (RUN_COUNTS,) counts of the kinds of runs of 128 neighbours, see `numerics.few_significands`. exact_rows: ancestor format ->
    number of rows exact in it throughout (for fp16: and not exact in bf16). grids: meaningful for one tensor only.
    """

    histogram: BitHistogram
    values: int = 0
    runs: NDArray[np.int64] = field(default_factory=lambda: np.zeros(RUN_COUNTS, dtype=np.int64))
    exact_rows: dict[str, int] = field(default_factory=dict)
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
            whole.runs += each.runs
            for name, rows in each.exact_rows.items():
                whole.exact_rows[name] = whole.exact_rows.get(name, 0) + rows
        return whole


class SpanCounter:
    """The work of a stream: counts a span chunk by chunk. Several threads may call it; each has its own tables.

    grids: whether spans are searched for grids.
    """

    def __init__(self, device: str, every_run: bool, grids: bool = True) -> None:
        self._device = device
        self._every_run = every_run
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
            if span.tensor.read_as in _FORMATS:
                whole = span.tensor.read_as in ROW_EVIDENCE and not isinstance(chunk.codes, np.ndarray)
                here = Chunk(chunk.start, (_read(chunk.codes),)) if whole else chunk
                self._runs(span, here, counted)
                self._rows(span.tensor, here, counted)
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

    def _runs(self, span: Span, chunk: Chunk, counted: Counted) -> None:
        held = _FORMATS[span.tensor.read_as]
        mantissa, exponent = held.mantissa_bits, held.exponent_bits
        row, size = row_length(span.tensor), len(chunk.codes)
        elements = span.count if self._every_run else span.tensor.elements
        stride = max(1, elements // min(row, RUN) // RUNS_EXAMINED)
        while gcd(stride, -(-row // RUN)) > 1:  # with a common factor, each row would be examined at the same columns
            stride += 1
        if not isinstance(chunk.codes, np.ndarray):
            if row % RUN == 0:  # only the runs that are examined are read
                part = chunk.codes.view(-1, RUN)[-(chunk.start // RUN) % stride :: stride].flatten()
                runs_of_few_significands(_read(part), RUN, 0, mantissa, exponent, 1, counted.runs)
                return
            chunk = Chunk(chunk.start, (_read(chunk.codes),))
        if chunk.start % row == 0 and size % row == 0:
            runs_of_few_significands(chunk.codes, row, chunk.start // row, mantissa, exponent, stride, counted.runs)
            return
        at = 0
        while at < size:  # a chunk within a long row, or across the end of one: runs must not straddle rows
            in_row = (chunk.start + at) % row
            end = min(at + row - in_row, size)
            at = min(at + -in_row % RUN, end)
            if at < end:
                part = chunk.codes[at:end]
                runs_of_few_significands(part, part.size, 0, mantissa, exponent, stride, counted.runs)
            at = end

    def _rows(self, tensor: Tensor, chunk: Chunk, counted: Counted) -> None:
        row = row_length(tensor)
        need = ROW_EVIDENCE.get(tensor.read_as)
        if need is None or len(tensor.shape) < 2 or row < SHORTEST_ROW or chunk.start % row or len(chunk.codes) % row:
            return
        rows = exact_rows32(chunk.codes, row, need) if tensor.read_as == "F32" else (exact_rows16(chunk.codes, row, need), 0)
        for name, number in zip(("bf16", "fp16"), rows, strict=True):
            counted.exact_rows[name] = counted.exact_rows.get(name, 0) + number


def _search(grids: GridSearch, tensor: Tensor, chunk: Chunk) -> None:
    """Search a chunk for grids. Of one on a device only a part is read, unless that part is on a grid."""
    part = chunk.codes if isinstance(chunk.codes, np.ndarray) else chunk.codes[: whole_rows(LOOKED_AT, row_length(tensor))]
    grids.add(part if part is chunk.codes else _read(part), chunk.start)
    if len(part) < len(chunk.codes) and not grids.done:
        grids.add(_read(chunk.codes[len(part) :]), chunk.start + len(part))


def _read(patterns: Any) -> NDArray[Any]:
    """Return patterns as unsigned integers, copied from their device."""
    return patterns if isinstance(patterns, np.ndarray) else patterns.cpu().numpy().view(f"u{patterns.element_size()}")
