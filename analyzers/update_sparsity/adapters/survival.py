"""Measures what survives of an adapter's update when the merged weights are stored in a narrower format.

bf16, fp16 and int4 are measured while base and merged checkpoint are compared. The scale of fp8 follows from the largest weight of a
matrix, which is known only afterwards: its matrices are read a second time, in quick mode a few blocks of them.
"""

import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import ROLES, Checkpoint, Chunk, Plan, Span, Step, Tensor, stream
from analyzers.numerics.conversions import fp32_of
from analyzers.numerics.intervals import Blocks
from analyzers.numerics.quantization_formats import FORMATS, LONGEST_ROW
from analyzers.numerics.quantize_kernels import sizes, update_lost
from analyzers.records import Interval
from analyzers.update_sparsity.adapters.report import SURVIVAL_FORMATS, Survival, SurvivalFormat, SurvivalPart

Floats = NDArray[np.float32]
# Values that share a scale, mantissa bits, the least exponent and the largest value of each format (`update_lost`)
_GRIDS: dict[SurvivalFormat, tuple[int, int, int, float]] = {
    "bf16": (0, 7, -126, np.inf),
    "fp16": (0, 10, -14, 65536.0),
    "fp8": (0, *FORMATS["fp8"][3:]),
    "int4": (FORMATS["int4"].columns, *FORMATS["int4"][3:]),
}
_ONE = np.float32(1), np.float32(1)
# Blocks read again for fp8 in quick mode, at most, and modules named for each format
_AGAIN, _WORST = 64, 10


@dataclass(slots=True)
class _Lost:
    """The results of one span. sums: of `update_lost`, by format; largest: magnitudes in base and merged; squares: sums of W^2 and D^2.

    non_finite: number of merged values that are NaN or infinite where the base's are finite.
    """

    tensor: Tensor
    start: int
    count: int
    sums: dict[SurvivalFormat, NDArray[np.float64]] = field(default_factory=dict)
    largest: tuple[float, float] = (0.0, 0.0)
    squares: tuple[float, float] = (0.0, 0.0)
    non_finite: int = 0


def _pair(span: Span, chunk: Chunk) -> tuple[Floats, Floats]:
    """Return base and merged values of a chunk, (rows, columns), as far as both have it."""
    sides = [(span.sides[i], chunk.sides[i]) for i in (0, -1)]
    values = [_fp32(np.asarray(codes), side.counted_as) for side, codes in sides if side is not None and codes is not None]
    length, row = min(len(each) for each in values), span.tensor.shape[-1] if span.tensor.shape else 1
    shape = (-1, row) if row and length % row == 0 and chunk.start % row == 0 else (1, length)
    base, merged = (each[:length].reshape(shape) for each in values)
    return base, merged


def _fp32(codes: NDArray[Any], dtype: str) -> Floats:
    return codes.view(np.float64).astype(np.float32) if dtype == "F64" else fp32_of(codes, dtype).view(np.float32)


def is_quantized(tensor: Tensor) -> bool:
    """Return whether formats with scales apply to a tensor: to matrices and stacks of matrices."""
    return len(tensor.shape) >= 2 and 1 < tensor.shape[-1] <= LONGEST_ROW


