"""Computes the figures of parents from their definitions, in float64 numpy; counts of pairs are those of `tests.sparsity.oracle`."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from tests.sparsity.oracle import Floats, bf16, same, values

Tensors = Mapping[str, torch.Tensor]


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
    x, p = (np.concatenate([values(state[name]).ravel() for name in names]) for state in (model, candidate))
    a, b = bf16(x), bf16(p)
    shares = [dict(zip(*np.unique(side + 0.0, return_counts=True), strict=True)) for side in (a, b)]
    by_chance = sum(float(count) * float(shares[1].get(value, 0)) for value, count in shares[0].items()) / a.size / b.size
    finite = np.isfinite(x) & np.isfinite(p)
    x, p = x[finite], p[finite]
    norm, other = float(np.linalg.norm(x)), float(np.linalg.norm(p))
    return Likeness(a.size, float(same(a, b).mean()), by_chance, float(np.linalg.norm(x - p)) / other, float(x @ p) / (norm * other))


def least_squares(model: Tensors, candidates: Sequence[Tensors]) -> Floats:
    """Return the weights a that minimise |X - sum of a_i P_i| over matrices."""
    names = [name for name, x in model.items() if x.dim() > 1]
    columns = [np.concatenate([values(state[name]).ravel() for name in names]) for state in (*candidates, model)]
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
