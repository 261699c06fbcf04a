"""Reads a few values of many views at the same positions of each, and measures how similar two views are."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.elements import read_bytes
from analyzers.checkpoints.reading.spans import Span
from analyzers.checkpoints.reading.stream import Chunk, stream
from analyzers.checkpoints.tensor import Tensor
from analyzers.numerics.conversions import values_of

Floats = NDArray[np.float64]
Places = tuple[tuple[int, int], ...]  # start and length of each run
T = TypeVar("T")

# Two views are compared in one run of RUN values; if their form is in doubt, in PLACES runs of SHORT values at the same random positions;
# in a sixteenth or a quarter of these if they lie so far apart in the file of a side that reading the run takes SCATTERED bytes.
RUN = 1024
PLACES, SHORT = 16, 16
SCATTERED = 1 << 18
_UNTOUCHED = 1 << 20
# Two views are related if their correlation is this many standard deviations above 0, at least this large, over at least this many values.
_DEVIATIONS, _LEAST, _FEWEST = 6.0, 0.2, 4


@dataclass(slots=True)
class Reader:
    """Reads values from one checkpoint. name: of its side, for errors; nbytes: bytes read so far, with gaps."""

    checkpoint: Checkpoint
    name: str = ""
    nbytes: int = 0
    _known: dict[tuple[Tensor, Places], Floats] = field(default_factory=dict)

    def read(self, views: Iterable[tuple[Tensor, Places]]) -> dict[tuple[Tensor, Places], Floats]:
        """Read the values of views at some `places`."""
        wanted = {key: [Span((key[0],), *place) for place in key[1]] for key in views}
        spans = dict.fromkeys(span for key, runs in wanted.items() if key not in self._known for span in runs)

        def work(span: Span, chunks: Iterator[Chunk]) -> Floats:
            return np.concatenate([values_of(np.asarray(chunk.codes), span.tensor.counted_as) for chunk in chunks])

        found = dict[Span, Floats]()
        for step in stream([self.checkpoint], list(spans), work, [self.name] if self.name else []):
            if step.span is not None and step.result is not None:
                found[step.span] = step.result
        self.nbytes += sum(read_bytes(span.tensor, span.start, span.count) for span in spans)
        for key, runs in wanted.items():
            if key not in self._known:
                self._known[key] = np.concatenate([np.zeros(0), *(found[span] for span in runs)])
        return {key: self._known[key] for key in wanted}


def remaining_budget(budget: int, readers: Sequence[Reader]) -> int:
    """Return what a sample may still read after matching; budgets up to 1 MiB are not reduced, so that a sample remains."""
    return max(budget - max((reader.nbytes for reader in readers), default=0), min(budget, _UNTOUCHED))


def places(views: Sequence[Tensor], spread: bool) -> Places:
    """Return start and length of each run of views of one shape, which depend on their number of elements and, for one run, on a row.

    spread: short runs at random positions instead of one run, which starts at row 5 of a head: no usual permutation of rows leaves that in
    place.
    """
    view = views[0]
    elements, row = view.elements, max(1, view.shape[-1]) if view.shape else 1
    if elements <= RUN:
        return ((0, elements),) if elements else ()
    start = (elements // row // 3 // 8 * 8 + 5) * row if elements // row >= 16 else elements // 3
    count = min(RUN, elements - start)
    scattered = max(read_bytes(each, start, count) for each in views) > SCATTERED
    if not spread:
        return ((start, count // 16 if scattered else count),)
    random = np.random.Generator(np.random.PCG64(elements))
    starts = np.unique(random.integers(0, max(1, elements // SHORT), PLACES // 4 if scattered else PLACES)) * SHORT
    return tuple((start, min(SHORT, elements - start)) for start in starts.tolist())


def correlation(x: Floats, y: Floats) -> float:
    """Compute Pearson's correlation of the finite values; 0 if it is undefined."""
    if x.size != y.size:
        return 0.0
    usable = np.isfinite(x) & np.isfinite(y)
    return float(normalised(x[usable]) @ normalised(y[usable]))


def normalised(values: Floats) -> Floats:
    """Centre ``values``, with 0 for those that are not finite, and scale them to norm 1; zeros if they are constant."""
    finite = np.where(np.isfinite(values), values, 0.0)
    centred = finite - finite.mean() if finite.size and np.ptp(finite) else np.zeros_like(finite)
    scaled = centred / np.abs(centred).max(initial=1e-300)
    norm = float(np.linalg.norm(scaled))
    return np.asarray(scaled / norm if norm else scaled)


def related(value: float, values: int) -> bool:
    """Return whether a correlation over ``values`` values is beyond chance.

    By Fisher's z: without a relation, atanh(r) sqrt(n - 3) is standard normal.
    """
    if values < _FEWEST:
        return False
    return value >= _LEAST and bool(np.arctanh(min(value, 1 - 1e-12)) * np.sqrt(values - 3) >= _DEVIATIONS)


def spread(items: Sequence[T], most: int) -> list[T]:
    """Return at most ``most`` items: the first, the last, and evenly spaced ones between them."""
    if len(items) <= most:
        return list(items)
    return [items[round(at * (len(items) - 1) / (most - 1))] for at in range(most)]
