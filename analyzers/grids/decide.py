"""Decides from counts which grid a tensor is on: the one with the fewest bits among those that hold for all of it, else for most of it."""

from dataclasses import replace
from math import log2, log10
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from analyzers.grids.formats import FORMATS, ROW, TENSOR, Format, Tile
from analyzers.grids.search import PROMISING, ZEROS, GridCounts, Grids, Key, Shape, matrix
from analyzers.grids.tensor_grid import TensorGrid
from analyzers.numerics.grid_kernels import SLOTS, TESTED

# A proof needs odds below 10^-9 although so many grids are tried.
PROOF_LOG10 = -9.0
_TRIALS = log10(sum(len(form.tiles) for form in FORMATS))
# Blocks of neighbours that only floats of 8 and of 4 bits have, without which values on such a float may be integers, and the evidence in
# decades that so many of them are at least: of integers, half of the values beyond 15 steps have as few bits, a quarter of the blocks no
# value between those of E2M1
_BLOCKS_OF_8_BITS, _BLOCKS_OF_4_BITS, _BLOCK_DECADES = 8, 16, 9.0
# Share of the groups of integers that may take more bits by chance, and least share that is on a grid of which other groups are off
_FEW, _PART = 0.01, 0.2
# Grids of smaller groups are named if so many more values are on them
_AS_MANY = 0.8
# Bits of a value on no grid
_NATIVE_BITS = 16


class OnGrids(NamedTuple):
    """What the grids say of values.

    grid: the coarsest that all are proven to be on, or else that most groups are on; scaled_floats: whether they are proven to be floats of
    8 or 4 bits with scales; unproven: whether all are on some grid that is not proven; fixed_point: whether most are integers with a power
    of two for each group, which bf16 holds whatever their history.
    """

    grid: TensorGrid | None = None
    scaled_floats: bool = False
    unproven: bool = False
    fixed_point: bool = False


def on_grids(grids: Grids, values: int, shape: tuple[int, ...]) -> OnGrids:
    """Judge the counts of a tensor of which so many ``values`` were read."""
    found = [each for key in _keys(grids) if (each := _Described.of(key, grids, values, shape))]
    best = min((each for each in found if each.grid.proven), key=lambda each: each.grid.bits, default=None)
    parts = [each.grid for each in found if each.grid.log10_chance <= PROOF_LOG10]
    on = [(grid.groups - grid.exceptions) / grid.groups for grid in parts]
    largest = next((grid for share, grid in zip(on, parts, strict=True) if share >= max(_PART, _AS_MANY * max(on))), None)
    integers = [counts for (number, _), counts in grids.items() if number >= 0 and FORMATS[number].levels.integers]
    return OnGrids(
        largest if best is None else best.grid,
        scaled_floats=best is not None and best.form.levels.floats,
        unproven=best is None and any(each.grid.exceptions == 0 and each.tells for each in found),
        fixed_point=2 * sum(counts.values for counts in integers if counts.powers) > values,
    )


def _keys(grids: Grids) -> list[Key]:
    """Return the formats and tiles that may explain a tensor: those counted and, in place of one scale for all, one for each row."""
    counted = {key for key in grids if key != ZEROS}
    rows = {(number, ROW) for number, tile in counted if tile == TENSOR and ROW in FORMATS[number].tiles}
    return sorted(counted | rows, key=lambda key: (FORMATS[key[0]].bits, key[0], -FORMATS[key[0]].tiles.index(key[1])))


class _Described(NamedTuple):
    """A grid of a format. tells: whether its groups are more than constants, or too few values to tell."""

    form: Format
    grid: TensorGrid
    tells: bool

    @classmethod
    def of(cls, key: Key, grids: Grids, values: int, shape: tuple[int, ...]) -> Self | None:
        """Name a grid by the counts of its tiles and of larger ones, which consist of them; None if nothing is on it."""
        form, tile = FORMATS[key[0]], key[1]
        view = (1, int(np.prod(shape))) if tile.flat else matrix(shape)
        size = view[0] * view[1] / tile.number(view)
        found = GridCounts()
        for (number, other), counts in grids.items():
            if number == key[0] and other.holds(tile):
                parts = counts.values / size / max(1, counts.counts.tiles[TESTED])
                found.add(counts) if other == tile else found.add(replace(counts, scales=(0.0, np.inf)), max(1.0, parts))
        tested, failed, _ = found.counts.tiles.tolist()
        if tested == failed:
            return None
        # a tile that was read in parts is one group, and off the grid if any part is; chunks without a tile on the grid were not counted
        unseen = values - (grids[ZEROS].values if ZEROS in grids else 0) - found.values
        name, bits, more = _name(form, tile, found, view, whole=not failed and unseen <= 0)
        groups = min(tested + -(-unseen * tested // max(1, found.values)), tile.number(view))
        off = min(groups, failed + more + groups - min(tested, groups))
        selected = log10(max(1.0, tested / SLOTS))  # the strongest of so many groups were kept
        needed = _needed(form, found) and (name != "nvfp4" or not found.powers)  # integers may share powers of two in small groups
        of_blocks = _BLOCK_DECADES if form.levels.floats else 0.0  # one scale for all leaves few different groups
        decades = max(0.0, of_blocks + float(np.maximum(found.counts.decades - selected, 0.0).sum()) - _TRIALS) if needed else 0.0
        grid = TensorGrid(
            format=name,
            group=tile.name,
            columns=tile.columns == 1,
            groups=groups,
            exceptions=off,
            log10_chance=-decades,
            bits=bits + form.scale_bits / size,
            proven=not off and unseen <= 0 and found.scales[0] <= found.scales[1] and decades >= -PROOF_LOG10,
        )
        return cls(form, grid, tells=found.decades >= PROMISING or found.powers)


def _needed(form: Format, found: GridCounts) -> bool:
    """Return whether values on a float's levels need the float."""
    blocks = _BLOCKS_OF_4_BITS if form.bits == 4 else _BLOCKS_OF_8_BITS
    return not form.levels.floats or bool(found.counts.reaching[0] >= blocks)


def _name(form: Format, tile: Tile, found: GridCounts, view: Shape, whole: bool) -> tuple[str, float, int]:
    """Return the name of a grid, the bits of a weight, and how many groups of integers take more bits by chance."""
    if form.levels.integers:
        (span, more), (own, _) = _bits(found.counts.spans, whole), _bits(found.counts.signed, whole)
        return ("ternary", log2(3), more) if max(span, own) == 1 else (f"int{span}{'_zp' * (own > span)}", span, more)
    powers, size = found.powers, view[0] * view[1] // tile.number(view)
    if form.bits == 4 and form.levels.floats:
        return "mxfp4" if powers and size % 32 == 0 else "nvfp4" if tile.name == "16" else form.name, 4, 0
    return "mx" * (form.levels.floats and powers and tile.name == "32") + form.name, form.bits, 0


def _bits(tiles: NDArray[np.int64], whole: bool) -> tuple[int, int]:
    """Return the bits that groups take, and the number of those left out: of a whole tensor a few that take at least two bits more, of a
    part those that have more by chance, so that the bits saved are the most.
    """
    most, so_far = int(np.flatnonzero(tiles).max(initial=0)), np.cumsum(tiles)
    usual = int(np.searchsorted(so_far, (1 - _FEW) * so_far[-1]) if whole else np.argmax(so_far * (_NATIVE_BITS - np.arange(len(tiles)))))
    return (usual, int(tiles[usual + 1 :].sum())) if most > usual + whole else (most, 0)
