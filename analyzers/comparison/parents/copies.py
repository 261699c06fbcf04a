"""Tells whether quantized tensors hold the values of a source, by the rounding that their grids explain and by the other tensors.

A tensor that was rounded to nearest is within half a step of its source but where its scale was rounded too. Calibrated methods move values
farther on purpose: their tensors are held against each other, and only an error far beyond the usual one tells that one is not its source.
Whether a file was calibrated is measured: programs write values rounded to nearest in the same layouts.
"""

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from analyzers.checkpoints.quantization.quantized import Quantized
from analyzers.comparison.counting import Floats
from analyzers.comparison.norms import scales_channels
from analyzers.comparison.parents.channels import Channels, Scaling
from analyzers.comparison.parents.relations import Judged, Relations
from analyzers.comparison.parents.report import FAITHFUL, SCALED, Conversion, QuantizedCopy, QuantizedTensor
from analyzers.comparison.parents.words import TENSORS
from analyzers.comparison.table import Sums, Table
from analyzers.core.notes import Note
from analyzers.core.report import first_rows
from analyzers.numerics.copy_kernels import COARSE, ERROR, LOST, NEAREST, RUN, RUNS, SQUARE, UNEXPLAINED, VALUES, WITHIN

# Layouts of calibrated methods.
_CALIBRATED = ("GPTQ", "AWQ", "compressed-tensors")
# Of values rounded to nearest: the largest error, in units of that of rounding, and share that rounding does not explain.
_NEAR, _UNEXPLAINED = 1.1, 0.003
# Of calibrated ones: the largest usual error, in units of that of rounding; the largest of a tensor, in units of the usual one; and the
# share of runs that may be lost, without usual ones and with them, and their number.
_USUAL, _FARTHER, _FEW_LOST, _MOST_LOST, _FEW = 4.0, 2.0, 0.01, 0.05, 2
# Of values without a grid: the largest error, in units of 2^-bits, and of the usual one.
_OF_BITS, _OF_USUAL = 2.5, 1.5
# Least distance of a factor from 1, and of that of a calibrated tensor from the usual one.
_FACTOR, _SCALED = 0.02, 0.15
_PLAIN = Scaling("none")
# Notes on tensors whose channels are scaled, by the kind of their factors.
_SCALED_BY: dict[str, str] = {"norm": "by-channel", "own": "by-own-channel", "unread": "by-unread-channel"}
# Programs whose layouts only the configuration tells.
_PROGRAMS = ("compressed-tensors", "modelopt", "quanto", "torchao")


class _Figures(NamedTuple):
    """Figures of a tensor, or of several.

    factor: f of the least |X - f P|; error: |X - P| / |P|; lost: share of runs that are; nearest: error of rounding to nearest; ratio: of
    both errors; within, unexplained: shares of values within half a step, and not explained by rounding. Without a grid, the last four are
    None.
    """

    factor: float
    lost: float
    error: float | None
    nearest: float | None
    ratio: float | None
    within: float | None
    unexplained: float | None

    @classmethod
    def of(cls, counts: Floats, row: Sums) -> "_Figures":
        """Compute the figures from sums."""
        values, error, nearest, square = (float(counts[at]) for at in (VALUES, ERROR, NEAREST, SQUARE))
        xx, pp = float(row["square_x"]), float(row["square_p"])
        factor = (xx + pp - float(row["update_square"])) / 2 / pp if pp else 0.0
        lost = float(counts[LOST] / max(1.0, counts[RUNS]))
        if not values:
            return cls(factor, lost, row.distance, None, None, None, None)
        ratio = float(np.sqrt(error / nearest)) if nearest else None if error else 1.0
        rounding = float(np.sqrt(nearest / square)) if square else None
        return cls(factor, lost, row.distance, rounding, ratio, float(counts[WITHIN]) / values, float(counts[UNEXPLAINED]) / values)


