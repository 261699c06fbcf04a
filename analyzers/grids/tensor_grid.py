"""The grid of one tensor."""

from dataclasses import dataclass
from typing import Protocol

from analyzers.core.records import Record
from analyzers.core.tensor_words import format_name


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorGrid:
    """The grid that a tensor is on, or part of it.

    format: for example int4, int4_zp (with a zero point), nf4; group: number of weights that share a scale, "128x128", "row" or "tensor";
    columns: whether groups run along the second-last axis; groups: number tested; exceptions: groups off the grid; log10_chance: bound of
    the odds that native values pass, over all grids tried; bits: of a weight with its share of the scales; proven: no exception, and odds
    below 10^-9.
    """

    __pydantic_config__ = Record.model_config

    format: str
    group: str
    columns: bool
    groups: int
    exceptions: int
    log10_chance: float
    bits: float
    proven: bool


class _Named(Protocol):
    @property
    def format(self) -> str: ...
    @property
    def group(self) -> str: ...


def describe(grid: _Named) -> str:
    """Name a grid: "int4 in groups of 32"."""
    sharing = f"in {'blocks' if 'x' in grid.group else 'groups'} of {grid.group.replace('x', ' x ')}"
    return f"{format_name(grid.format)} {_SCALED.get(grid.group, sharing)}"


_SCALED = {"tensor": "with one scale", "row": "with a scale per row"}
