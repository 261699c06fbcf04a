"""Counts the groups that no scale explains, by trying all scales: slow, and without the code under test."""

import numpy as np
import torch
from numpy.typing import NDArray

from tests.grids.definitions import FP4, NF4

Values = NDArray[np.float64]

_SIGNED = np.arange(-255.0, 256)
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
_SLACK = 2.0**-22


def _floats(kind: torch.dtype) -> Values:
    every = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(kind).double().numpy()
    return np.unique(every[np.isfinite(every)])


def levels_of(name: str) -> Values:
    """Return the levels of a format that `dtype` names."""
    if name.startswith(("int", "ternary")):
        return _SIGNED
    tables = {"nf4": np.array(NF4), "fp4_bnb": np.array(FP4)}
    floats = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
    return (tables | {key: _floats(kind) for key, kind in floats.items()}).get(name.removeprefix("mx"), np.union1d(-_E2M1, _E2M1))


def cells(values: torch.Tensor) -> tuple[Values, Values]:
    """Return the lowest and highest numbers that round to each value."""
    infinity = torch.tensor(torch.inf, dtype=values.dtype)
    below, above = (torch.nextafter(values, sign * infinity).double().numpy() for sign in (-1, 1))
    own = values.double().numpy()
    slack = np.abs(own) * _SLACK
    return (below + own) / 2 - slack, (above + own) / 2 + slack


def explained(low: Values, high: Values, levels: Values, bits: int) -> bool:
    """Return whether some scale puts a level into each cell; of integers, at most 2^bits of them in a row, 0 included."""
    with np.errstate(divide="ignore", invalid="ignore"):  # scales at which a cell gets a level or loses it
        scales = np.unique(np.concatenate([(end[:, None] / levels).ravel() for end in (low, high)]))
    scales = scales[np.isfinite(scales) & (scales > 0), None]
    slack = 1e-12 * np.maximum(np.abs(low), np.abs(high))
    used = levels[np.clip(np.searchsorted(levels, (low - slack) / scales), 0, len(levels) - 1)]
    fits = np.all((used * scales >= low - slack) & (used * scales <= high + slack), axis=1)
    if levels is _SIGNED:
        fits &= np.maximum(used.max(1), 0) - np.minimum(used.min(1), 0) < 2**bits
    return bool(fits.any())


def groups_off(values: torch.Tensor, name: str, group: int) -> int:
    """Count the groups of neighbours in a row that are off a grid."""
    finite = np.isfinite(values.double().numpy())
    low, high = cells(values.nan_to_num(0, 0, 0))
    bits = {"ternary": 2}.get(name) or (int(name[3]) if name.startswith("int") else 0)
    parts = [(slice(row, row + 1), slice(at, at + group)) for row in range(len(low)) for at in range(0, low.shape[1], group)]
    return sum(not (finite[part].all() and explained(np.unique(low[part]), np.unique(high[part]), levels_of(name), bits)) for part in parts)
