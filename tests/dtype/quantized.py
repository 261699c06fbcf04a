"""Quantizes and dequantizes weights in the ways of real checkpoints, without the code under test."""

import numpy as np
import torch
from numpy.typing import NDArray

Values = NDArray[np.float64]

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
NF4 = np.array([-1, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0, 0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.723, 1])
# The 4-bit floats of bitsandbytes, which are E2M1 except for the smallest.
FP4 = np.array([0, 1 / 192, 1 / 6, 1 / 4, 1 / 3, 1 / 2, 2 / 3, 1])

LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.float8_e4m3fnuz: 240.0, torch.float8_e5m2fnuz: 57344.0}


def weights(rows: int, columns: int, seed: int = 0, shape: str = "normal") -> Values:
    """Draw values distributed like weights. shape: normal, laplace, uniform, student (heavy tails) or outliers (log-normal scales)."""
    rng = np.random.default_rng(seed)
    size = (rows, columns)
    match shape:
        case "laplace":
            drawn = rng.laplace(size=size)
        case "uniform":
            drawn = rng.uniform(-2, 2, size)
        case "student":
            drawn = rng.standard_t(2, size)
        case "outliers":
            drawn = rng.standard_normal(size) * np.exp(rng.standard_normal(size))
        case _:
            drawn = rng.standard_normal(size)
    return np.asarray(drawn * 0.02)


def fp8(values: Values, kind: torch.dtype, rows: int, columns: int, powers_of_two: bool = False) -> torch.Tensor:
    """Round through ``kind`` with one scale per block of ``rows`` x ``columns`` (0 for all), multiplied in fp32."""
    height, width = values.shape
    rows, columns = rows or height, columns or width
    whole = np.pad(np.abs(values), ((0, -height % rows), (0, -width % columns)))
    largest = whole.reshape(whole.shape[0] // rows, rows, -1, columns).max(axis=(1, 3))
    scales = largest.repeat(rows, 0).repeat(columns, 1)[:height, :width] / LARGEST[kind]
    if powers_of_two:
        scales = np.exp2(np.ceil(np.log2(scales)))
    scale = torch.from_numpy(scales.astype(np.float32))
    return (torch.from_numpy(values.astype(np.float32)) / scale).to(kind).to(torch.float32) * scale


def nearest(values: Values, levels: Values) -> Values:
    """Round each value to the nearest level."""
    middles = (levels[1:] + levels[:-1]) / 2
    return np.asarray(levels[np.searchsorted(middles, values)])


def e2m1(values: Values) -> torch.Tensor:
    """Round to the 4-bit float grid."""
    return torch.from_numpy(nearest(values, np.concatenate([-E2M1[:0:-1], E2M1])).astype(np.float32))


def mxfp4(values: Values, round_up: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (elements, scales) of blocks of 32, (blocks, 32) and (blocks, 1). The power of two is rounded as in OCP MX, or up."""
    blocks = values.reshape(-1, 32)
    most = np.abs(blocks).max(axis=1, keepdims=True)
    scales = np.exp2(np.ceil(np.log2(most / 6))) if round_up else np.exp2(np.floor(np.log2(most)) - 2)
    return e2m1(blocks / scales), torch.from_numpy(scales.astype(np.float32))


def nvfp4(values: Values) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (elements, scales) of blocks of 16. Scales are E4M3 times one fp32."""
    blocks = values.reshape(-1, 16)
    most = np.abs(blocks).max(axis=1, keepdims=True)
    overall = float(np.float32(most.max() / (6 * 448)))
    scales = torch.from_numpy((most / 6 / overall).astype(np.float32)).to(torch.float8_e4m3fn).to(torch.float32) * overall
    return e2m1(blocks / scales.to(torch.float64).numpy()), scales


def integers(values: Values, bits: int, group: int, asymmetric: bool, scale: torch.dtype | None) -> Values:
    """Round to integers of ``bits`` with a scale (None: a power of two), and a zero point if asymmetric, per ``group`` neighbours."""
    blocks = values.reshape(-1, group)
    low, high = blocks.min(axis=1, keepdims=True), blocks.max(axis=1, keepdims=True)
    step = (high - low) / (2**bits - 1) if asymmetric else np.maximum(-low, high) / (2 ** (bits - 1) - 1)
    step = np.exp2(np.ceil(np.log2(step))) if scale is None else torch.from_numpy(step).to(scale).to(torch.float64).numpy()
    zero = np.rint(-low / step) if asymmetric else np.full_like(step, 2 ** (bits - 1))
    return np.asarray(((np.clip(np.rint(blocks / step) + zero, 0, 2**bits - 1) - zero) * step).reshape(values.shape))


def coded(values: Values, levels: Values, group: int) -> Values:
    """Round to a code book whose largest level is 1, times the largest magnitude of each ``group``."""
    blocks = values.reshape(-1, group)
    most = np.abs(blocks).max(axis=1, keepdims=True).astype(np.float32)
    return np.asarray((nearest(blocks / most, levels) * most).reshape(values.shape))
