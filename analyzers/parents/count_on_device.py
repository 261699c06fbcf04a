"""Counts models in the memory of a GPU where they are, many pieces at a time, with the results of `count.Counter`.

torch is imported on first use. Tests run the same code on CPU tensors. A tensor's sums are read back together, when it is finished. Only
removing the structure of signs is left to the CPU, of the few pieces for which it is done: eigenvectors and waves of small tables, until
none stands out, are many steps of which each depends on the one before.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from analyzers.checkpoints import Chunk, Span
from analyzers.numerics.piece_kernels import BLOCK, FAR, FEWEST_ROWS, SMOOTH
from analyzers.numerics.torch_kernels import histogram
from analyzers.parents.count import (
    BEYOND,
    GROUPS,
    OUTLIERS,
    OUTLYING,
    PAIR_SUMS,
    PRODUCTS,
    STRUCTURED,
    Counted,
    Counter,
    is_matrix,
    piece_length,
    places_of,
)
from analyzers.parents.regular_pieces import PATTERNS
from analyzers.parents.rounding import FORMATS, THROUGH
from analyzers.parents.shared_structure import is_smooth, signs, structured_sums

_AT_ONCE = 1 << 20  # values of all sides, which take some 100 bytes for each
_WAITING_BYTES = 64 << 20  # of pieces that the CPU gets
_FLOATS = {
    "F32": "float32", "BF16": "bfloat16", "F16": "float16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
_CASTS = 1 + len(THROUGH)


class DeviceCounter:
    """The work function of a stream that leaves large tensors on their device. The others, and what needs a CPU, are ``counter``'s."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._histograms: Any = 0

    def __call__(self, span: Span, chunks: Iterator[Chunk]) -> Counted:
        """Count all of ``span``."""
        first = next(chunks)
        if isinstance(first.codes, np.ndarray):
            return self._counter(span, chain([first], chunks))
        sums = _Sums(self._counter, span, first.codes.device)
        for chunk in chain([first], chunks):
            sums.add([codes for codes in chunk.sides if codes is not None], chunk.start)
        self._histograms = self._histograms + sums.histograms
        return sums.take()

    def settle(self) -> None:
        """Add the histograms of all spans to those of the counter."""
        if not isinstance(self._histograms, int):
            counts = self._histograms.cpu().numpy()
            x, p, equal = counts[..., :PATTERNS]
            self._counter.patterns.counts += np.stack([x, x - equal, p - equal], axis=1)
            self._counter.smooth += counts[0, :, PATTERNS]


