"""The grids that quantizers round to: code books of levels, times a scale per tile of a matrix."""

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.formats import FP8_E4M3, FP8_E5M2, FloatFormat

# Sides of a tile that reach across the whole matrix
WHOLE = 0


class Tile(NamedTuple):
    """Rows and columns of the tiles that share a scale (`WHOLE`: all); flat: of the elements in order, regardless of rows."""

    rows: int
    columns: int
    flat: bool = False

    def sides(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Return rows and columns in a matrix of ``shape``."""
        return self.rows or shape[0], self.columns or shape[1]

    def fits(self, shape: tuple[int, int]) -> bool:
        """Return whether a matrix has room for it; in one that has not, a group would be a row or column, which other tiles are."""
        return self.flat or 1 not in self[:2] or (self.rows <= shape[0] and self.columns <= shape[1])

    def holds(self, other: "Tile") -> bool:
        """Return whether each tile consists of whole tiles of ``other``, so that what it explains they explain too."""
        return self.flat == other.flat and all(
            mine == WHOLE or (theirs != WHOLE and mine % theirs == 0)
            for mine, theirs in ((self.rows, other.rows), (self.columns, other.columns))
        )

    @property
    def cut(self) -> bool:
        """True if the parts of it in chunks are tested: it is larger than these."""
        return WHOLE in (self.rows, self.columns) or self.rows > 1 < self.columns

    @property
    def name(self) -> str:
        """Name in reports: the number of elements of a group, "128x128", "row", "column" or "tensor"."""
        if (self.rows, self.columns) == (WHOLE, WHOLE):
            return "tensor"
        if WHOLE in (self.rows, self.columns):
            return "row" if self.columns == WHOLE else "column"
        return str(self.rows * self.columns) if 1 in (self.rows, self.columns) else f"{self.rows}x{self.columns}"


TENSOR, ROW, COLUMN, BLOCK = Tile(WHOLE, WHOLE), Tile(1, WHOLE), Tile(WHOLE, 1), Tile(128, 128)
_ALONG_ROWS = {size: Tile(1, size) for size in (256, 128, 64, 32, 16)}
_ALONG_COLUMNS = {size: Tile(size, 1) for size in (256, 128, 64, 32, 16)}


def _groups(*sizes: int) -> tuple[Tile, ...]:
    return tuple(side[size] for size in sizes for side in (_ALONG_ROWS, _ALONG_COLUMNS))


@dataclass(frozen=True, slots=True, eq=False)
class CodeBook:
    """A grid. levels: (2, n) magnitudes of positive and negative levels, as of `grid_kernels`; tiles: that share a scale, largest first.

    bits: of a weight, 0 if the levels in use decide; scale_bits: of a tile's scale; offset: most steps of a grid of equal steps with any
    offset, instead of levels; powers: scales are powers of two; zero: whether 0 is a level; mantissa: bits of that of a float;
    absmax: whether quantizers make the largest magnitude of a tile its largest level, and round the scale afterwards.
    """

    name: str
    levels: NDArray[np.float64]
    tiles: tuple[Tile, ...]
    bits: int = 0
    scale_bits: int = 16
    offset: int = 0
    powers: bool = False
    zero: bool = True
    mantissa: int = 0
    absmax: bool = False


def _signed(*levels: float) -> NDArray[np.float64]:
    sides = [sorted(level for level in levels if level > 0), sorted(-level for level in levels if level < 0)]
    most = max(map(len, sides))
    return np.array([side + [np.inf] * (most - len(side)) for side in sides], dtype=np.float64)


def _symmetric(*levels: float) -> NDArray[np.float64]:
    return _signed(*levels, *(-level for level in levels))


def _floats(exponent_bits: int, mantissa_bits: int, largest: float) -> NDArray[np.float64]:
    """Return the magnitudes of a small float format in its smallest steps."""
    steps = [
        (whole + (1 << mantissa_bits) * (stored > 0)) * 2.0 ** max(stored - 1, 0)
        for stored, whole in product(range(1 << exponent_bits), range(1 << mantissa_bits))
    ]
    return _symmetric(*(step for step in steps if 0 < step <= largest))


def _rounded(levels: NDArray[np.float64], bits: int) -> tuple[float, ...]:
    """Round to ``bits`` significant bits."""
    fractions, exponents = np.frexp(levels)
    return tuple(np.ldexp(np.rint(np.ldexp(fractions, bits)), exponents - bits).tolist())


def _format(of: FloatFormat) -> NDArray[np.float64]:
    return _floats(of.exponent_bits, of.mantissa_bits, of.largest / of.smallest_subnormal)


# QLoRA, arXiv 2305.14314, appendix E (torchao has a table of four digits, in the dtype of the weights); the 4-bit floats of bitsandbytes;
# kvalues of llama.cpp
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434,
    0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_NF4_TABLES = tuple(_rounded(np.round(_NF4, digits), bits) for digits in (16, 4) for bits in (24, 8, 11))
_FP4 = (1 / 192, 1 / 6, 1 / 4, 1 / 3, 1 / 2, 2 / 3, 1)
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

_INTEGER_TILES = (TENSOR, ROW, COLUMN, BLOCK, *_groups(256, 128, 64, 32, 16))
_FLAT = tuple(Tile(1, size, flat=True) for size in (4096, 2048, 1024, 512, 256, 128, 64))
INTEGERS = CodeBook("int", _symmetric(*range(1, 256)), _INTEGER_TILES)
OFFSET = CodeBook("offset", _symmetric(1), (ROW, *_groups(256, 128, 64, 32, 16)), offset=63, scale_bits=32)

# Of floats of as many bits, those of fewer mantissa bits first: shallow ones fit the others too
BOOKS = (
    INTEGERS,
    OFFSET,
    *(CodeBook("nf4", _signed(*levels), _FLAT, 4, absmax=True) for levels in _NF4_TABLES),
    CodeBook("fp4_bnb", _symmetric(*_FP4), _FLAT, 4, absmax=True),
    CodeBook("fp4_mx", _floats(2, 1, 12), _groups(32), 4, 8, powers=True, mantissa=1),
    CodeBook("fp4_e2m1", _floats(2, 1, 12), (TENSOR, ROW, COLUMN, *_groups(128, 64, 32, 16)), 4, 8, mantissa=1),
    CodeBook("fp6_e3m2", _floats(3, 2, 448), _groups(32), 6, 8, powers=True, mantissa=2),
    CodeBook("fp6_e2m3", _floats(2, 3, 60), _groups(32), 6, 8, powers=True, mantissa=3),
    CodeBook("fp8_e5m2", _format(FP8_E5M2), (TENSOR, ROW, COLUMN, BLOCK, *_groups(128, 32)), 8, mantissa=2),
    CodeBook("fp8_e4m3", _format(FP8_E4M3), (TENSOR, ROW, COLUMN, BLOCK, *_groups(128, 32)), 8, mantissa=3),
    CodeBook("iq4_nl", _signed(*_IQ4), (_ALONG_ROWS[32],), 4, zero=False),
    CodeBook("iq3_xxs", _symmetric(4, 12, 20, 28, 36, 44, 52, 62), (_ALONG_ROWS[32],), 4, zero=False),
    CodeBook("iq3_s", _symmetric(*range(1, 16, 2)), (_ALONG_ROWS[32],), 4, zero=False),
    CodeBook("iq1_s", _signed(-9, -1, 7), (_ALONG_ROWS[32],), 2, zero=False),
    CodeBook("iq2", _symmetric(8, 25, 43), (_ALONG_ROWS[32], _ALONG_ROWS[16]), 3, zero=False),
)
