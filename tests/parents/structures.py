"""Draws matrices with structure that unrelated models share. Each builder takes a generator, rows and columns."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from tests.parents.checkpoints import BF16, F32, Tensors

Matrix = NDArray[np.float64]
Builder = Callable[[np.random.Generator, int, int], Matrix]


def _fixed(rows: int, columns: int) -> np.random.Generator:
    """Return the generator of the part that all models share."""
    return np.random.default_rng(rows * 10_007 + columns)


def gaussian(rng: np.random.Generator, rows: int, columns: int) -> Matrix:
    return 0.02 * rng.standard_normal((rows, columns))


def shared_zeros(rng: np.random.Generator, rows: int, columns: int) -> Matrix:
    """Prune 4% of the columns, the same in all models."""
    return gaussian(rng, rows, columns) * (_fixed(rows, columns).random(columns) > 0.04)


def shared_mask(rng: np.random.Generator, rows: int, columns: int) -> Matrix:
    return gaussian(rng, rows, columns) * (_fixed(rows, columns).random((rows, columns)) > 0.5)


def identity(rng: np.random.Generator, rows: int, columns: int) -> Matrix:
    return np.eye(rows, columns) + gaussian(rng, rows, columns) / 4


def orthogonal(rng: np.random.Generator, rows: int, columns: int) -> Matrix:
    square: Matrix = np.linalg.qr(rng.standard_normal((max(rows, columns),) * 2))[0]
    return np.asarray(square[:rows, :columns])


def massive_channels(rng: np.random.Generator, rows: int, columns: int) -> Matrix:
    """Put large values of one sign into the same few channels."""
    matrix = gaussian(rng, rows, columns)
    matrix[:, _fixed(rows, columns).choice(columns, 3, replace=False)] += 1 + 0.1 * rng.standard_normal((rows, 3))
    return matrix


def massive_weights(rng: np.random.Generator, rows: int, columns: int) -> Matrix:
    matrix = gaussian(rng, rows, columns)
    matrix[tuple(_fixed(rows, columns).integers((rows, columns), size=(4, 2)).T)] = 20
    return matrix


def zipf_rows(rng: np.random.Generator, rows: int, columns: int) -> Matrix:
    return gaussian(rng, rows, columns) * (1 / np.arange(1, rows + 1))[:, None]


def sinusoidal(rng: np.random.Generator, rows: int, columns: int) -> Matrix:
    """Use the table of positions of Vaswani et al. (2017) as every third matrix."""
    if rows % 3:
        return gaussian(rng, rows, columns)
    angles = np.arange(rows)[:, None] / 10_000 ** (np.arange(0, columns, 2) / columns)
    return np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(rows, -1)[:, :columns]


def non_negative(rng: np.random.Generator, rows: int, columns: int) -> Matrix:
    return np.abs(gaussian(rng, rows, columns))


def log_normal(rng: np.random.Generator, rows: int, columns: int) -> Matrix:
    return 0.01 * np.exp(1.5 * rng.standard_normal((rows, columns)))


def constants(rng: np.random.Generator, rows: int, columns: int) -> Matrix:
    """Fill half of the rows with one value."""
    matrix = gaussian(rng, rows, columns)
    matrix[: rows // 2] = 0.5
    return matrix


def shared_means(rng: np.random.Generator, rows: int, columns: int) -> Matrix:
    """Use the same means of rows and columns in all models."""
    fixed = _fixed(rows, columns)
    return gaussian(rng, rows, columns) + 0.05 * fixed.standard_normal((rows, 1)) + 0.05 * fixed.standard_normal(columns)


def small_vocabulary(rng: np.random.Generator, rows: int, columns: int) -> Matrix:
    """Draw from sixteen values, as in MXFP4."""
    grid = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    sizes = rng.choice(grid, (rows, columns), p=[0.1, 0.25, 0.2, 0.15, 0.12, 0.1, 0.05, 0.03])
    return np.asarray(0.01 * rng.choice([-1.0, 1.0], (rows, columns)) * sizes, np.float64)


def ternary(rng: np.random.Generator, rows: int, columns: int) -> Matrix:
    return np.asarray(0.03 * rng.choice([-1.0, 0.0, 1.0], (rows, columns), p=[0.3, 0.4, 0.3]), np.float64)


def integers(rng: np.random.Generator, rows: int, columns: int) -> Matrix:
    return np.round(30 * rng.standard_normal((rows, columns)))


def cosines(rng: np.random.Generator, rows: int, columns: int) -> Matrix:
    """Start all models from the discrete cosine transform."""
    angles = np.pi * (np.arange(columns) + 0.5) * np.arange(rows)[:, None] / columns
    return np.asarray(np.sqrt(2 / columns) * np.cos(angles) + 0.05 * rng.standard_normal((rows, columns)))


def noisy_positions(rng: np.random.Generator, rows: int, columns: int) -> Matrix:
    """Add noise to a table of positions."""
    angles = np.arange(rows)[:, None] / 10_000 ** (np.arange(0, columns, 2) / columns)
    table = np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(rows, -1)[:, :columns]
    return np.asarray(table + 0.3 * rng.standard_normal((rows, columns)))


def sign_pattern(rng: np.random.Generator, rows: int, columns: int) -> Matrix:
    """Use the same product of a row's and a column's sign in all models."""
    fixed = _fixed(rows, columns)
    return np.asarray(np.abs(gaussian(rng, rows, columns)) * fixed.choice([-1, 1], (rows, 1)) * fixed.choice([-1, 1], columns))


def counts(rng: np.random.Generator, rows: int, columns: int) -> Matrix:
    """Draw independent counts with the same marginals, but not the same rates."""
    fixed = _fixed(rows, columns)
    return rng.poisson(fixed.lognormal(0, 1, (rows, 1)) * fixed.lognormal(0, 1, columns)).astype(np.float64)


# Structures that a common initial table may have, which do not show whether models descend from each other.
SHARED: tuple[Builder, ...] = (cosines, noisy_positions, sign_pattern, counts)

STRUCTURES: tuple[Builder, ...] = (
    gaussian, shared_zeros, shared_mask, identity, orthogonal, massive_channels, massive_weights, zipf_rows, sinusoidal, non_negative,
    log_normal, constants, shared_means, small_vocabulary, ternary, integers,
)  # fmt: skip


def structured(build: Builder, seed: int, layers: int = 4, width: int = 96, vocabulary: int = 384, dtype: torch.dtype = BF16) -> Tensors:
    """Make a small decoder whose matrices all have the structure."""
    rng = np.random.default_rng(seed)
    shapes = {"model.embed_tokens.weight": (vocabulary, width)}
    for layer in range(layers):
        start = f"model.layers.{layer}."
        shapes |= {
            f"{start}self_attn.q_proj.weight": (width, width),
            f"{start}self_attn.o_proj.weight": (width, width + 32),
            f"{start}mlp.up_proj.weight": (2 * width + 32, width),
            f"{start}mlp.down_proj.weight": (width, 2 * width + 32),
        }
    tensors = {name: torch.from_numpy(build(rng, *shape).astype(np.float32)) for name, shape in shapes.items()}
    return {name: tensor.to(dtype) for name, tensor in tensors.items()} | {"model.norm.weight": torch.ones(width, dtype=dtype)}


def update(tensors: Tensors, size: float, seed: int, changed: float = 1.0, dtype: torch.dtype | None = None) -> Tensors:
    """Move a share ``changed`` of the values by ``size`` times the spread of the middle values of each row."""
    generator = torch.Generator().manual_seed(seed)

    def move(x: torch.Tensor) -> torch.Tensor:
        wide = x.to(F32)
        if x.dim() < 2:
            return x
        scale = (wide - wide.median(dim=1, keepdim=True).values).abs().quantile(0.75, dim=1, keepdim=True)
        step = size * scale * torch.randn(x.shape, generator=generator) * (torch.rand(x.shape, generator=generator) < changed)
        return (wide + step).to(dtype or x.dtype)

    return {name: move(tensor) for name, tensor in tensors.items()}
