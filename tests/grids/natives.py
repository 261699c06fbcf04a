"""Tensors that no quantizer has made, of every kind that could be mistaken for its work: 2,000 of them, seeded."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from tests.grids.definitions import integers, trained, weights

Array = NDArray[np.float64]
Kind = Callable[[np.random.Generator, int, int], Array]
ROWS, COLUMNS = 64, 256
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _normal(rng: np.random.Generator, rows: int, columns: int) -> Array:
    return np.asarray(rng.standard_normal((rows, columns)) * 0.02)


def _trained(sample: str) -> Kind:
    def draw(rng: np.random.Generator, rows: int, columns: int) -> Array:
        own = trained(sample)
        first = int(rng.integers(own.size))
        return np.take(own, range(first, first + rows * columns), mode="wrap").reshape(rows, columns).astype(np.float64)

    return draw


def _pruned(share: float) -> Kind:
    return lambda rng, rows, columns: _normal(rng, rows, columns) * (rng.random((rows, columns)) >= share)


def _two_of_four(rng: np.random.Generator, rows: int, columns: int) -> Array:
    x = _normal(rng, rows, columns).reshape(-1, 4)
    np.put_along_axis(x, np.abs(x).argsort(1)[:, :2], 0, 1)
    return x.reshape(rows, columns)


def _block_pruned(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """All but a few groups of 32 are zeros."""
    kept = rng.random((rows, columns // 32)) < 0.05
    return _normal(rng, rows, columns) * np.repeat(kept, 32, 1)


def _tuned(bits: int, group: int, step: float) -> Kind:
    """Fine-tune dequantized weights: an update of every value."""

    def draw(rng: np.random.Generator, rows: int, columns: int) -> Array:
        base = weights("gaussian", rows, columns, int(rng.integers(1 << 30)))
        x = integers(base, torch.float32, bits, group, symmetric=True).double().numpy()
        return np.asarray(x * (1 + rng.standard_normal(x.shape) * 0.02) + rng.standard_normal(x.shape) * step)

    return draw


def _merged(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """Average two models of int4 in groups of 128, which have different scales."""
    pair = [weights("gaussian", rows, columns, int(rng.integers(1 << 30))) for _ in range(2)]
    first, second = (integers(x, torch.float32, 4, 128, symmetric=True).double().numpy() for x in pair)
    return np.asarray(0.6 * first + 0.4 * second)


def _low_rank_update(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """Merge a LoRA adapter into int4 weights."""
    x = integers(weights("gaussian", rows, columns, int(rng.integers(1 << 30))), torch.float32, 4, 64, symmetric=True).double().numpy()
    return np.asarray(x + rng.standard_normal((rows, 4)) @ rng.standard_normal((4, columns)) * 1e-3)


def _wide_integers(bits: int, scale_per_row: bool = True) -> Kind:
    """Integers of more bits than any format here has."""

    def draw(rng: np.random.Generator, rows: int, columns: int) -> Array:
        x = _normal(rng, rows, columns)
        step = np.abs(x).max(1 if scale_per_row else None, keepdims=True) / (2 ** (bits - 1) - 1)
        return np.asarray(np.rint(x / step) * step)

    return draw


def _scaled_both_ways(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """Integers of 4 bits with a scale per row, in columns that another layer's scales were folded into."""
    x = _normal(rng, rows, columns)
    step = np.abs(x).max(1, keepdims=True) / 7
    return np.asarray(np.rint(x / step) * step * np.exp(rng.standard_normal(columns) * 0.3))


def _vocabulary(size: int) -> Kind:
    """Few different values, of no grid."""
    return lambda rng, rows, columns: rng.choice(rng.standard_normal(size) * 0.02, (rows, columns))


