"""Computes sparsity and the figures of parents from their definitions, in float64 numpy. Only the rounding to a dtype is torch's."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

Tensors = Mapping[str, torch.Tensor]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

ETA = 1e-3


def values(x: torch.Tensor) -> Floats:
    """Return the stored values, all of which float64 represents."""
    return np.asarray(x.to(torch.float64).numpy().ravel())


def bf16(x: torch.Tensor) -> Floats:
    """Return the values rounded to bf16, ties to even."""
    return values(x.to(torch.float32).to(torch.bfloat16))


def same(a: Floats, b: Floats) -> Mask:
    """Return where values are equal as numbers, or both NaN."""
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))


class Counts(NamedTuple):
    """Counts and sums of one pair of tensors W, V; the sums are over pairs of finite values."""

    values: int
    changed: int
    probe: int
    swallowed: int
    update: Floats

    @property
    def norm(self) -> float:
        return float(np.sqrt(np.square(self.update).sum()))


def counts(base: torch.Tensor, tuned: torch.Tensor) -> Counts:
    """Count by the definitions: changed in bf16, beyond the probe on stored values, and swallowed by bf16."""
    w, v = values(base), values(tuned)
    finite = np.isfinite(w) & np.isfinite(v)
    differ, changed = ~same(w, v), ~same(bf16(base), bf16(tuned))
    update = np.abs(np.where(finite, v, 0) - np.where(finite, w, 0))
    probe = np.where(finite, update > ETA * np.maximum(np.abs(w), np.abs(v)), differ)
    return Counts(w.size, int(changed.sum()), int(probe.sum()), int((differ & ~changed).sum()), update[finite])


class Likeness(NamedTuple):
    """Figures of a candidate P beside X, over matrices; distance and cosine over pairs of finite values."""

    compared: int
    equal_share: float
    equal_by_chance: float
    distance: float
    cosine: float


def likeness(model: Tensors, candidate: Tensors) -> Likeness:
    """Return the figures over all matrices that both have with one shape."""
    names = [name for name, x in model.items() if x.dim() > 1 and name in candidate and candidate[name].shape == x.shape]
    rounded = [np.concatenate([bf16(state[name]) for name in names]) for state in (model, candidate)]
    x, p = (np.concatenate([values(state[name]) for name in names]) for state in (model, candidate))
    finite = np.isfinite(x) & np.isfinite(p)
    x, p = x[finite], p[finite]
    return Likeness(
        rounded[0].size,
        float(same(*rounded).mean()),
        _by_chance(*rounded),
        float(np.linalg.norm(x - p) / np.linalg.norm(p)),
        float(x @ p / (np.linalg.norm(x) * np.linalg.norm(p))),
    )


def _by_chance(x: Floats, p: Floats) -> float:
    """Return the sum over values v of P(x = v) P(p = v)."""
    shares = [dict(zip(*np.unique(side + 0.0, return_counts=True), strict=True)) for side in (x, p)]
    return sum(float(count) * float(shares[1].get(value, 0)) for value, count in shares[0].items()) / x.size / p.size


def least_squares(model: Tensors, candidates: Sequence[Tensors]) -> Floats:
    """Return the weights a that minimise |X - sum of a_i P_i| over matrices."""
    names = [name for name, x in model.items() if x.dim() > 1]
    columns = [np.concatenate([values(state[name]) for name in names]) for state in (*candidates, model)]
    return np.asarray(np.linalg.lstsq(np.stack(columns[:-1], axis=1), columns[-1], rcond=None)[0])


def exact_share(model: Tensors, candidates: Sequence[Tensors], weights: Sequence[float]) -> float:
    """Return the share of values in matrices that equal the combination, rounded once to the dtype of X."""
    hits = total = 0
    for name, x in model.items():
        if x.dim() > 1:
            combined = sum(weight * state[name].double() for weight, state in zip(weights, candidates, strict=True))
            assert isinstance(combined, torch.Tensor)
            hits, total = hits + int((combined.to(x.dtype) == x).sum()), total + x.numel()
    return hits / total


def differing(model: Tensors, candidate: Tensors) -> set[str]:
    """Return the names of tensors that are not equal as numbers, element by element."""
    return {name for name, x in model.items() if name not in candidate or not same(values(x), values(candidate[name])).all()}
