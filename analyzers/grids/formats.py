"""The formats that quantizers round to: levels, times a scale per tile of a matrix."""

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.formats import FP8_E4M3, FP8_E5M2, FloatFormat
from analyzers.numerics.grid_kernels import MOST_BITS, Levels

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

    def number(self, shape: tuple[int, int]) -> int:
        """Return how many a matrix of ``shape`` has."""
        rows, columns = self.sides(shape)
        return -(-shape[0] // rows) * -(-shape[1] // columns)

    def fits(self, shape: tuple[int, int], rows: int) -> bool:
        """Return whether ``rows`` of a matrix have room for it: a group larger than these is a row, and one row tells no block."""
        if 1 in self[:2]:
            return self.flat or (self.columns <= shape[1] and self.rows <= rows)
        return rows >= min(2, shape[0])

    def holds(self, other: "Tile") -> bool:
        """Return whether each tile consists of whole tiles of ``other``, so that what it explains they explain too."""
        return self.flat == other.flat and all(
            mine == WHOLE or (theirs != WHOLE and mine % theirs == 0)
            for mine, theirs in ((self.rows, other.rows), (self.columns, other.columns))
        )

    @property
    def name(self) -> str:
        """Name in reports: the number of elements of a group, "128x128", "row" or "tensor"."""
        if self.columns == WHOLE:
            return "tensor" if self.rows == WHOLE else "row"
        return str(self.rows * self.columns) if 1 in (self.rows, self.columns) else f"{self.rows}x{self.columns}"


TENSOR, ROW, BLOCK = Tile(WHOLE, WHOLE), Tile(1, WHOLE), Tile(128, 128)


def _groups(*sizes: int) -> tuple[Tile, ...]:
    """Return groups along rows and along columns, as transposed matrices have them; smallest first."""
    return tuple(tile for size in sizes for tile in (Tile(1, size), Tile(size, 1)))


@dataclass(frozen=True, slots=True, eq=False)
class Format:
    """A format. tiles: what may share a scale, after the smaller ones inside it; bits: of a weight, of integers the most; scale_bits: of a
    tile's scale.
    """

    name: str
    levels: Levels
    tiles: tuple[Tile, ...]
    bits: int
    scale_bits: int = 16


def _table(*levels: float) -> NDArray[np.float64]:
    """Return the magnitudes of the positive and of the negative levels: (2, n)."""
    sides = [sorted(level for level in levels if level > 0), sorted(-level for level in levels if level < 0)]
    most = max(map(len, sides))
    return np.array([side + [np.inf] * (most - len(side)) for side in sides], dtype=np.float64)


def _both(*magnitudes: float) -> NDArray[np.float64]:
    return _table(*magnitudes, *(-level for level in magnitudes))


def _float(exponent_bits: int, mantissa_bits: int, largest: float, reach: float, significands: int = 3) -> Levels:
    """Return the levels of a small float in its smallest steps. Doubled levels are levels: the largest value may be in the top octave."""
    steps = [
        (whole + (1 << mantissa_bits) * (stored > 0)) * 2.0 ** max(stored - 1, 0)
        for stored, whole in product(range(1 << exponent_bits), range(1 << mantissa_bits))
    ]
    magnitudes = [step for step in steps if 0 < step <= largest]
    return Levels(_both(*magnitudes), len(magnitudes) - (1 << mantissa_bits), 0.0, integers=False, reach=reach, significands=significands)


def _fp8(of: FloatFormat, reach: float) -> Levels:
    return _float(of.exponent_bits, of.mantissa_bits, of.largest / of.smallest_subnormal, reach)


# QLoRA, arXiv 2305.14314, appendix E. torchao has a table of four digits, in the dtype of the weights: within 2^-9 and half a digit.
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434,
    0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_NF4_TOLERANCE = 2.0**-9 + 2.0**-10
# The 4-bit floats of bitsandbytes: E2M1 except for the smallest
_FP4 = (1 / 192, 1 / 6, 1 / 4, 1 / 3, 1 / 2, 2 / 3, 1)

# E2M1 reaches from 1 to 12 steps, integers on its levels to 4, their next to 8. Integers of 8 bits reach to 128, the 6-bit floats to 60
# (E2M3) and 448 (E3M2, which has the significands of E5M2).
_E2M1_REACH, _E4M3_REACH, _E5M2_REACH = 10.0, 256.0, 1024.0

_FLAT = tuple(Tile(1, size, flat=True) for size in (64, 128, 256, 512, 1024, 2048, 4096))
_LARGE = (BLOCK, ROW, TENSOR)
_OF_FP8 = (*_groups(32, 128), Tile(64, 64), *_LARGE)

_INTEGERS = Levels(_both(*range(1, 1 << MOST_BITS)), 0, 0.0, integers=True)
_QLORA = Levels(_table(*_NF4), 0, _NF4_TOLERANCE, integers=False)
_BITSANDBYTES = Levels(_both(*_FP4), 0, 0.0, integers=False)

# Of two with as many bits the one first that is named if both hold, as floats of fewer bits of mantissa. Q4_0 and Q8_0 of GGUF are integers
# in groups of 32, MXFP4 is E2M1 in groups of 32 with powers of two as scales, NVFP4 in groups of 16.
FORMATS = (
    Format("int", _INTEGERS, (*_groups(16, 32, 64, 128, 256), *_LARGE), 8),
    Format("nf4", _QLORA, _FLAT, 4),
    Format("fp4_bnb", _BITSANDBYTES, _FLAT, 4),
    Format("fp4_e2m1", _float(2, 1, 12, _E2M1_REACH, 2), (*_groups(16, 32, 64, 128), ROW, TENSOR), 4, 8),
    Format("fp8_e5m2", _fp8(FP8_E5M2, _E5M2_REACH), _OF_FP8, 8),
    Format("fp8_e4m3", _fp8(FP8_E4M3, _E4M3_REACH), _OF_FP8, 8),
)
