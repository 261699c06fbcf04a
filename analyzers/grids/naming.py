"""Names a grid by what counts tell of its levels and scales, and sums the evidence for it."""

from math import log2, log10

import numpy as np
from numpy.typing import NDArray

from analyzers.grids.code_books import BOOKS, CodeBook, Tile
from analyzers.grids.counts import GridCounts, matrix
from analyzers.grids.tensor_grid import TensorGrid
from analyzers.numerics.grid_kernels import DULL, FAILED, LARGEST, OUTLIERS, POWERS, SIGNED, SPANS, TESTED

# A proof needs odds below 10^-9 although so many grids are tried.
PROOF_LOG10 = -9.0
_TRIALS = log10(sum(len(book.tiles) for book in BOOKS))
MOST_BITS = 8
# Share of the tiles that may be on a grid by chance
FEW_TILES = 0.01
# Values on the same level that count
_SAME = 128
# The share of values of a float's normal range with all its significant bits, by the bits of its mantissa: about half of smoothly
# distributed ones (fewer beyond 2 of E2M1's coarse steps); of integers whose scales are any powers of two a seventh to two fifths, and
# more where many are clipped
_FINEST_SHARE = {1: (0.25, 1.0), 2: (0.45, 0.6), 3: (0.45, 0.6)}

Ints = NDArray[np.int64]


def bits_of(tiles: Ints) -> tuple[int, int]:
    """Return the bits of integers, from numbers of tiles by bits, and the number of tiles left out: those of a few in which an outlier is
    explained by chance, by at least two bits more.
    """
    most = int(np.flatnonzero(tiles).max(initial=0))
    usual = int(np.searchsorted(np.cumsum(tiles), (1 - FEW_TILES) * tiles.sum()))
    return (usual, int(tiles[usual + 1 :].sum())) if most > usual + 1 else (most, 0)


def name_of(book: CodeBook, weights: int, span: int, signed: int, ternary: bool, powers: bool) -> tuple[str, float, float]:
    """Return the name of a grid, the bits of a weight, and those of a scale for so many ``weights``, with its zero point.

    span, signed: bits of integers with a zero point and of signed ones; ternary: whether they are -1, 0 and 1; powers: whether scales are
    powers of two.
    """
    scale = float(book.scale_bits)
    if book.name == "offset":
        return f"int{span}_offset", span, scale
    if book.name == "int":
        if ternary:
            return "ternary", log2(3), scale
        return (f"int{span}_zp", span, scale + span) if signed > span else (f"int{span}", span, scale)
    name = book.name
    if book.powers:
        name = "mxfp4" if name == "fp4_mx" else f"mx{name}"
    elif book.mantissa and powers:
        mx = weights % 32 == 0 if book.bits == 4 else weights == 32
        name = ("mxfp4" if book.bits == 4 else f"mx{name}") if mx else name
    elif name == "fp4_e2m1" and weights == 16:
        name = "nvfp4"
    return name, book.bits, scale


def evidence_of(book: CodeBook, found: GridCounts) -> float:
    """Return the decades by which the odds that native values pass are below 1, over all grids tried."""
    decades = sum(found.decades.values()) - _TRIALS
    return max(0.0, decades) if not book.mantissa or _has_all_bits(book, found) else 0.0


def _has_all_bits(book: CodeBook, found: GridCounts) -> bool:
    """Return whether values of a float's normal range have all its significant bits as often as values do that need it."""
    (*used, fewer), _ = found.finest.T
    least, most = _FINEST_SHARE[book.mantissa]
    return bool(least <= sum(used) / max(1, sum(used) + fewer) <= most)


def evidence_of_whole(book: CodeBook, found: GridCounts) -> float:
    """Return the same of a float only as far as its values need it: all of them may be on a coarser grid."""
    if not book.mantissa or not _has_all_bits(book, found):
        return 0.0 if book.mantissa else evidence_of(book, found)
    (*used, _), (*twos, _) = found.finest.T
    needed = float(sum(powers * min(1.0, _SAME / number) for number, powers in zip(used, twos, strict=True) if number)) * log10(2)
    return min(evidence_of(book, found), needed)


def chance_of(found: GridCounts) -> float:
    """Return the geometric mean of the odds of a group."""
    return float(10 ** -(sum(found.decades.values()) / max(1, len(found.decades))))


def describe_counts(book: CodeBook, tile: Tile, found: GridCounts, elements: int, shape: tuple[int, ...]) -> TensorGrid | None:
    """Name the grid of a code book and tile from its counts, with the evidence for it; None if nothing is on it."""
    counts = found.counts
    tested, failed, outliers = int(counts[TESTED]), int(counts[FAILED]), int(counts[OUTLIERS])
    if tested == failed:
        return None
    rows, columns = map(min, tile.sides(view := (1, elements) if tile.flat else matrix(shape)), view)
    # a tile that was read in parts is one group, and off the grid if any part is
    groups = min(tested, -(-view[0] // rows) * -(-view[1] // columns))
    span = signed = 0
    if not book.bits:
        (span, others), (signed, _) = bits_of(counts[SPANS:SIGNED]), bits_of(counts[SIGNED:LARGEST])
        failed += others
        if span > MOST_BITS:
            return None
    powers = 2 * counts[POWERS] > tested  # the coarsest scale of a group of few levels may be another
    name, bits, scale = name_of(book, rows * columns, span, signed, counts[LARGEST] == 1, bool(powers))
    decades = evidence_of_whole(book, found)
    return TensorGrid(
        format=name,
        group=tile.name,
        columns=tile.rows > 1 and tile.columns == 1,
        groups=groups,
        exceptions=min(failed, groups),
        outliers=outliers,
        log10_chance=-decades,
        chance=chance_of(found),
        bits=bits + scale / (rows * columns),
        proven=not failed and not outliers and decades >= -PROOF_LOG10 and tested >= int(counts[DULL]) / 1000,
    )