class Copy:
    """How the quantized tensors of side ``x`` come from side ``p``.

    program: that wrote them, as the configuration says; adds_one: whether it adds 1 to norms; numbers: of their groups.
    """

    def __init__(self, table: Table, x: int, p: int, program: str = "", adds_one: bool = False) -> None:
        self.adds_one = adds_one
        self._table, self._x, self._p, self._program = table, x, p, program
        self._counts, self._sums = table.copies[x, p], table.tensors(x, p)
        self.numbers: list[int] = np.flatnonzero(self._counts[:, RUNS] > 0).tolist()
        self._figures = {number: _Figures.of(self._counts[number], self._row(number)) for number in self.numbers}
        self._medians: dict[tuple[str, str], float | None] = {}
        self._labels = {number: self._stored(number).label for number in self.numbers}
        # Held against values that were rounded themselves, only rounding to nearest tells a copy: two copies of one model are as near as
        # calibrated ones.
        self._rounded = {number for number in self.numbers if table.tensor(number, p).stored is not None}
        scaled = [number for number in self.numbers if self._scales(number)]
        self._channels = Channels(table, x, p, scaled) if scaled else None

    @property
    def share(self) -> float:
        """Share of the quantized values in tensors that hold the source's; those with more bits than the source are not copies."""
        held = [number for number in self.numbers if not self._row(number)["differ"] or holds_source(self.judge(number))]
        read = np.flatnonzero(self._table.holders(self._x, self._p) & (self._sums["values"] > 0)).tolist()
        quantized = [number for number in read if self._table.tensor(number, self._x).stored is not None]
        return sum(map(self._elements, held)) / max(1, sum(map(self._elements, quantized)))

    def beside(self, number: int) -> Judged | None:
        """Return the relation of a tensor that was scaled with the channels of matrices, or None: of a norm, a bias or a router."""
        if self._channels is None:
            return None
        with_channels = Judged("affine", note=TENSORS.note("with-channels"))
        if self._table.groups[number].base.role == "norm":
            if (scaled := self._channels.scaled.get(number)) is not None:
                factor, behind = scaled
                pair = self._table.groups[behind].base.name
                return Judged("affine", factor=factor, note=TENSORS.note("not-undone", pair=pair, factor=factor))
            return with_channels if number in self._channels.norms else None
        if self._table.matrix[number]:
            own = self._channels.beside(number)
            return None if own is None else with_channels if abs(own - 1) <= _FACTOR else Judged("affine", factor=own)
        return with_channels if any(self._scaling(each).kind in ("own", "unread") for each in self.numbers) else None

    def _scaling(self, number: int) -> Scaling:
        """Return how the channels of a tensor are scaled."""
        return self._channels.of(number) if self._channels is not None and self._scales(number) else _PLAIN

    def _undone(self, number: int) -> Scaling | None:
        """Return the sums of a tensor once the factors of its channels are undone; None if it has none."""
        found = self._scaling(number)
        return found if found.kind in _SCALED_BY and found.square > 0 else None

    def distance(self) -> float | None:
        """Return |X - P| / |P| over all matrices, once the factors of channels are undone."""
        matrix, weights = self._table.matrix, self._table.weights
        error, square = (float(weights[matrix] @ self._sums[name][matrix]) for name in ("update_square", "square_p"))
        for number in self.numbers:
            if (undone := self._undone(number)) is not None:
                row = self._row(number)
                error += weights[number] * (undone.error / undone.square * row["square_p"] - row["update_square"])
        return float(np.sqrt(max(0.0, error) / square)) if square else None

    def described(self, relations: Relations, conversion: Sequence[Conversion], stored: int, lacks: tuple[str, ...]) -> QuantizedCopy:
        """Describe the copy, with a row for each tensor. relations, conversion: of all tensors of the model to the source.

        stored: number of its quantized tensors; lacks: names of the source's without a counterpart.
        """
        by_stored: dict[str, list[int]] = {}
        for number in self.numbers:
            by_stored.setdefault(relations.stored(number), []).append(number)
        rows = [self._tensor(name, numbers, relations) for name, numbers in by_stored.items()]
        sizes = [self._elements(number) for number in self.numbers]
        return QuantizedCopy(
            **self._over(self.numbers, self._table.weights),
            methods=self._methods(self.numbers),
            bits_per_weight=float(np.average([self._bits(number) for number in self.numbers], weights=sizes)),
            calibrated=any(self._is_calibrated(number) for number in self.numbers),
            tensors_read=len(by_stored),
            tensors_stored=max(len(by_stored), stored),
            not_source=tuple(row.name for row in conversion if row.relation != "unmatched" and not holds_source(row)),
            lacks=lacks,
            tensors=tuple(sorted(rows, key=lambda row: row.relation in FAITHFUL)),
        )

    def _tensor(self, name: str, numbers: list[int], relations: Relations) -> QuantizedTensor:
        found = [relations.of(number).relation for number in numbers]
        return QuantizedTensor(
            name=name,
            relation=next((relation for relation in found if relation not in FAITHFUL), found[0]),
            role=self._table.groups[numbers[0]].base.role,
            layer=self._table.groups[numbers[0]].base.layer,
            source=tuple(self._table.tensor(number, self._p).name for number in numbers),
            **self._over(numbers, np.ones_like(self._table.weights)),
        )

    def _over(self, numbers: list[int], weights: Floats) -> dict[str, Any]:
        """Return the fields of `Quantized` over several tensors."""
        undone = {number: found for number in numbers if (found := self._undone(number)) is not None}
        plain = [number for number in numbers if number not in undone]
        figures = _Figures.of(weights[numbers] @ self._counts[numbers], Sums(weights[numbers] @ self._sums.columns[numbers]))
        within = _Figures.of(weights[plain] @ self._counts[plain], Sums(weights[plain] @ self._sums.columns[plain])).within
        error, nearest, ratio = figures.error, figures.nearest, figures.ratio
        if undone:
            sums = np.zeros(3)
            for number in numbers:
                if (found := undone.get(number)) is not None:
                    scale = float(self._row(number)["square_p"]) / found.square
                    sums += weights[number] * np.array([scale * found.error, scale * found.nearest, scale * found.square])
                else:
                    sums += weights[number] * self._counts[number][[ERROR, NEAREST, SQUARE]]
            error, nearest = (float(np.sqrt(each / sums[2])) for each in sums[:2])
            ratio = error / nearest if nearest else None
        usual = self._methods(numbers)[0]
        groups = {number: self._stored(number).group for number in numbers if self._method(self._stored(number)) == usual}
        most = Counter(groups.values()).most_common(1)[0][0]
        stored = self._stored(next(number for number, group in groups.items() if group == most))
        return {
            "within_half_step": within,
            "error": error,
            "error_of_nearest": nearest,
            "ratio": ratio,
            "method": usual,
            "bits": _code_bits(stored),
            "group": stored.group,
            "scales": _shared(stored),
            "values": int(self._sums["values"][numbers].sum()),
            "channels_scaled": bool(undone),
        }

    def _methods(self, numbers: Sequence[int]) -> tuple[str, ...]:
        """Return the methods of some tensors, that of most values first."""
        sizes: Counter[str] = Counter()
        for number in numbers:
            sizes[self._method(self._stored(number))] += self._elements(number)
        return tuple(method for method, _ in sizes.most_common())

    def unexplained(self, number: int) -> int:
        """Count the values of a tensor that rounding does not explain; without a grid, all."""
        counts = self._counts[number]
        return int(counts[UNEXPLAINED]) if counts[VALUES] else int(self._row(number)["values"])

    def judge(self, number: int) -> Judged:
        """Return the relation of a quantized tensor that is neither equal to its source nor a constant."""
        figures, row, stored = self._figures[number], self._row(number), self._stored(number)
        lost = int(self._counts[number, LOST])
        if self._scales(number):
            return self._judge_channels(number)
        calibrated = self._is_calibrated(number)
        few = self._has_few_lost(number) if calibrated or figures.ratio is None else not lost
        if few and self._is_near(number, calibrated):
            return Judged("rounded", to=self._method(stored))
        factor, pp = figures.factor, float(row["square_p"])
        rest = np.sqrt(max(0.0, float(row["square_x"]) / pp - factor**2)) if pp else np.inf
        least = 2.0 ** -self._bits(number) if figures.nearest is None else figures.nearest
        usual = least * (min(self._usual(number, "ratio") or 1.0, _USUAL) if calibrated else 1.0)
        apart = abs(factor - (self._usual(number, "factor") or 1.0)) > _SCALED if calibrated else abs(factor - 1) > _FACTOR
        if apart and rest <= _FARTHER * usual * min(1.0, abs(factor)):
            return Judged("affine", factor=factor)
        return Judged("other", note=self._lost_runs(number)) if lost else Judged("changed")

    def _judge_channels(self, number: int) -> Judged:
        """Return the relation of a tensor whose channels may be scaled, as those of others are."""
        found, stored = self._scaling(number), self._stored(number)
        runs, lost = (int(self._counts[number, at]) for at in (RUNS, LOST))
        if found.kind == "none" or (found.kind == "unknown" and self._has_few_lost(number) and self._is_near(number, True)):
            return Judged("rounded", to=self._method(stored))
        if found.kind in _SCALED_BY:
            note = TENSORS.note(_SCALED_BY[found.kind])
            return Judged("rounded", to=self._method(stored), note=note)
        if found.kind == "factor":
            pair = None if found.pair is None else self._table.groups[found.pair].base.name
            undone = None if pair is None else TENSORS.note("not-undone", pair=pair, factor=found.factor)
            return Judged("affine", factor=found.factor, note=undone)
        if found.lost:
            channels = self._table.groups[number].base.shape[-1]
            return Judged("other", note=TENSORS.note("lost-channels", channels=found.lost, all=channels))
        if found.lost_rows:
            rows = prod(self._table.groups[number].base.shape[:-1])
            return Judged("other", note=TENSORS.note("lost-rows", rows=found.lost_rows, all=rows))
        if lost > max(_FEW, _FEW_LOST * runs):
            return Judged("other", note=self._lost_runs(number))
        return Judged("changed", note=TENSORS.note("unknown-channels") if found.kind == "unknown" else None)

    def _lost_runs(self, number: int) -> Note | None:
        """Say how many values are in runs that are not the source's, if not most are."""
        runs, lost = (int(self._counts[number, at]) for at in (RUNS, LOST))
        return TENSORS.note("lost-runs", values=lost * RUN, share=lost / runs) if 2 * lost < runs else None

    def _is_calibrated(self, number: int) -> bool:
        """Return whether the tensors quantized like this one are mostly farther from the source than rounding explains."""
        if self._stored(number).layout not in _CALIBRATED or number in self._rounded:  # else two copies of one model look like this
            return False
        return (self._usual(number, "unexplained") or 0.0) > _UNEXPLAINED

    def _scales(self, number: int) -> bool:
        return self._is_calibrated(number) and scales_channels(self._table.tensor(number, self._x))

    def _has_few_lost(self, number: int) -> bool:
        """Return whether no more runs of a tensor are lost than usual: of two bits, some are in any copy."""
        share = min(_MOST_LOST, _FEW_LOST + _FARTHER * (self._usual(number, "lost") or 0.0))
        return int(self._counts[number, LOST]) <= max(_FEW, share * int(self._counts[number, RUNS]))

    def _is_near(self, number: int, calibrated: bool) -> bool:
        """Return whether the error of a tensor is that of rounding, or not much beyond the usual one."""
        figures, usual = self._figures[number], self._usual(number, "ratio")
        if figures.ratio is None or figures.unexplained is None or usual is None:
            error, usual = figures.error or 0.0, self._usual(number, "error") or 0.0
            return figures.nearest is None and error <= min(_OF_BITS * 2.0 ** -self._bits(number), _OF_USUAL * usual)
        if calibrated:
            scaled = abs(figures.factor - (self._usual(number, "factor") or 1.0)) > _SCALED
            return not scaled and usual <= _USUAL and figures.ratio <= _FARTHER * max(1.0, usual)
        counts = self._counts[number]
        limit = _NEAR**2 + counts[COARSE] / 4 / max(float(counts[NEAREST]), 1e-300)
        return figures.ratio**2 <= limit and figures.unexplained <= _UNEXPLAINED

    def _usual(self, number: int, name: str) -> float | None:
        """Return the median of a figure over the tensors that are quantized in the same way."""
        label = self._labels[number]
        if (label, name) not in self._medians:
            alike = [getattr(figures, name) for other, figures in self._figures.items() if self._labels[other] == label]
            known = [value for value in alike if value is not None]
            self._medians[label, name] = float(np.median(known)) if known else None
        return self._medians[label, name]

    def _row(self, number: int) -> Sums:
        return Sums(self._sums.columns[number])

    def _elements(self, number: int) -> int:
        return self._table.groups[number].base.elements

    def _stored(self, number: int) -> Quantized:
        stored = self._table.tensor(number, self._x).stored
        assert isinstance(stored, Quantized)
        return stored

    def _method(self, stored: Quantized) -> str:
        """Name the program or format, and the codes."""
        if stored.layout == stored.dtype:
            return stored.layout
        if stored.layout not in ("fp8", "int8"):
            return f"{stored.layout} {stored.dtype}"
        program = "torchao" if stored.codes.name.endswith("_qdata") else self._program if self._program in _PROGRAMS else ""
        code = {"I8": "INT8", "U8": "UINT8"}.get(stored.dtype, stored.dtype.removeprefix("F8_"))
        return f"{program or stored.layout.upper()} {code}" if program or stored.layout == "fp8" else code

    def _bits(self, number: int) -> float:
        """Return the bits per weight, with scales and zero points."""
        stored = self._stored(number)
        return 8 * (stored.codes.nbytes + sum(part.nbytes for part in stored.parts)) / max(1, stored.elements)


