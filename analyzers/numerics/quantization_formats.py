"""Defines the formats that matrices are quantized to: their grids, and which values share a scale."""

from typing import NamedTuple

from analyzers.numerics.quantize_kernels import AMAX, POWER_OF_TWO, TWO_LEVELS


class Format(NamedTuple):
    """Arguments of `rounding_error`: the rows and columns that share a scale, its rule, and the grid. `DtypeRequest` explains the names."""

    rows: int
    columns: int
    rule: int
    mantissa: int
    least: int
    largest: float


LONGEST_ROW = 1 << 18  # elements; a slab of 128 such rows takes 128 MiB in fp32
_ALL = 1 << 40
FORMATS = {
    "fp8": Format(_ALL, _ALL, AMAX, 3, -6, 448.0),
    "fp8-block": Format(128, 128, AMAX, 3, -6, 448.0),
    "int8": Format(1, _ALL, AMAX, 7, 7, 127.0),
    "int4": Format(1, 128, AMAX, 3, 3, 7.0),
    "mxfp4": Format(1, 32, POWER_OF_TWO, 1, 0, 6.0),
    "nvfp4": Format(1, 16, TWO_LEVELS, 1, 0, 6.0),
}
