"""The grid of one tensor."""

from dataclasses import dataclass
from typing import Protocol

from analyzers.core.records import Record
from analyzers.core.tensor_words import format_name


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorGrid:
    """A grid that a tensor is on, or parts of it.

    format: for example int4, int4_zp (with a zero point), int4_offset (with any offset), nf4; group: number of weights that share a
    scale, "128x128", "row", "column" or "tensor"; columns: whether groups run along the second-last axis; groups: number tested;
    exceptions: groups off the grid; outliers: values set aside in the others; log10_chance: bound of the odds that native values pass, over
    all grids tried; chance: geometric mean of the odds of a group; bits: of a weight with its share of the scales; proven: no exception, no
    outlier, and odds below 10^-9; least: whether the values that tell leave open that it has more bits, a zero point or larger groups.

    Of a tensor nearly all of whose groups are off the grid, groups and exceptions count the smallest parts of groups that were tested.
    """

    __pydantic_config__ = Record.model_config

    format: str
    group: str
    columns: bool
    groups: int
    exceptions: int
    outliers: int
    log10_chance: float
    chance: float
    bits: float
    proven: bool
    least: bool = False


class _Named(Protocol):
    @property
    def format(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def least(self) -> bool: ...


def describe(grid: _Named) -> str:
    """Name a grid: "int4 in groups of 32"; "at least" if more bits or larger groups are possible."""
    return f"{'at least ' * grid.least}{format_name(grid.format)} {_SCALED.get(grid.group, f'in groups of {grid.group}')}"


_SCALED = {
    "tensor": "with one scale",
    "row": "with a scale per row",
    "column": "with a scale per column",
    "128x128": "in blocks of 128 x 128",
}