def first_tensors(copy: QuantizedCopy) -> QuantizedCopy:
    """Return the copy with as many tensors as a report holds."""
    return copy.model_copy(
        update={
            "tensors": tuple(first_rows(copy.tensors)),
            "not_source": tuple(first_rows(copy.not_source)),
            "lacks": tuple(first_rows(copy.lacks)),
        }
    )


def holds_source(judged: Judged | Conversion) -> bool:
    """Return whether a tensor is its source's, as rounded, or with other scales of its channels, or may be."""
    return judged.relation in FAITHFUL or (judged.note is not None and judged.note.code in SCALED)


def _shared(stored: Quantized) -> str:
    """Say which values share a scale."""
    _, rows, columns = stored.shape
    down, across = (min(block, size) for block, size in zip(stored.block, (rows, columns), strict=True))
    if stored.scale is None or stored.layout == "GGUF":
        return f"groups of {stored.group}"
    if (down, across) == (rows, columns):
        return "tensor"
    if min(down, across) > 1:
        return f"{down}x{across} blocks"
    return "rows" if (down, across) in ((1, columns), (rows, 1)) else f"groups of {stored.group}"


def _code_bits(stored: Quantized) -> int:
    """Return the bits of a code; of GGUF's types without those of scales."""
    if stored.layout != "GGUF":
        return stored.bits
    levels = len(stored.levels)
    return (levels - 1).bit_length() if levels > 2 else 8 * stored.codes.nbytes // stored.elements
