"""Quantizes and dequantizes by published definitions: formats whose quantizers are not installed, without the code under test.

Each function takes fp32 weights (rows, columns) and the dtype in which the dequantizer computes, and returns values of that dtype.
"""

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

Values = torch.Tensor

# bitsandbytes, functional.get_4bit_type
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334, -0.09105003625154495,
    0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
FP4 = tuple(sorted({sign * level / 12 for level in (0, 0.0625, 2, 3, 4, 6, 8, 12) for sign in (1, -1)}))


def blocks_of(values: Values, group: int) -> Values:
    """Return values as (blocks, group); 0 is all of the tensor, -1 a row."""
    return values.reshape(-1, group or values.numel()) if group >= 0 else values.reshape(-1, values.shape[-1])


def nearest(values: Values, levels: Values) -> Values:
    """Return the index of the nearest of the sorted levels."""
    return torch.bucketize(values, (levels[1:] + levels[:-1]) / 2)


def integers(
    values: Values,
    dtype: torch.dtype,
    bits: int,
    group: int,
    *,
    symmetric: bool,
    restricted: bool = False,
    scales: torch.dtype | None = None,
) -> Values:
    """Round to integers with a scale, and a zero point if not symmetric, per group: GPTQ, AWQ, compressed-tensors.

    restricted: without the lowest integer, as bitsandbytes' int8; scales: dtype of the stored scales, by default that of the arithmetic.
    """
    x = blocks_of(values, group).float()
    low, high = x.amin(1, keepdim=True).clamp(max=0), x.amax(1, keepdim=True).clamp(min=0)
    if symmetric:
        top = 2 ** (bits - 1) - 1 if restricted or bits == 2 else (2**bits - 1) / 2
        step, least, most = torch.maximum(-low, high) / top, -(2 ** (bits - 1)) + restricted, 2 ** (bits - 1) - 1
    else:
        step, least, most = (high - low) / (2**bits - 1), 0, 2**bits - 1
    step = torch.where(step == 0, 1.0, step).to(scales or dtype)
    zero = torch.zeros_like(step, dtype=torch.float32) if symmetric else (-low / step.float()).round().clamp(0, most)
    codes = ((x / step.float()).round() + zero).clamp(least, most)
    whole: Values = ((codes - zero).to(dtype) * step.to(dtype)).reshape(values.shape)
    return whole


def ternary(values: Values, dtype: torch.dtype) -> Values:
    """Round to -1, 0, 1 times the mean magnitude of the tensor: BitNet b1.58, equations 1 to 3."""
    scale = values.abs().mean().clamp(min=1e-5)
    return (values / scale).round().clamp(-1, 1).to(dtype) * scale.to(dtype)


def code_book(values: Values, dtype: torch.dtype, levels: tuple[float, ...], group: int, double: bool = False) -> Values:
    """Round to a table of levels times the largest magnitude of each group: NF4 and FP4 of bitsandbytes.

    double: these magnitudes, less their mean, are themselves 8-bit codes of a table, with one scale for 256.
    """
    x, table = blocks_of(values, group).float(), torch.tensor(levels)
    most = x.abs().amax(1, keepdim=True)
    codes = nearest(x / torch.where(most == 0, 1.0, most), table)
    if double:
        offset = most.mean()
        rest = torch.nn.functional.pad((most - offset).flatten(), (0, -most.numel() % 256)).reshape(-1, 256)
        scale = rest.abs().amax(1, keepdim=True)
        dynamic = _dynamic_map()
        most = (dynamic[nearest(rest / torch.where(scale == 0, 1.0, scale), dynamic)] * scale).flatten()[: most.numel(), None] + offset
    whole: Values = (table[codes] * most).to(dtype).reshape(values.shape)
    return whole


@cache
def _dynamic_map() -> Values:
    """Return the signed 8-bit table of bitsandbytes, functional.create_dynamic_map."""
    levels = [0.0, 1.0]
    for i in range(7):
        bounds = torch.linspace(0.1, 1, 2**i + 1)
        means = 10.0 ** (i - 6) * (bounds[:-1] + bounds[1:]) / 2
        levels += [*means.tolist(), *(-means).tolist()]
    return torch.tensor(sorted(levels))


def fp8_blocks(values: Values, dtype: torch.dtype, kind: torch.dtype, rows: int, columns: int, powers: bool = False) -> Values:
    """Round to 8-bit floats with one fp32 scale per block of rows x columns, 0 for all of them; multiplied in ``dtype``."""
    height, width = values.shape
    rows, columns = rows or height, columns or width
    whole = torch.nn.functional.pad(values.abs(), (0, -width % columns, 0, -height % rows))
    largest = whole.reshape(whole.shape[0] // rows, rows, -1, columns).amax((1, 3))
    scale = torch.where(largest == 0, 1.0, largest / torch.finfo(kind).max)
    if powers:
        scale = scale.log2().ceil().exp2()
    scale = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)[:height, :width]
    return (values / scale).to(kind).to(dtype) * scale.to(dtype)


def weights(distribution: str, rows: int, columns: int, seed: int) -> Values:
    """Draw fp32 weights: gaussian, heavy (Student's t), trained (of a built-in sample), or outliers (some channels 20 times as large)."""
    rng = np.random.default_rng([seed, rows, columns])
    if distribution == "trained":
        own = trained("tiny-fp32")
        first = int(rng.integers(own.size))
        return torch.from_numpy(np.take(own, range(first, first + rows * columns), mode="wrap").reshape(rows, columns))
    drawn = rng.standard_t(3, (rows, columns)) if distribution == "heavy" else rng.standard_normal((rows, columns))
    if distribution == "outliers":
        drawn *= np.where(rng.random(columns) < 0.02, 20.0, 1.0)
    return torch.from_numpy((drawn * 0.02).astype(np.float32))


@cache
def trained(sample: str) -> NDArray[np.float32]:
    """Return the matrices of a built-in sample, one after the other, as fp32."""
    from safetensors.torch import load_file

    from analyzers.language_models.samples import sample_folder

    tensors = load_file(sample_folder(sample) / "model.safetensors")
    return np.concatenate([t.float().numpy().ravel() for name, t in sorted(tensors.items()) if t.dim() == 2])


DISTRIBUTIONS = ("gaussian", "heavy", "trained", "outliers")
