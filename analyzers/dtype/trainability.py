"""Further readings of the histograms: the weights that a step can move, those that never moved, and the bits that weights carry."""

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import ROLES, Tensor
from analyzers.checkpoints.tensor import DTYPE_BITS
from analyzers.dtype.rows import Entropy, Movable
from analyzers.numerics import BF16, FP16, NARROW, BitHistogram, FloatFormat, bins

# Steps |dw|, about the learning rate under Adam, two per decade
STEPS = (1e-8, 3e-8, 1e-7, 3e-7, 1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
_FORMATS = {"bf16": BF16, "fp16": FP16}
# Planes of a wide histogram whose low bits are not known well enough to round them
_SPLIT_PLANES = (0, 1, 2)
# Share of a norm's or bias's entries at their initial value from which the tensor is worth naming
UNTOUCHED_SHARE = 0.5


class Pool(NamedTuple):
    """Tensors of one dtype, role and rank. values: their histogram; elements: their number, read or not."""

    dtype: str
    role: str
    values: BitHistogram
    elements: int

    @property
    def weight(self) -> float:
        """Number of elements that one element read represents."""
        return self.elements / max(1, self.values.values)


def reach(weights: NDArray[np.float64], target: FloatFormat) -> NDArray[np.float64]:
    """Compute the step |dw| below which w + dw and w - dw both round (to nearest even) to w in ``target``, for finite ``weights`` of it.

    Returns the shape of ``weights``. This is half the distance to the nearer neighbour: ulp/2, and ulp/4 for a normal power of two, whose
    lower neighbour is nearer.
    """
    ulp = target.ulp(weights)
    power = (np.abs(np.frexp(weights)[0]) == 0.5) & (np.abs(weights) > target.smallest_normal)
    return np.where(power, ulp / 4, ulp / 2)


@cache
def _frozen_steps(dtype: str, name: str) -> NDArray[np.int8]:
    """Count the `STEPS` that do not move the values of a bin of ``dtype``, once they are rounded to the format ``name``: (2, bins).

    The two rows differ if the bin does not tell whether its values round down or up: each row then stands for half of them.
    """
    target, values, steps = _FORMATS[name], bins(dtype).value, []
    for plane, start in enumerate(range(0, values.size, 1 << 16)):  # one at a time: intermediate results of all need 60 MB
        value = values[start : start + (1 << 16)]
        value = np.clip(np.where(np.isfinite(value), value, 0.0), -target.largest, target.largest)
        ulp = target.ulp(value)
        rounded = np.stack([np.rint(value / ulp) * ulp] * 2)
        if dtype not in NARROW and plane in _SPLIT_PLANES:
            down = np.trunc(value / ulp) * ulp
            rounded = np.stack([down, down + np.copysign(ulp, value)])
        steps.append(np.searchsorted(STEPS, reach(np.clip(rounded, -target.largest, target.largest), target)).astype(np.int8))
    return np.concatenate(steps, axis=1)


def movable(pools: Iterable[Pool], name: str) -> Movable | None:
    """Compute `report.Movable` for ``pools`` in the format ``name``, bf16 or fp16; None if no finite value was read."""
    target = _FORMATS[name]
    by_role: dict[str, NDArray[np.float64]] = {}
    flips, total = np.zeros(len(STEPS)), 0.0
    for pool in pools:
        table = bins(pool.values.dtype)
        finite = ~(table.nan | table.inf)[pool.values.index]
        index, counts = pool.values.index[finite], pool.values.counts[finite]
        if not counts.size:
            continue
        steps = _frozen_steps(pool.values.dtype, name)
        frozen = sum(np.bincount(each[index], counts, len(STEPS) + 1) for each in steps) / 2
        by_role[pool.role] = by_role.get(pool.role, np.zeros(len(STEPS) + 1)) + pool.weight * frozen
        ulps, group = np.unique(target.ulp(table.value[index]), return_inverse=True)
        flips += pool.weight * np.bincount(group, counts) @ np.minimum(1, np.array(STEPS) / ulps[:, None])
        total += pool.weight * float(counts.sum())
    if not by_role:
        return None
    return Movable(
        format=name,
        steps=STEPS,
        frozen=_shares(sum(by_role.values(), np.zeros(len(STEPS) + 1))),
        expected_flips=tuple((flips / total).tolist()),
        roles={role: _shares(by_role[role]) for role in ROLES if role in by_role},
    )


def _shares(counts: NDArray[np.float64]) -> tuple[float, ...]:
    """Turn counts (14,) of values by the number of steps that do not move them into the share that each step does not move, (13,)."""
    above = np.cumsum(counts[::-1])[::-1]
    return tuple((above[1:] / above[0]).tolist())


def untouched(tensor: Tensor, values: BitHistogram) -> tuple[float, float] | None:
    """Return (value, share) for a tensor that training may never have changed, else None.

    Either all values read are one constant, or the tensor is a norm or a bias and at least half of its values are exactly at an initial
    value, 1 or 0. None if fewer than two values were read.
    """
    number = values.values
    if number < 2:
        return None
    table = bins(values.dtype)
    if values.high is None and values.count(table.zero) == number:
        return 0.0, 1.0
    if values.low is not None and values.low == values.high and values.count(table.finite_nonzero) == number:
        signs = np.unique(np.sign(table.value[values.index]))
        if len(signs) == 1:
            return float(signs[0]) * values.low, 1.0
    if len(tensor.shape) != 1 or not (tensor.role == "norm" or tensor.name.endswith("bias")):
        return None
    ones = int(values.counts[table.value[values.index] == 1.0].sum())  # only a bin of a single value has 1 as its representative
    at, value = max((values.count(table.zero), 0.0), (0 if tensor.name.endswith("bias") else ones, 1.0))
    return (value, at / number) if at >= UNTOUCHED_SHARE * number else None


def entropy(pools: Iterable[Pool]) -> Entropy | None:
    """Compute `report.Entropy` for the dtype with the most elements among those stored as plain floats; None if there are none."""
    by_dtype: dict[str, list[Pool]] = {}
    for pool in pools:
        if pool.dtype == pool.values.dtype and pool.values.counts.size:
            by_dtype.setdefault(pool.dtype, []).append(pool)
    if not by_dtype:
        return None
    dtype = max(by_dtype, key=lambda name: sum(pool.elements for pool in by_dtype[name]))
    narrow = NARROW.get(dtype)
    mantissa, exponent = (narrow.mantissa_bits, narrow.exponent_bits) if narrow else (7, 8)
    pattern = np.concatenate([pool.values.index & 0xFFFF for pool in by_dtype[dtype]])
    counts = np.concatenate([pool.weight * pool.values.counts for pool in by_dtype[dtype]])
    return Entropy(
        dtype=dtype,
        stored_bits=DTYPE_BITS[dtype],
        bits_per_weight=_bits(pattern, counts) if narrow else None,
        high_half_bits=_bits(pattern, counts) if dtype == "F32" else None,
        exponent_bits=_bits(pattern >> mantissa & (1 << exponent) - 1, counts),
    )


def _bits(symbols: NDArray[np.int64], counts: NDArray[np.float64]) -> float:
    """Compute the Shannon entropy in bits of ``symbols``, which occur ``counts`` times each."""
    occurrences = np.bincount(symbols, counts)
    probabilities = occurrences[occurrences > 0] / counts.sum()
    return max(0.0, float(-(probabilities * np.log2(probabilities)).sum()))
