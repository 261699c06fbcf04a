"""Regular pieces are counted as NumPy counts any piece, in both directions; what is not regular is left to NumPy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from analyzers.checkpoints import Alignment, Chunk, Group, Span, Tensor, Unmatched
from analyzers.numerics.bins import CODE_TYPE
from analyzers.comparison.parents.count import BEYOND, Counted, Counter, Direction, MutualCounter, Piece, piece_length
from analyzers.comparison.parents.regular_pieces import PatternTables, count_regular
from tests.cases import few

Codes = NDArray[Any]
Sides = tuple[Codes, Codes]
ROWS = 40


def codes_of(values: NDArray[np.float64], dtype: str) -> Codes:
    """Round to a format: to fp8 roughly, by its nearest pattern among some."""
    narrow = values.astype(np.float32)
    if dtype == "F32":
        return narrow.view(np.uint32)
    if dtype == "F16":
        return narrow.astype(np.float16).view(np.uint16)
    if dtype == "BF16":
        bits = narrow.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    magnitudes = np.clip(np.nan_to_num(np.abs(values), nan=0.1) * 1000, 0, 100)
    return np.asarray(magnitudes.astype(np.uint8) | np.where(values < 0, 128, 0).astype(np.uint8))


def normal(number: int, seed: int) -> NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal(number) * 0.02


def tuned(number: int, share: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x = normal(number, 0)
    return x, np.where(np.random.default_rng(1).random(number) < share, x * (1 + 0.02 * normal(number, 2)), x)


def damaged(number: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Zeros of both signs, values that are not finite or too large, subnormal ones, outliers, and blocks of one value."""
    x, p = tuned(number, 0.3)
    at = np.random.default_rng(3).integers(0, number, 12)
    x[at[:4]], p[at[2:6]] = 0.0, -0.0
    x[at[6]], p[at[7]], x[at[8]], p[at[9]], x[at[10]], p[at[11]] = np.nan, np.inf, 3e6, 1e-40, 5.0, -7.0
    x[: number // 4], p[number // 2 : number * 3 // 4] = 0.5, 0.0
    return x, p


def smooth(number: int, width: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rows, columns = np.divmod(np.arange(number), width)
    table = np.sin(rows / 50 + columns / 5)
    return table, table + normal(number, 4) * 0.01


KINDS: dict[str, Callable[[int, int], tuple[NDArray[np.float64], NDArray[np.float64]]]] = {
    "equal": lambda number, _: tuned(number, 0.0),
    "few": lambda number, _: tuned(number, 0.01),
    "many": lambda number, _: tuned(number, 0.7),
    "unrelated": lambda number, _: (normal(number, 0), normal(number, 5)),
    "zeros": lambda number, _: (np.where(normal(number, 6) > 0, normal(number, 0), 0.0), normal(number, 0)),
    "damaged": lambda number, _: damaged(number),
    "smooth": smooth,
}
DTYPES = [("BF16", "BF16"), ("F32", "F32"), ("F16", "F16"), ("BF16", "F32"), ("F16", "BF16"), ("F32", "F16"), ("F8_E4M3", "BF16")]
CASES = [(kind, dtypes, width) for kind in KINDS for dtypes in DTYPES for width in (7, 128, 5000)]


def tensor(name: str, dtype: str, shape: tuple[int, ...]) -> Tensor:
    return Tensor(name, dtype, shape, 0, 0, int(np.prod(shape)) * np.dtype(CODE_TYPE[dtype]).itemsize, "mlp", 0, False)


def counters(dtypes: tuple[str, str], shape: tuple[int, int]) -> tuple[Span, Counter, Counter]:
    x, p = (tensor(name, dtype, shape) for name, dtype in zip("xp", dtypes, strict=True))
    number = shape[0] * shape[1]
    forward, backward = (
        Counter(Alignment((Group(one, (other,)),), (Unmatched(),)), 1, True, 0.05 if shape[1] == 128 else 1.0, number)
        for one, other in ((x, p), (p, x))
    )
    return Span((x, p), 0, number), forward, backward


def by_numpy(counter: Counter, sides: Sides, dtypes: tuple[str, str], width: int) -> Counted:
    """Count piece by piece with NumPy."""
    from analyzers.numerics.conversions import values_of

    direction, counted = Direction(counter, [0], False), Counted.empty(1)
    for start in range(0, sides[0].size, piece_length(width)):
        values = np.stack([values_of(side[start : start + piece_length(width)], dtype) for side, dtype in zip(sides, dtypes, strict=True)])
        direction.add_piece(counted, values, [values.shape[1]] * 2, Piece(dtypes, width, start // 4096, True))
    return counted


def assert_same(found: Counted, expected: Counted) -> None:
    np.testing.assert_array_equal(found.others, expected.others)
    np.testing.assert_array_equal(found.broken, expected.broken)
    np.testing.assert_array_equal(found.exact, expected.exact)
    assert found.outliers == expected.outliers and found.rounding == pytest.approx(expected.rounding, rel=1e-12)
    np.testing.assert_allclose(found.pairs, expected.pairs, rtol=1e-9, atol=1e-9)
    whole = [0, 1, 5, 12, *range(17, 20)]  # numbers of values
    np.testing.assert_array_equal(found.pairs[:, whole], expected.pairs[:, whole])
    assert {group for group, gram in found.grams.items() if gram.any()} == {group for group, gram in expected.grams.items() if gram.any()}
    for group, gram in found.grams.items():
        np.testing.assert_allclose(gram, expected.grams[group], rtol=1e-12, atol=1e-300)
    for mine, theirs in zip(*(np.concatenate(each.kept, axis=1) for each in (found, expected)), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(("kind", "dtypes", "width"), few(CASES, set(range(0, len(CASES), 11))))
def test_both_directions_are_counted_as_by_numpy(kind: str, dtypes: tuple[str, str], width: int) -> None:
    number = ROWS * max(1, 2000 // width) * width if width < 5000 else 12 * width
    sides: Sides = tuple(codes_of(values, dtype) for values, dtype in zip(KINDS[kind](number, width), dtypes, strict=True))  # type: ignore[assignment]
    span, forward, backward = counters(dtypes, (number // width, width))
    both = MutualCounter(forward, backward)
    counting = both.begin(span)
    half = number // 2 // piece_length(width) * piece_length(width)
    for start, stop in ((0, half), (half, number)):
        counting.add(Chunk(start, tuple(side[start:stop] for side in sides)))
    found = counting.take()
    both.settle()
    for counter, counted, order in ((forward, found[0], slice(None)), (backward, found[1], slice(None, None, -1))):
        these, stored = (sides, dtypes) if order.step is None else (sides[::-1], dtypes[::-1])
        _, plain, _ = counters(stored, (number // width, width))
        assert_same(counted, by_numpy(plain, these, stored, width))
        assert counter.chance(0) == plain.chance(0)


def test_native_values_are_regular_and_what_numpy_has_to_look_at_is_not() -> None:
    for kind, regular in (("few", 1.0), ("many", 1.0), ("unrelated", 1.0), ("smooth", 0.0)):
        sides = [codes_of(values, "BF16") for values in KINDS[kind](1 << 18, 128)]
        pieces = [each for _, each in count_regular(sides, ("BF16", "BF16"), 0, piece_length(128), 128, PatternTables(1), [0])]
        assert np.concatenate([each.regular for each in pieces]).mean() == regular
    x = codes_of(normal(1 << 15, 0), "BF16")
    for value in (np.inf, np.nan, 2 * BEYOND, 1e-40):
        broken = x.copy()
        broken[5] = codes_of(np.array([value]), "BF16")[0]
        for sides in ([x, broken], [broken, x], [broken, broken]):
            ((_, each),) = count_regular(sides, ("BF16", "BF16"), 0, piece_length(128), 128, PatternTables(1), [0])
            assert each.regular.tolist() == [False, True], value
