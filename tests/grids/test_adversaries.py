"""What was done to weights on a grid, and what only looks like it: no claim that trying all scales does not confirm, in exceptions too."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from analyzers.grids.tensor_grid import TensorGrid
from tests.dtype.quantized import Values, coded, fp8, integers, weights
from tests.grids.definitions import NF4
from tests.grids.grid import grid
from tests.grids.natives import natives
from tests.grids.oracle import groups_off

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
ROWS, COLUMNS = 32, 256


def found(values: torch.Tensor, part: int = 0) -> TensorGrid | None:
    """Return the grid of a matrix, read whole or every other ``part`` elements."""
    return grid(values, part or values.numel(), 2 * part or values.numel())


def off_grid(values: torch.Tensor, grid: TensorGrid) -> int:
    """Count the groups that are off, of what the values were rounded to last."""
    narrow = values.to(BF16)
    last = narrow if torch.equal(narrow.to(values.dtype), values) else values
    return groups_off(last, grid.format, int(grid.group) if grid.group.isdigit() else values.shape[1])


def stored(values: NDArray[np.floating], dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).float().to(dtype)


def int4(seed: int = 0, columns: int = COLUMNS) -> Values:
    return integers(weights(ROWS, columns, seed), 4, 32, False, F32)


def changed(share: float, noise: float = 1e-3) -> Values:
    """Fine-tune all but a share of the groups."""
    rng, x = np.random.default_rng(1), int4().reshape(-1, 32)
    return np.where(rng.random((len(x), 1)) < share, x, x + rng.standard_normal(x.shape) * noise).reshape(ROWS, COLUMNS)


def set_in_each_group(value: float, groups: slice) -> Values:
    x = int4().reshape(-1, 32)
    x[groups, 5] = value
    return x.reshape(ROWS, COLUMNS)


def randomly_rounded(values: Values) -> torch.Tensor:
    """Round to either bf16 neighbour, with the probability of its distance."""
    bits = torch.from_numpy(values.astype(np.float32)).view(torch.int32)
    noise = torch.randint(0, 1 << 16, bits.shape, generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    return ((bits + noise) & ~0xFFFF).view(F32).to(BF16)


def pruned(values: Values, share: float) -> Values:
    return values * (np.random.default_rng(2).random(values.shape) >= share)


def clustered(size: int) -> Values:
    """Share ``size`` values among all weights, as k-means does."""
    x = weights(ROWS, COLUMNS)
    levels = np.sort(np.random.default_rng(3).choice(x.ravel(), size, replace=False))
    return np.asarray(levels[np.abs(x[..., None] - levels).argmin(-1)])


def optimizer_states() -> Values:
    """Momenta in blocks of 8-bit integers, subtracted from native weights: nothing of their grid is left."""
    return weights(ROWS, COLUMNS) - 1e-2 * integers(weights(ROWS, COLUMNS, 5), 8, 256, False, F32)


def constants() -> Values:
    """Groups of one value or of zeros among others."""
    x = int4().reshape(-1, 32)
    x[::5], x[1::5] = x[::5, :1], 0
    return x.reshape(ROWS, COLUMNS)


# On a grid as a whole: the name
WHOLE: dict[str, tuple[Callable[[], torch.Tensor], set[str]]] = {
    "pruned after it was quantized": (lambda: stored(pruned(int4(), 0.5)), {"int4"}),
    "groups of constants and zeros": (lambda: stored(constants()), {"int4"}),
    "a width of no whole number of groups": (lambda: stored(int4(0, 320)[:, :308]), {"int4"}),
    "fused projections": (lambda: stored(np.concatenate([int4(seed) for seed in range(3)])), {"int4"}),
    "through fp16 and back": (lambda: stored(int4()).to(F16).to(BF16), {"int4"}),
    "in fp32 after bf16": (lambda: stored(int4()).to(F32), {"int4"}),
    "int4 beside int8": (lambda: stored(np.concatenate([int4(), integers(weights(ROWS, COLUMNS, 1), 8, 32, False, F32)])), {"int8"}),
    "subnormal scales in fp32": (lambda: stored(int4() * 1e-35, F32), {"int4"}),
    "fp8 with a scale per row": (lambda: fp8(weights(ROWS, COLUMNS), torch.float8_e4m3fn, 1, 0).to(BF16), {"fp8_e4m3"}),
}
# Only in part, or not any more
NOT_WHOLE: dict[str, Callable[[], torch.Tensor]] = {
    "a third of the groups untouched": lambda: stored(changed(0.3)),
    "one group in twenty untouched": lambda: stored(changed(0.05)),
    "half native": lambda: stored(np.concatenate([int4()[: ROWS // 2], weights(ROWS // 2, COLUMNS, 7)])),
    "half native, the first": lambda: stored(np.concatenate([weights(ROWS // 2, COLUMNS, 7), int4()[: ROWS // 2]])),
    "fused with a native projection": lambda: stored(np.concatenate([int4(), int4(1), weights(ROWS, COLUMNS, 7)])),
    "an outlier in each group": lambda: stored(set_in_each_group(0.7123, slice(None))),
    "an outlier in a few groups": lambda: stored(set_in_each_group(0.7123, slice(0, 9))),
    "NaN in a few groups": lambda: stored(set_in_each_group(np.nan, slice(0, 9))),
    "an infinity in one group": lambda: stored(set_in_each_group(np.inf, slice(3, 4))),
    "int4 beside NF4": lambda: stored(np.concatenate([int4(), coded(weights(ROWS, COLUMNS, 1), np.array(NF4), 64)])),
}
# Native, whatever was done before, beside those of `natives`
NATIVE: dict[str, Callable[[], torch.Tensor]] = {
    "int4 rounded at random": lambda: randomly_rounded(int4()),
    "native, rounded at random": lambda: randomly_rounded(weights(ROWS, COLUMNS)),
    "through fp16, small": lambda: stored(weights(ROWS, COLUMNS) * 1e-4).to(F16).to(BF16),
    "an 8-bit optimizer": lambda: stored(optimizer_states()),
    "16 clusters": lambda: stored(clustered(16)),
    "256 clusters": lambda: stored(clustered(256)),
}
SOME = ("an outlier in a few groups", "a width of no whole number of groups", "16 clusters")


def _cases(names: object) -> list[object]:
    assert isinstance(names, dict)
    return [pytest.param(name, id=name, marks=[pytest.mark.exhaustive] * (name not in SOME)) for name in names]


@pytest.mark.parametrize("part", [0, 1024])
@pytest.mark.parametrize("name", _cases(WHOLE))
def test_what_is_on_a_grid_is_named_and_confirmed(name: str, part: int) -> None:
    values, formats = WHOLE[name][0](), WHOLE[name][1]
    named = found(values, part)
    assert named is not None and named.proven and named.format in formats and named.exceptions == 0
    assert off_grid(values, named) == 0


@pytest.mark.parametrize("part", [0, 1024])
@pytest.mark.parametrize("name", _cases(NOT_WHOLE))
def test_what_is_on_a_grid_in_part_is_no_proof_and_its_exceptions_are_counted(name: str, part: int) -> None:
    """Integers of more bits may explain all: outliers are among them by chance."""
    values = NOT_WHOLE[name]()
    named = found(values, part)
    if named is not None and not part:
        assert named.exceptions <= off_grid(values, named)
    assert named is None or not named.proven or named.format == "int8_zp"


def test_parts_that_tell_little_are_no_evidence_together() -> None:
    kinds = ("rare rows, bfloat16", "norm above 1, float32", "norm near 1, float32", "one value in each group, bfloat16")
    for kind, values in [(kind, values) for kind, values in natives(600) if kind in kinds]:
        for part in (0, 4096 // values.element_size()):
            named = found(values, part)
            assert named is None or not named.proven, kind


@pytest.mark.parametrize("part", [0, 1024])
@pytest.mark.parametrize("name", _cases(NATIVE))
def test_natives_are_on_no_grid(name: str, part: int) -> None:
    named = found(NATIVE[name](), part)
    assert named is None or not named.proven