def _repeats(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """Each row repeats 8 values of its own."""
    return np.tile(_normal(rng, rows, 8), (1, columns // 8))


def _one_value_in_each_group(rng: np.random.Generator, rows: int, columns: int) -> Array:
    x = np.zeros((rows, columns))
    at = rng.integers(0, 32, (rows, columns // 32)) + np.arange(0, columns, 32)
    np.put_along_axis(x, at, _normal(rng, rows, columns // 32), 1)
    return x


def _sinusoids(rng: np.random.Generator, rows: int, columns: int) -> Array:
    position, rate = np.arange(rows)[:, None] + rng.integers(1000), 10000 ** (-np.arange(columns // 2) / columns * 2)
    return np.concatenate([np.sin(position * rate), np.cos(position * rate)], axis=1)


def _ramp(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """A geometric ramp, as inverse frequencies are."""
    return np.geomspace(1, rng.uniform(1e-5, 1e-3), rows * columns).reshape(rows, columns)


def _learned_steps(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """Zeros but for rows that were updated a few times, as in rare rows of an embedding."""
    x = np.zeros((rows, columns))
    few = rng.choice(rows, rows // 8, replace=False)
    x[few] = rng.standard_normal((len(few), columns)) * 1e-4
    return x


def _magnitudes(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """One magnitude in each row, with random signs and a little noise."""
    signs = rng.choice([-1.0, 1.0], (rows, columns))
    return np.asarray(signs * rng.uniform(0.01, 0.03, (rows, 1)) * (1 + rng.standard_normal((rows, columns)) * 0.01))


KINDS: dict[str, Kind] = {
    "gaussian": _normal,
    "gaussian, small": lambda rng, r, c: _normal(rng, r, c) * 1e-3,
    "gaussian, subnormal in fp16": lambda rng, r, c: _normal(rng, r, c) * 1e-4,
    "uniform": lambda rng, r, c: rng.uniform(-0.05, 0.05, (r, c)),
    "laplace": lambda rng, r, c: rng.laplace(size=(r, c)) * 0.02,
    "heavy tails": lambda rng, r, c: rng.standard_t(2, (r, c)) * 0.02,
    "log-normal scales": lambda rng, r, c: _normal(rng, r, c) * np.exp(rng.standard_normal((r, c))),
    "outlier channels": lambda rng, r, c: _normal(rng, r, c) * np.where(rng.random(c) < 0.02, 30, 1),
    "scaled rows": lambda rng, r, c: _normal(rng, r, c) * np.exp2(rng.integers(-8, 8, (r, 1))),
    "trained in fp32": _trained("tiny-fp32"),
    "trained in bf16": _trained("tiny-bf16"),
    "trained in fp16": _trained("tiny-fp16-mixed"),
    "trained, tuned": _trained("tiny-tuned"),
    "half pruned": _pruned(0.5),
    "nine in ten pruned": _pruned(0.9),
    "99 of 100 pruned": _pruned(0.99),
    "two of four": _two_of_four,
    "blocks pruned": _block_pruned,
    "one value in each group": _one_value_in_each_group,
    "int4 tuned": _tuned(4, 32, 1e-4),
    "int8 row tuned": _tuned(8, -1, 1e-4),
    "int2 tuned": _tuned(2, 64, 1e-5),
    "int4 with an adapter merged": _low_rank_update,
    "two int4 models averaged": _merged,
    "integers of 10 bits": _wide_integers(10),
    "integers of 12 bits": _wide_integers(12, False),
    "int4 with scaled columns": _scaled_both_ways,
    "norm near 1": lambda rng, r, c: 1 + rng.standard_normal((r, c)) * 0.1,
    "norm above 1": lambda rng, r, c: rng.uniform(1, 2, (r, c)),
    "norm of the same sign": lambda rng, r, c: rng.gamma(4, 0.1, (r, c)),
    "bias near 0": lambda rng, r, c: rng.standard_normal((r, c)) * 1e-3 + 2e-3,
    "zeros": lambda rng, r, c: np.zeros((r, c)),
    "ones": lambda rng, r, c: np.ones((r, c)),
    "one constant": lambda rng, r, c: np.full((r, c), rng.standard_normal()),
    "a constant in each row": lambda rng, r, c: np.repeat(_normal(rng, r, 1), c, 1),
    "identity": lambda rng, r, c: np.eye(r, c) * rng.standard_normal(),
    "two values": _vocabulary(2),
    "three values": _vocabulary(3),
    "five values": _vocabulary(5),
    "sixteen values": _vocabulary(16),
    "100 values": _vocabulary(100),
    "repeats": _repeats,
    "sinusoids": _sinusoids,
    "geometric ramp": _ramp,
    "rare rows": _learned_steps,
    "one magnitude in each row": _magnitudes,
    "powers of two": lambda rng, r, c: np.exp2(rng.integers(-12, 0, (r, c))) * rng.choice([-1, 1], (r, c)),
    "powers of the root of two": lambda rng, r, c: np.exp2(rng.integers(-24, 0, (r, c)) / 2) * rng.choice([-1, 1], (r, c)),
    "with NaN": lambda rng, r, c: np.where(rng.random((r, c)) < 0.01, np.nan, _normal(rng, r, c)),
    "with infinities": lambda rng, r, c: np.where(rng.random((r, c)) < 0.01, np.inf, _normal(rng, r, c)),
    "odd width": lambda rng, r, c: _normal(rng, r, c - 29),
    "narrow": lambda rng, r, c: _normal(rng, r * c // 8, 8),
    "one row": lambda rng, r, c: _normal(rng, 1, r * c),
    "stacked": lambda rng, r, c: _normal(rng, r, c).reshape(4, r // 4, c),
}  # fmt: skip


def natives(number: int = 2000) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (kind and dtype, tensor), each kind in each dtype in turn, with another seed each time."""
    for i in range(number):
        kind = list(KINDS)[i // len(DTYPES) % len(KINDS)]
        dtype = DTYPES[i % len(DTYPES)]
        drawn = KINDS[kind](np.random.default_rng([i, 7]), ROWS, COLUMNS)
        # rounded once, or, for every fourth, twice: as bf16 weights stored as fp32 are
        through = torch.bfloat16 if i // len(DTYPES) // len(KINDS) % 4 == 3 else dtype
        yield f"{kind}, {str(dtype).removeprefix('torch.')}", torch.from_numpy(np.ascontiguousarray(drawn)).to(through).to(dtype)