class SurvivalMeter:
    """Measures the update while base and merged checkpoint, the first and the last side of every span, are compared.

    touched: names of the base's tensors that the adapter changes; embeddings are watched too. Several threads may watch spans.
    """

    def __init__(self, touched: Collection[str], plan: Plan) -> None:
        self._touched, self._plan = touched, plan
        self._again = [
            Span((span.sides[0], span.sides[-1]), span.start, span.count)
            for span in plan.spans
            if span.tensor.name in touched and is_quantized(span.tensor) and span.sides[-1] is not None
        ]
        if not plan.exact and len(self._again) > _AGAIN:
            self._again = [self._again[i * len(self._again) // _AGAIN] for i in range(_AGAIN)]
        self._found: dict[tuple[str, int], _Lost] = {}
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes that `again` reads of both sides."""
        return sum(span.nbytes for span in self._again)

    def watch(self, span: Span, chunk: Chunk) -> None:
        """Measure a chunk of a span, the first chunks of which were measured before."""
        with self._lock:
            lost = self._found.setdefault((span.tensor.name, span.start), _Lost(span.tensor, span.start, span.count))
        watched = span.tensor.name in self._touched or span.tensor.role == "embedding"
        if watched and span.sides[-1] is not None and chunk.sides[-1] is not None:
            self._add(lost, *_pair(span, chunk))

    def _add(self, lost: _Lost, base: Floats, merged: Floats) -> None:
        if lost.tensor.name in self._touched:
            for name in ("bf16", "fp16", "int4") if is_quantized(lost.tensor) else ("bf16", "fp16"):
                _count(lost, name, base, merged, _ONE)
        square, update, non_finite, *largest = sizes(base, merged)
        lost.largest = max(lost.largest[0], largest[0]), max(lost.largest[1], largest[1])
        lost.squares = lost.squares[0] + square, lost.squares[1] + update
        lost.non_finite += non_finite

    def again(self, sides: Sequence[Checkpoint], names: Sequence[str]) -> Iterator[Step[None]]:
        """Measure fp8: read the matrices again, in quick mode a few blocks; yields the steps of the stream."""
        largest: dict[str, tuple[float, float]] = {}
        for (name, _), lost in self._found.items():
            known = largest.get(name, (0.0, 0.0))
            largest[name] = max(known[0], lost.largest[0]), max(known[1], lost.largest[1])

        def work(span: Span, chunks: Iterator[Chunk]) -> None:
            lost = self._found[span.tensor.name, span.start]
            top = np.float32(FORMATS["fp8"].largest)
            before, after = (np.float32(np.float32(each) / top) or np.float32(1) for each in largest[span.tensor.name])
            for chunk in chunks:
                _count(lost, "fp8", *_pair(span, chunk), (before, after))

        return stream([sides[0], sides[-1]], self._again, work, [names[0], names[-1]])

    def relative_norms(self) -> dict[str, tuple[int, float | None]]:
        """Return the number of values read of each module, and |D| / |W| over the finite ones; None if W is 0 there or none was read."""
        sums: dict[str, tuple[int, float, float]] = dict.fromkeys(self._touched, (0, 0.0, 0.0))
        for lost in self._ordered():
            if lost.tensor.name in sums:
                read, w, d = sums[lost.tensor.name]
                sums[lost.tensor.name] = read + lost.count, w + lost.squares[0], d + lost.squares[1]
        return {name: (read, sqrt(d / w) if w else None) for name, (read, w, d) in sums.items()}

    def non_finite(self) -> int:
        """Return how many of the merged weights read are NaN or infinite where the base's are finite."""
        return sum(lost.non_finite for lost in self._found.values())

    def norm(self, name: str) -> float | None:
        """Return |W| of a tensor of the base, in quick mode estimated from the values read; None if nothing was read."""
        found = [lost for lost in self._ordered() if lost.tensor.name == name]
        read = sum(lost.count for lost in found)
        return sqrt(sum(lost.squares[0] for lost in found) * found[0].tensor.elements / read) if read else None

    def survival(self) -> dict[SurvivalFormat, Survival | None]:
        """Return the survival in each format; None if no weight with an update was read."""
        return {name: self._survival(name) for name in SURVIVAL_FORMATS}

    def _ordered(self) -> list[_Lost]:
        """Return the results in one order, whichever thread finished first: float sums depend on it."""
        return [self._found[key] for key in sorted(self._found)]

    def _survival(self, name: SurvivalFormat) -> Survival | None:
        spans = self._ordered()
        sums = np.array([each.sums.get(name, np.zeros(5)) for each in spans]).reshape(-1, 5)
        if not sums[:, 0].any():
            return None
        weights = [float(weight) for weight in self._plan.weights()]
        sums = np.hstack([sums, sums * np.array([[weights[self._plan.strata[each.tensor.name]]] for each in spans])])
        modules = [SurvivalPart(name=module, **_shares(part)) for module, part in _grouped(spans, sums, "name").items()]
        measured = sorted((part for part in modules if part.lost_norm is not None), key=lambda part: -(part.lost_norm or 0))
        roles = {role: part for role, part in _grouped(spans, sums, "role").items() if part[0]}
        masks = [np.array([each.tensor.role in names for each in spans]) for names in (ROLES, *((role,) for role in roles))]
        rows = [_shares(part) for part in (sums.sum(0), *roles.values())]
        if not self._plan.exact and name != "fp8":
            self._bound(rows, spans, sums, np.array(masks).T)
        by_role = (SurvivalPart(name=role, **row) for role, row in zip(roles, rows[1:], strict=True))
        return Survival(**rows[0], worst=tuple(measured[:_WORST]), roles=tuple(by_role))

    def _bound(self, rows: list[dict[str, Any]], spans: Sequence[_Lost], sums: NDArray[np.float64], masks: NDArray[np.bool_]) -> None:
        """Add intervals, which resample whole blocks, to the rows. masks: (blocks, rows)."""
        strata = np.array([self._plan.strata[each.tensor.name] for each in spans])
        blocks = Blocks(strata, np.array([each.count for each in spans]), self._plan.population)
        error, square = (np.where(masks, sums[:, i, None], 0) for i in (3, 4))
        for row, ratio in zip(rows, Interval.each(blocks.ratio(error, square)), strict=True):
            if ratio is not None:
                row |= {"low": sqrt(ratio.low), "high": sqrt(ratio.high)}


def _count(lost: _Lost, name: SurvivalFormat, base: Floats, merged: Floats, scales: tuple[np.float32, np.float32]) -> None:
    found = np.array(update_lost(base, merged, *_GRIDS[name], scales), np.float64)
    lost.sums[name] = lost.sums.get(name, np.zeros(5)) + found


def _grouped(spans: Sequence[_Lost], sums: NDArray[np.float64], key: str) -> dict[str, NDArray[np.float64]]:
    """Sum the rows of ``sums`` by a field of the tensors, in their order."""
    groups: dict[str, NDArray[np.float64]] = {}
    for each, row in zip(spans, sums, strict=True):
        group = getattr(each.tensor, key)
        groups[group] = groups.get(group, 0) + row
    return groups


def _shares(sums: NDArray[np.float64]) -> dict[str, Any]:
    """Compute the fields of `SurvivalRow` from sums over the values read, followed by the same weighted by stratum."""
    touched, _, overflowed, _, _, every, changed, _, error, square = sums.tolist()
    return {
        "touched": int(touched),
        "changed_share": changed / every if touched else None,
        "lost_norm": sqrt(error / square) if square else None,
        "overflowed": int(overflowed),
    }
