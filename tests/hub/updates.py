"""Defines fine-tunes of virtual checkpoints: their changes of values."""

from collections.abc import Callable
from functools import partial

import numpy as np

from .generated import Floats, from_bf16, normal_values, to_bf16


def _none(values: Floats, _: np.random.Generator) -> Floats:
    return values


def _scattered(share: float, values: Floats, rng: np.random.Generator) -> Floats:
    """Move a random ``share`` of the values by one to eight steps of bf16 up or down."""
    moved = rng.random(len(values), dtype=np.float32) < share
    factor = 1 + rng.uniform(2**-7, 2**-5, len(values)) * rng.choice([-1, 1], len(values))
    return np.where(moved, values * factor, values).astype(np.float32)


def _small_steps(deviation: float, values: Floats, rng: np.random.Generator) -> Floats:
    """Add a normal step to every value, as in reinforcement learning; bf16 resolves only steps that are large relative to the value."""
    return values + rng.standard_normal(len(values), dtype=np.float32) * np.float32(deviation)


def _independent(values: Floats, rng: np.random.Generator) -> Floats:
    """Draw another model: other values of the same distribution, saved in bf16."""
    other = values.mean() + values.std() * rng.standard_normal(len(values), dtype=np.float32)
    return from_bf16(to_bf16(other.astype(np.float32)))


def _merged(weight: float, values: Floats, rng: np.random.Generator) -> Floats:
    """Merge linearly in fp32: ``weight`` of the model as saved in bf16, the rest of an independent one."""
    return np.float32(weight) * from_bf16(to_bf16(values)) + np.float32(1 - weight) * _independent(values, rng)


UPDATES: dict[str, Callable[[Floats, np.random.Generator], Floats]] = {
    "none": _none,
    "scattered-0.3": partial(_scattered, 0.3),
    "scattered-0.01": partial(_scattered, 0.01),
    "scattered-0.0001": partial(_scattered, 0.0001),
    "small-steps": partial(_small_steps, 1e-5),
    "independent": _independent,
    "merged-0.35": partial(_merged, 0.35),
}


def updated_values(update: str) -> tuple[Floats, Floats]:
    """Return `generated.normal_values` after an update, a key of UPDATES."""
    rng = np.random.default_rng(1)
    matrices, norms = (UPDATES[update](values, rng) for values in normal_values())
    return matrices, norms