class _Sums:
    """The sums of one span, on its device. histograms: (3, m, 65537) those of the counter, then the number of values in smooth rows.

    Axes of tables: sides (X first), pieces, values of a piece.
    """

    def __init__(self, counter: Counter, span: Span, device: Any) -> None:
        import torch

        self._torch, self._counter, self._device = torch, counter, device
        self._number, group = counter.groups[span.tensor.name]
        self._holders = [i for i, side in enumerate(group.tuned) if side is not None]
        self._dtypes = [side.counted_as for side in group.sides if side is not None]
        self._matrix, self._width = is_matrix(group.base.shape, group.base.role), span.tensor.shape[-1]
        number = len(self._holders)
        self.histograms = self._zeros(3, counter.candidates, PATTERNS + 1, dtype=torch.int64)
        self._pairs, self._others, self._broken = self._zeros(number, PAIR_SUMS), self._zeros(number, _CASTS), self._zeros(number, _CASTS)
        self._exact, self._fit = self._zeros(number), self._zeros(2)  # of the fit: rounding, outliers
        self._grams = self._zeros(GROUPS if counter.sides else 0, 1 + number, 1 + number)
        self._kept: list[tuple[Any, ...]] = []
        self._structured: list[Any] = []
        self._result = Counted.empty(counter.candidates)

    def _zeros(self, *shape: int, dtype: Any = None) -> Any:
        return self._torch.zeros(shape, dtype=dtype or self._torch.float64, device=self._device)

    def add(self, sides: Sequence[Any], start: int) -> None:
        """Count patterns (n,) of all sides, from element ``start`` of the tensor on."""
        count, piece = len(sides[0]), piece_length(self._width)
        whole, step = count // piece * piece, max(1, _AT_ONCE // len(sides) // piece) * piece
        for first in range(0, whole, step):
            self._add([side[first : min(first + step, whole)] for side in sides], start + first, piece)
        if whole < count:
            self._add([side[whole:] for side in sides], start + whole, count - whole)

    def take(self) -> Counted:
        """Return the counts, in one copy from the device and one for each kind of values that the CPU gets."""
        torch, result, holders = self._torch, self._result, self._holders
        parts = [self._pairs, self._others, self._broken, self._exact, self._fit, self._grams]
        together = torch.cat([part.flatten() for part in parts]).cpu().numpy()
        taken = np.split(together, np.cumsum([part.numel() for part in parts])[:-1])
        pairs, others, broken, exact, fit, grams = (values.reshape(part.shape) for values, part in zip(taken, parts, strict=True))
        result.pairs[holders] += pairs
        result.others[holders], result.broken[holders], result.exact[holders] = others, broken, exact
        result.rounding, result.outliers = float(fit[0]), int(fit[1])
        places = places_of(holders, self._counter.candidates)
        for number, gram in enumerate(grams):
            if gram.any():
                self._counter.add_gram(result, number, gram, places)
        if self._kept:
            kept, shared = (torch.cat(each, -2).cpu().numpy() for each in zip(*self._kept, strict=True))
            for piece in np.flatnonzero(shared.any(1)):
                self._counter.keep(result, kept[:, piece], shared[piece], holders, self._dtypes)
        self._settle_structured()
        return result

    def _add(self, sides: Sequence[Any], start: int, length: int) -> None:
        """Count pieces of ``length`` values."""
        torch = self._torch
        floats = [side.view(getattr(torch, _FLOATS[dtype])).double() for side, dtype in zip(sides, self._dtypes, strict=True)]
        values = torch.stack(floats).view(len(sides), -1, length)
        usable = values.abs() < BEYOND  # False for NaN
        both, same = usable[:1] & usable[1:], (values[:1] == values[1:]) | (values[:1].isnan() & values[1:].isnan())
        lost = (same & ~both).sum((1, 2))
        self._broken += torch.stack([(~both).sum((1, 2)), *[lost] * len(THROUGH)], 1)
        self._exact += same.sum((1, 2))
        if not self._matrix:
            self._others += self._cast(values, both)
            return
        constant = self._constant(torch.where(usable[0], values[0], 0.0))
        self._others += self._cast(values, both & constant)
        usable, both = usable & ~constant, both & ~constant
        values = torch.where(usable, values, 0.0)
        blocks = [(start + first) // BLOCK + self._number for first in range(0, len(sides[0]), length)]
        self._count(values, both, blocks)
        cleaned = [number for number, block in enumerate(blocks) if self._counter.is_cleaned(block)]
        if cleaned:
            self._structured.append(values[:, self._indices(cleaned)])
            if sum(each.nbytes for each in self._structured) > _WAITING_BYTES:
                self._settle_structured()
        kept = [number for number, block in enumerate(blocks) if self._counter.is_kept(block)]
        if kept and self._counter.sides:
            chosen, run = self._indices(kept), self._counter.run
            pieces, shared = values[:, chosen, :run].float(), usable.all(0)[chosen, :run]
            self._kept.append(tuple(torch.nn.functional.pad(each, (0, run - each.shape[-1])) for each in (pieces, shared)))

    def _indices(self, numbers: Sequence[int]) -> Any:
        return self._torch.tensor(numbers).to(self._device, non_blocking=True)

    def _count(self, values: Any, both: Any, blocks: Sequence[int]) -> None:
        torch = self._torch
        narrow, far, smooth = values.float().bfloat16(), self._far(values), self._smooth(values[0])
        casts, zero = self._cast(values, both)[:, 1:], self._zeros()
        codes = narrow.view(torch.int16).int() & 0xFFFF
        for row, i in enumerate(self._holders):
            chosen, equal, same = both[row], both[row] & (narrow[0] == narrow[1 + row]), both[row] & (codes[0] == codes[1 + row])
            x, p = (torch.where(chosen, side, 0.0) for side in (values[0], values[1 + row]))
            sums = [zero] * (PAIR_SUMS - len(THROUGH))
            sums[0], sums[1], sums[5], sums[OUTLYING] = chosen.sum(), equal.sum(), ((x == 0) & (p != 0)).sum(), (far[row] & chosen).sum()
            for columns, mask in ((PRODUCTS, ~far[row]), (OUTLIERS, far[row])):
                a, b = (torch.where(mask, side, 0.0).flatten() for side in (x, p))
                for column, terms in zip(columns, ((a, a), (a, b), (b, b), (a * b, a * b)), strict=True):
                    sums[column] = torch.dot(*terms)
            self._pairs[row] += torch.cat([torch.stack([each.double() for each in sums]), casts[row]])
            for table, side, mask in ((0, 0, chosen), (1, 1 + row, chosen), (2, 0, same & ~smooth[:, None])):
                self.histograms[table, i, :-1] += histogram(torch.where(mask, codes[side], PATTERNS).flatten(), PATTERNS + 1)[:-1]
            self.histograms[0, i, -1] += (smooth[:, None] & chosen).sum()
        if self._counter.sides and self._holders:
            self._add_fit(values, both.all(0), far.any(0), blocks)

    def _add_fit(self, values: Any, shared: Any, far: Any, blocks: Sequence[int]) -> None:
        torch = self._torch
        fitted = torch.where(shared & ~far, values, 0.0)
        tables = torch.nn.functional.pad(fitted, (0, -fitted.shape[2] % BLOCK)).view(len(values), len(blocks), -1, BLOCK)
        tables = tables.permute(1, 2, 0, 3)
        numbers = [(block + i) % GROUPS for block in blocks for i in range(tables.shape[1])]
        self._grams.index_add_(0, self._indices(numbers), (tables @ tables.mT).flatten(0, 1))
        self._fit[1] += (shared & far).sum()
        if (kind := FORMATS.get(self._dtypes[0])) is not None:  # the sum of ulp^2 / 12, see `rounding.rounding_error`
            exponents = (fitted[0].frexp().exponent - 1).clamp(min=1 - kind.bias) - kind.mantissa_bits
            self._fit[0] += torch.where(fitted[0] != 0, torch.exp2(2.0 * exponents.double()), 0.0).sum() / 12

    def _cast(self, values: Any, mask: Any) -> Any:
        """(m, 4): the number of values where ``mask`` (m, pieces, n), and of those equal as cast, see `rounding.equal_as_cast`."""
        torch = self._torch
        rows = []
        for row, chosen in enumerate(mask, 1):
            x, p, dtypes = values[0], values[row], (self._dtypes[0], self._dtypes[row])

            def count(equal: Any, chosen: Any = chosen) -> Any:
                return (equal & chosen).sum(1)

            number, same = chosen.sum(1), count(x == p)
            counts = [same, *[torch.zeros_like(same)] * (len(THROUGH) - 1)]
            if set(dtypes) != {"BF16"} and all(dtype in FORMATS for dtype in dtypes):
                near = 2 * count(self._rounded(x, "BF16") == self._rounded(p, "BF16")) >= number
                sides = (x, p, dtypes[0]), (p, x, dtypes[1])
                counts = [
                    near * torch.maximum(*(count(self._rounded(self._rounded(source, way), dtype) == to) for to, source, dtype in sides))
                    for way in THROUGH
                ]
            rows.append(torch.stack([number, *(torch.where(same == number, number, each) for each in counts)]).sum(1))
        return torch.stack(rows) if rows else self._zeros(0, _CASTS)

    def _rounded(self, values: Any, dtype: str) -> Any:
        """Round as `rounding.rounded`; "" leaves values unchanged."""
        torch = self._torch
        return values.to(torch.float32).to(getattr(torch, _FLOATS[dtype])).double() if dtype else values

    def _constant(self, x: Any) -> Any:
        """(pieces, n), see `count._constant`."""
        blocks = (part.amax(1, keepdim=True).eq(part.amin(1, keepdim=True)).expand_as(part) for part in x.split(BLOCK, 1))
        return self._torch.cat(list(blocks), 1)

    def _far(self, values: Any) -> Any:
        """(m, pieces, n), see `count._outlying`."""
        torch, present = self._torch, values != 0
        exponents = (values.frexp().exponent * present).sum(2) / present.sum(2).clamp(min=1)
        typical = torch.exp2(torch.maximum(exponents[:1], exponents[1:]).double())
        return (values[1:] - values[:1]).abs() > FAR * typical[..., None]

    def _smooth(self, x: Any) -> Any:
        """(pieces,) of X, see `count.is_smooth`."""
        rows = x.shape[1] // self._width
        if rows < FEWEST_ROWS:
            return self._torch.zeros(len(x), dtype=self._torch.bool, device=self._device)
        table = x[:, : rows * self._width].view(len(x), rows, -1)
        mask = (table != 0) & (table.amax(2, keepdim=True) > table.amin(2, keepdim=True))
        table = _centred(_centred(table, mask | True).sign() * mask, mask) * mask
        return (table[:, 1:] * table[:, :-1]).sum((1, 2)) > SMOOTH * table[:, 1:].square().sum((1, 2))

    def _settle_structured(self) -> None:
        """Let the CPU compare the signs of pieces that wait for it."""
        for length in {values.shape[2] for values in self._structured}:
            together = self._torch.cat([values for values in self._structured if values.shape[2] == length], 1)
            for piece in np.moveaxis(together.cpu().numpy(), 1, 0):
                rows = piece.shape[1] // self._width
                if self._holders and piece[0].any() and not is_smooth(signs(piece[0], self._width), rows):
                    self._result.pairs[np.ix_(self._holders, STRUCTURED)] += structured_sums(piece, self._width)
        self._structured = []


def _centred(table: Any, mask: Any) -> Any:
    """(pieces, rows, columns), see `count._centred`."""
    centred = table - table.sum(2, keepdim=True) / mask.sum(2, keepdim=True).clamp(min=1)
    centred += table.sum((1, 2), keepdim=True) / mask.sum((1, 2), keepdim=True).clamp(min=1)
    return centred - table.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
