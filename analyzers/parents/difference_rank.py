"""Estimates the rank of X - P in the first rows of a few matrices, and whether an update of that rank explains X.

It does for a merged LoRA. An update of full rank also has few singular values above the rounding noise if most of it is as small as
that; but it leaves more than rounding does where values differ.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from analyzers.checkpoints import Alignment, Checkpoint, Chunk, Span, Step, stream
from analyzers.numerics.conversions import values_of
from analyzers.parents.count import is_matrix
from analyzers.parents.report import Difference
from analyzers.parents.rounding import Floats, narrowest, rounding_error, rounds

_MATRICES = 6
_ROWS = 256
# Singular values count if they exceed the largest of rounding noise alone, sigma (sqrt(rows) + sqrt(columns)), by this factor.
_ABOVE_NOISE = 1.2
# A rank is low up to this fraction of the possible rank, if it leaves at most this multiple of the energy that rounding leaves.
_LOW, _LEAVES = 0.25, 1.2


@dataclass(frozen=True, slots=True)
class Decomposed:
    """The difference in one matrix.

    rank: singular values above the noise of rounding; most: the highest rank in as many rows and columns as differ; values: number
    that differ; left: the square that components up to this rank leave of them, in multiples of what rounding them leaves.
    """

    rank: int
    most: int
    left: float
    values: int


@dataclass(slots=True)
class Differences:
    """The spans to read of candidate ``column``, and the result for each matrix with a difference."""

    column: int
    spans: list[Span]
    matrices: dict[str, Decomposed] = field(default_factory=dict)

    @classmethod
    def of(cls, alignment: Alignment, column: int, budget: int) -> "Differences":
        """Choose the first rows of matrices of different kinds, in the middle of the model, in at most ``budget`` bytes of each side."""
        kinds: dict[str, list[int]] = {}
        for number, group in enumerate(alignment.groups):
            side = group.tuned[column]
            if side is not None and side.shape == group.base.shape and len(side.shape) == 2 and is_matrix(side.shape, side.role):
                kinds.setdefault(".".join(group.base.name.split(".")[-2:]), []).append(number)
        chosen = [numbers[len(numbers) // 2] for numbers in kinds.values() if alignment.groups[numbers[0]].base.layer is not None]
        spans = []
        for number in sorted(chosen)[:_MATRICES]:
            base, tuned = alignment.groups[number].base, alignment.groups[number].tuned[column]
            rows, columns = base.shape
            spans.append(Span((base, tuned), 0, min(rows, _ROWS, max(1, budget // _MATRICES // (4 * columns))) * columns))
        return cls(column, spans)

    @property
    def nbytes(self) -> int:
        """Bytes to read."""
        return sum(span.nbytes for span in self.spans)

    def found(self, ref: str) -> Difference | None:
        """Return the largest rank and what all matrices together leave; None if nothing differs. ref: the candidate."""
        if not self.matrices:
            return None
        largest = max(self.matrices.values(), key=lambda each: (each.rank, each.most))
        left = sum(each.left * each.values for each in self.matrices.values()) / sum(each.values for each in self.matrices.values())
        low = all(each.rank <= _LOW * each.most for each in self.matrices.values()) and largest.rank > 0
        return Difference(
            ref=ref,
            rank=largest.rank,
            rows=largest.most,
            left=left,
            low_rank=low and left <= _LEAVES,
            tensors=tuple(span.tensor.name for span in self.spans if span.tensor.name in self.matrices),  # not as threads finish
        )


def measure(differences: Differences, sides: Sequence[Checkpoint], names: Sequence[str]) -> Iterator[Step[Decomposed | None]]:
    """Read and decompose, adding to ``differences.matrices``; yield the steps of the stream."""
    picked = [0, 1 + differences.column]

    def work(span: Span, chunks: Iterator[Chunk]) -> Decomposed | None:
        base, tuned = span.sides
        assert base is not None and tuned is not None
        dtypes = base.counted_as, tuned.counted_as
        parts = [[values_of(np.asarray(code), dtype) for code, dtype in zip(chunk.sides, dtypes, strict=True)] for chunk in chunks]
        x, p = (np.concatenate([part[i] for part in parts]).reshape(-1, base.shape[-1]) for i in (0, 1))
        return _decomposed(x, p, base.counted_as)

    checkpoints = [sides[i] for i in picked]
    for step in stream(checkpoints, differences.spans, work, [names[i] for i in picked]):
        if step.span is not None and step.result is not None:
            differences.matrices[step.span.tensor.name] = step.result
        yield step


def _decomposed(x: Floats, p: Floats, dtype: str) -> Decomposed | None:
    """Decompose X - P; None if X equals P, or if not all values are finite."""
    difference = x - p
    differs = difference != 0
    if not np.isfinite(difference).all() or not differs.any():
        return None
    rows, columns = difference.shape
    dtype = narrowest((x,), dtype) if rounds(dtype) else dtype
    sigma = np.sqrt(rounding_error(x.ravel(), dtype) / x.size)
    turned = difference if rows <= columns else difference.T
    energies, vectors = np.linalg.eigh(turned @ turned.T)
    values = np.sqrt(np.maximum(energies, 0))
    above = values > max(_ABOVE_NOISE * sigma * (np.sqrt(rows) + np.sqrt(columns)), 1e-7 * float(values[-1]))
    rest = turned - vectors[:, above] @ (vectors[:, above].T @ turned)
    rest = (rest if rows <= columns else rest.T)[differs]
    rank = int(above.sum())
    free = max(1, (rows - rank) * (columns - rank)) / difference.size  # share of the noise that the components do not take with them
    left = float(np.square(rest).sum()) / max(rounding_error(x[differs], dtype) * free, 1e-300)
    return Decomposed(rank, int(min(differs.any(axis=1).sum(), differs.any(axis=0).sum())), left, rest.size)
