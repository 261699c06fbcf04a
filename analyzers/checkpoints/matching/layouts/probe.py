"""Reads a few values of many views at the same positions of each, and measures how similar two views are."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.reading.spans import Span
from analyzers.checkpoints.reading.stream import Chunk, stream
from analyzers.checkpoints.tensor import Tensor
from analyzers.numerics.conversions import values_of

Floats = NDArray[np.float64]
T = TypeVar("T")

# A view is compared in one run of RUN values; if its layout is in doubt, in PLACES runs of SHORT values at the same random positions.
RUN = 1024
PLACES, SHORT = 16, 16
_UNTOUCHED = 1 << 20
# Two views are related if their correlation is this many standard deviations above 0, at least this large, over at least this many values.
_DEVIATIONS, _LEAST, _FEWEST = 6.0, 0.2, 4


@dataclass(slots=True)
class Reader:
    """Reads values from one checkpoint. name: of its side, for errors; nbytes: bytes read so far."""

    checkpoint: Checkpoint
    name: str = ""
    nbytes: int = 0
    _known: dict[tuple[Tensor, bool, int], Floats] = field(default_factory=dict)

    def read(self, views: Iterable[tuple[Tensor, int]], spread: bool) -> dict[Tensor, Floats]:
        """Read some values of each view, at positions that depend only on its number of elements and ``row``, given with it.

        row: length of a row of the matrix; spread: read short runs at random positions instead of one run.
        """
        wanted = dict.fromkeys(views)
        spans: dict[Span, list[tuple[tuple[Tensor, bool, int], int]]] = {}
        for tensor, row in wanted:
            key = (tensor, spread, row)
            if key not in self._known:
                self._known[key] = np.zeros(0)
                for at, (start, count) in enumerate(_places(tensor.elements, row, spread)):
                    spans.setdefault(Span((tensor,), start, count), []).append((key, at))
        found: dict[tuple[Tensor, bool, int], dict[int, Floats]] = {}

        def work(span: Span, chunks: Iterator[Chunk]) -> Floats:
            return np.concatenate([values_of(np.asarray(chunk.codes), span.tensor.counted_as) for chunk in chunks])

        read = 0
        for step in stream([self.checkpoint], list(spans), work, [self.name] if self.name else []):
            read = step.bytes_read
            if step.span is not None and step.result is not None:
                for key, at in spans[step.span]:
                    found.setdefault(key, {})[at] = step.result
        self.nbytes += read
        for key, parts in found.items():
            self._known[key] = np.concatenate([parts[at] for at in sorted(parts)])
        return {tensor: self._known[tensor, spread, row] for tensor, row in wanted}


def remaining_budget(budget: int, readers: Sequence[Reader]) -> int:
    """Return what a sample may still read after matching; budgets up to 1 MiB are not reduced, so that a sample remains."""
    return max(budget - max((reader.nbytes for reader in readers), default=0), min(budget, _UNTOUCHED))


def _places(elements: int, row: int, spread: bool) -> list[tuple[int, int]]:
    """Return start and length of each run. A single run starts at row 5 of a head, which no usual permutation of rows leaves in place."""
    if elements <= RUN:
        return [(0, elements)] if elements else []
    if not spread:
        start = (elements // row // 3 // 8 * 8 + 5) * row if elements // row >= 16 else elements // 3
        return [(start, min(RUN, elements - start))]
    random = np.random.Generator(np.random.PCG64(elements))
    starts = np.unique(random.integers(0, max(1, elements // SHORT), PLACES)) * SHORT
    return [(start, min(SHORT, elements - start)) for start in starts.tolist()]


def correlation(x: Floats, y: Floats) -> float:
    """Compute Pearson's correlation of the finite values; 0 if it is undefined."""
    if x.size != y.size or x.size < 2:
        return 0.0
    usable = np.isfinite(x) & np.isfinite(y)
    x, y = x[usable], y[usable]
    if x.size < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    x, y = x / np.abs(x).max(), y / np.abs(y).max()
    norms = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / norms if norms else 0.0


def related(value: float, values: int) -> bool:
    """Return whether a correlation over ``values`` values is beyond chance.

    By Fisher's z: without a relation, atanh(r) sqrt(n - 3) is standard normal.
    """
    if values < _FEWEST:
        return False
    return value >= _LEAST and bool(np.arctanh(min(value, 1 - 1e-12)) * np.sqrt(values - 3) >= _DEVIATIONS)


def best_correlation(pairs: Sequence[tuple[Floats, Floats]]) -> tuple[float, int]:
    """Return the largest correlation and its number of values: one of several modules may be damaged, or correspond to another layer."""
    return max(((correlation(x, y), x.size) for x, y in pairs), default=(0.0, 0))


def related_share(pairs: Sequence[tuple[Floats, Floats]]) -> float:
    """Return the share of the pairs that are related."""
    return sum(related(correlation(x, y), x.size) for x, y in pairs) / max(1, len(pairs))


def row_length(shape: Sequence[int]) -> int:
    """Return the length of a row of a matrix of this shape; 1 for a scalar."""
    return max(1, shape[-1]) if shape else 1


def spread(items: Sequence[T], most: int) -> list[T]:
    """Return at most ``most`` items: the first, the last, and evenly spaced ones between them."""
    if len(items) <= most:
        return list(items)
    return [items[round(at * (len(items) - 1) / (most - 1))] for at in range(most)]
