"""Implements the published constructions of `hybrid`, `parallel_gold` and `parallel_topmass` token by token, in NumPy and float64.

Only the random parts are taken from the head under test: codes, columns, buckets and signs. Per token: h (d,), e (V,) the gradient of the
loss with respect to y = W h + b, error (V,) that with respect to the logits z = cap tanh(scale y / cap), from which tokens are chosen.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.exit.plain_head import IGNORED, Case

Vector = NDArray[np.float64]


def errors_of(case: Case, token: int) -> tuple[Vector, Vector, Vector]:
    """Return error, e and the probabilities p (V,) of a mean cross-entropy over the tokens that are not ignored."""
    weight, h = case.weight.double().numpy(), case.h[token].double().numpy()
    y = weight @ h + (0 if case.bias is None else case.bias.double().numpy())
    z, slope = case.scale * y, np.full_like(y, case.scale)
    if case.cap is not None:
        z = case.cap * np.tanh(case.scale * y / case.cap)
        slope = case.scale * (1 - (z / case.cap) ** 2)
    p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
    error = p.copy()
    error[int(case.targets[token])] -= 1
    error /= int((case.targets != IGNORED).sum())
    return error, error * slope, p


def hybrid(case: Case, token: int, draws: Any, k: int, alpha: float, by_magnitude: bool) -> Vector:
    """Return alpha [exact, tail] U^T."""
    gold = int(case.targets[token])
    if gold == IGNORED:
        return np.zeros(case.h.shape[1])
    error, e, _ = errors_of(case, token)
    size = abs(error) if by_magnitude else error
    chosen = {gold, *sorted(range(len(e)), key=lambda v: -size[v])[:k]}
    exact = np.zeros(draws.codes.shape[1])
    tail = np.zeros(draws.expander.shape[1] - draws.codes.shape[1])
    for v in range(len(e)):
        if v in chosen:
            exact += e[v] * draws.codes[v].double().numpy()
        else:
            tail[int(draws.bucket[v])] += float(draws.sign[v]) * e[v]
    signal: Vector = alpha * draws.expander.double().numpy() @ np.concatenate([exact, tail])
    return signal


def coded_tokens(case: Case, token: int, mass_threshold: float | None) -> set[int]:
    """Return the gold token and, given a threshold, the most probable ones up to that cumulative probability: at least 1, at most 200."""
    _, _, p = errors_of(case, token)
    tokens, mass = {int(case.targets[token])}, 0.0
    if mass_threshold is not None:
        for number, v in enumerate(sorted(range(len(p)), key=lambda v: -p[v])):
            mass = min(1.0, mass + p[v])
            if number == 200 or (number and mass > mass_threshold):
                break
            tokens.add(v)
    return tokens


def parallel(case: Case, token: int, draws: Any, lam: float, mass_threshold: float | None) -> Vector:
    """Return the component of W^T e along h, plus lambda R(h) c. mass_threshold: None for parallel_gold."""
    h, weight = case.h[token].double().numpy(), case.weight.double().numpy()
    if int(case.targets[token]) == IGNORED:
        return np.zeros_like(h)
    _, e, _ = errors_of(case, token)
    c = sum(e[v] * draws.codes[v].double().numpy() for v in coded_tokens(case, token, mass_threshold))
    signal: Vector = (e @ weight @ h) / (h @ h) * h
    for column, weight_of_column in zip(draws.expander.double().numpy().T, c, strict=True):
        projected = column - (column @ h) / (h @ h) * h
        signal = signal + lam * weight_of_column * projected / np.linalg.norm(projected)
    return signal
