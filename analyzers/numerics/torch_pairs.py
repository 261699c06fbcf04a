"""Counts pairs on a CUDA device with torch: the same as `pair_kernels`.

torch is imported with the first chunk. ``device`` may be any torch device; tests run the same code on CPU tensors.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.conversions import fp32_table
from analyzers.numerics.pair_kernels import RELATIVE, TOTAL
from analyzers.numerics.sketches import FIRST_EXPONENT, PER_BINADE


def count_pairs(
    base: NDArray[Any], tuned: NDArray[Any], dtypes: tuple[str, str], eta: float, counts: NDArray[np.int64], sums: NDArray[np.float64],
    absolute: NDArray[np.int64], relative: NDArray[np.int64], step_counts: NDArray[np.int64], changed: NDArray[np.bool_] | None,
    device: str,
) -> float:  # fmt: skip
    """See `pair_kernels.count_pairs`, without a joint histogram. dtypes: of the two sides, which fp32 holds exactly."""
    import torch

    patterns = [_fp32(torch, codes, dtype, device) for codes, dtype in zip((base, tuned), dtypes, strict=True)]
    w, v = (each.view(torch.float32).to(torch.float64) for each in patterns)
    steps = (_places(torch, patterns[0]) - _places(torch, patterns[1])).abs()
    finite = torch.isfinite(w) & torch.isfinite(v)
    differ = (w != v) & ~(torch.isnan(w) & torch.isnan(v))
    update, larger = (v - w).abs(), torch.maximum(w.abs(), v.abs())
    probe = ((update > eta * larger) | ~finite) & differ
    masks = (steps != 0, probe, differ, ~finite, ~finite & differ)
    counts += torch.stack([mask.sum() for mask in masks]).cpu().numpy()
    if changed is not None:
        changed[:] = (steps != 0).cpu().numpy()
    square = float(w[finite].square().sum())
    chosen = finite & differ
    update, steps, share = update[chosen], steps[chosen], update[chosen] / larger[chosen]
    for plane, moved in enumerate((steps == 0, steps != 0)):
        for column, values, bins in ((TOTAL, update[moved], absolute), (RELATIVE + TOTAL, share[moved], relative)):
            if values.numel():
                sums[plane, column : column + RELATIVE] = torch.stack([values.sum(), values.square().sum(), values.max()]).cpu().numpy()
            if bins.size:
                bins[plane] += torch.bincount(_bin_of(torch, values), minlength=bins.shape[1]).cpu().numpy()
    if absolute.size:
        step_bins = torch.where(steps < 4, steps, torch.frexp(steps.to(torch.float64))[1] + 1)
        step_counts += torch.bincount(step_bins, minlength=step_counts.size).cpu().numpy()
    return square


def _fp32(torch: Any, codes: NDArray[Any], dtype: str, device: str) -> Any:
    """(n,) fp32 patterns, as int32."""
    signed = (np.uint8, np.int16, np.int32)[codes.itemsize // 2]  # torch has few unsigned types
    patterns = torch.from_numpy(np.require(codes, requirements=("C", "A", "W")).view(signed)).to(device)
    if dtype == "F32":
        return patterns
    if dtype == "BF16":
        return patterns.to(torch.int32) << 16
    table = torch.from_numpy(fp32_table(dtype).view(np.int32)).to(device)
    return table[patterns.to(torch.int64) & (table.numel() - 1)]


def _places(torch: Any, patterns: Any) -> Any:
    """(n,) places among the values of bf16: see `conversions.bf16_places`."""
    magnitude = patterns.to(torch.int64) & 0x7FFFFFFF
    place = (magnitude + 0x7FFF + ((magnitude >> 16) & 1)) >> 16
    return torch.where(magnitude > 0x7F800000, 0x7FC0, torch.where(patterns < 0, -place, place))


def _bin_of(torch: Any, values: Any) -> Any:
    """See `sketches`."""
    mantissa, exponent = torch.frexp(values)
    inside = (mantissa * (2 * PER_BINADE)).to(torch.int64) - PER_BINADE
    return (exponent.to(torch.int64) - 1 - FIRST_EXPONENT) * PER_BINADE + inside
