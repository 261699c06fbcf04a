"""Estimates the rank of X - P in the first rows of a few matrices: it is low for a merged LoRA, but not for a full fine-tune."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from analyzers.checkpoints import Alignment, Checkpoint, Chunk, Span, Step, stream
from analyzers.numerics.conversions import values_of
from analyzers.parents.count import is_matrix
from analyzers.parents.rounding import Floats, rounding_error

_MATRICES = 6
_ROWS = 256
# Singular values count if they exceed the largest of rounding noise alone, sigma (sqrt(rows) + sqrt(columns)), by this factor.
_ABOVE_NOISE = 1.2
# A rank is low up to this fraction of the possible rank.
_LOW = 0.25


@dataclass(slots=True)
class Differences:
    """The spans to read of candidate ``column``. ranks: (rank, highest possible rank, name) of each matrix with a difference."""

    column: int
    spans: list[Span]
    ranks: list[tuple[int, int, str]] = field(default_factory=list)

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

    def found(self) -> tuple[int, int, bool, tuple[str, ...]] | None:
        """Return the largest rank, the highest possible, whether all are low, and the matrices; None if nothing differs."""
        if not self.ranks:
            return None
        rank, rows, _ = max(self.ranks)
        low = all(each <= _LOW * most for each, most, _ in self.ranks) and rank > 0
        return rank, rows, low, tuple(name for _, _, name in self.ranks)


def measure(differences: Differences, sides: Sequence[Checkpoint], names: Sequence[str]) -> Iterator[Step[tuple[int, int] | None]]:
    """Read and decompose, adding to ``differences.ranks``; yield the steps of the stream."""
    picked = [0, 1 + differences.column]

    def work(span: Span, chunks: Iterator[Chunk]) -> tuple[int, int] | None:
        base, tuned = span.sides
        assert base is not None and tuned is not None
        dtypes = base.counted_as, tuned.counted_as
        parts = [[values_of(np.asarray(code), dtype) for code, dtype in zip(chunk.sides, dtypes, strict=True)] for chunk in chunks]
        x, p = (np.concatenate([part[i] for part in parts]).reshape(-1, base.shape[-1]) for i in (0, 1))
        return _rank(x, p, base.counted_as)

    checkpoints = [sides[i] for i in picked]
    for step in stream(checkpoints, differences.spans, work, [names[i] for i in picked]):
        if step.span is not None and step.result is not None:
            differences.ranks.append((*step.result, step.span.tensor.name))
        yield step


def _rank(x: Floats, p: Floats, dtype: str) -> tuple[int, int] | None:
    """Return the number of singular values of X - P above the noise of rounding X, and the highest possible rank; None if X equals P."""
    difference = x - p
    if not np.isfinite(difference).all() or not difference.any():
        return None
    rows, columns = difference.shape
    sigma = np.sqrt(rounding_error(x.ravel(), dtype) / x.size)
    gram = difference @ difference.T if rows <= columns else difference.T @ difference
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(gram), 0))
    edge = max(_ABOVE_NOISE * sigma * (np.sqrt(rows) + np.sqrt(columns)), 1e-7 * float(values[-1]))
    return int((values > edge).sum()), min(rows, columns)
