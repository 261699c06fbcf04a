"""Counts pairs on a CUDA device with torch: the same as `pairs_fp64`, also in float64.

torch is imported with the first chunk. ``device`` may be any torch device; tests run the same code on CPU tensors.
"""

from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.bins import NARROW
from analyzers.numerics.histogram import FP64_LARGEST
from analyzers.numerics.pair_tables import STEP_BINS, PairCounts, PairTables
from analyzers.numerics.sketches import FIRST_EXPONENT, PER_BINADE

_SIGNED = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}  # torch has few unsigned types


def count_pairs(
    base: NDArray[Any], tuned: NDArray[Any], dtypes: tuple[str, str], eta: float, tables: PairTables | None, device: str,
    changed: NDArray[np.bool_] | None = None,
) -> PairCounts:  # fmt: skip
    """See `pairs_fp64.count_pairs`."""
    import torch

    w, v = (_values(torch, codes, dtype, device) for codes, dtype in zip((base, tuned), dtypes, strict=True))
    finite = torch.isfinite(w) & torch.isfinite(v)
    differ = (w != v) & ~(torch.isnan(w) & torch.isnan(v))
    steps = (_places(torch, w) - _places(torch, v)).abs()
    probe = ((v - w).abs() > eta * torch.maximum(w.abs(), v.abs())) | ~finite
    asked = torch.stack([(steps != 0).sum(), (probe & differ).sum(), differ.sum(), (~finite).sum(), (finite & ~differ).sum()])
    moves, probes, different, nonfinite, zeros = asked.tolist()
    if changed is not None:
        changed[:] = (steps != 0).cpu().numpy()
    counts = PairCounts(base.size, moves, probes, different, nonfinite, base_square=_sums(torch, w[finite].abs())[1])
    chosen = finite & differ
    w, v, steps = w[chosen], v[chosen], steps[chosen]
    update, relative = _updates(torch, w, v)
    total, counts.update_square, counts.absolute_max = _sums(torch, update)
    if tables is None:
        return counts
    tables.add_others(zeros, nonfinite)
    moved = steps != 0
    tables.add_sums(False, (total, counts.update_square, counts.absolute_max), _sums(torch, relative))
    tables.add_sums(True, _sums(torch, update[moved]), _sums(torch, relative[moved]))
    absolute_bins, relative_bins = _bins(torch, w, v, update, relative)
    for plane, chosen in enumerate((~moved, moved)):
        tables.add_bins(plane, *(_counted(torch, bins[chosen]) for bins in (absolute_bins, relative_bins)))
    binned = torch.where(steps < 4, steps, torch.frexp(steps.to(torch.float64))[1] + 1)
    tables.add_steps(torch.bincount(binned, minlength=STEP_BINS).cpu().numpy())
    return counts


def _values(torch: Any, codes: NDArray[Any], dtype: str, device: str) -> Any:
    """(n,) float64 values of patterns."""
    patterns = torch.from_numpy(np.require(codes, requirements=("C", "A", "W")).view(_SIGNED[codes.itemsize])).to(device)
    if dtype == "F64":
        return patterns.view(torch.float64)
    if dtype == "F32":
        return patterns.view(torch.float32).to(torch.float64)
    if dtype == "BF16":
        return (patterns.to(torch.int32) << 16).view(torch.float32).to(torch.float64)
    table = torch.from_numpy(_narrow_values(dtype)).to(device)
    return table[patterns.to(torch.int64) & (table.numel() - 1)]


@cache
def _narrow_values(dtype: str) -> NDArray[np.float64]:
    return NARROW[dtype].decode()


def _places(torch: Any, values: Any) -> Any:
    """(n,) places among the values of bf16, by way of fp32 rounded to odd: see `pairs_fp64`."""
    narrow = values.to(torch.float32)
    wide = narrow.to(torch.float64)
    nan = torch.isnan(values)
    inexact = (wide != values) & ~nan
    patterns = narrow.view(torch.int32) - (inexact & (wide.abs() > values.abs())).to(torch.int32)
    patterns = torch.where(inexact, patterns | 1, patterns)
    magnitude = patterns.to(torch.int64) & 0x7FFFFFFF
    place = torch.where(patterns < 0, -magnitude, magnitude)
    place = torch.where(nan, 0x7FC00000, place)
    return (place + 0x7FFF + ((place >> 16) & 1)) >> 16


def _updates(torch: Any, w: Any, v: Any) -> tuple[Any, Any]:
    """See `pair_tables.updates`."""
    update, larger = (v - w).abs(), torch.maximum(w.abs(), v.abs())
    beyond = torch.isinf(update)
    relative = torch.where(beyond, (v / 2 - w / 2).abs() / (larger / 2), update / larger)
    return torch.where(beyond, FP64_LARGEST, update), relative


def _bins(torch: Any, w: Any, v: Any, update: Any, relative: Any) -> tuple[Any, Any]:
    """Bins of the absolute and of the relative updates, by the rule of `PairTables.add`."""
    w32, v32 = w.to(torch.float32), v.to(torch.float32)
    short_update = (v32 - w32).abs()
    short_relative = short_update / torch.maximum(w32.abs(), v32.abs())
    short = (w32.to(torch.float64) == w) & (v32.to(torch.float64) == v) & (short_update >= 2.0**-126) & torch.isfinite(short_update)
    return tuple(
        _bin_of(torch, torch.where(short, rounded.to(torch.float64), exact))
        for rounded, exact in ((short_update, update), (short_relative, relative))
    )


def _bin_of(torch: Any, values: Any) -> Any:
    mantissa, exponent = torch.frexp(values)
    inside = (mantissa * (2 * PER_BINADE)).to(torch.int64) - PER_BINADE
    return (exponent.to(torch.int64) - 1 - FIRST_EXPONENT) * PER_BINADE + inside


def _counted(torch: Any, bins: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Occupied bins and their counts."""
    index, counts = torch.unique(bins, return_counts=True)
    return index.cpu().numpy(), counts.cpu().numpy()


def _sums(torch: Any, values: Any) -> tuple[Fraction, Fraction, float]:
    """Sum, sum of squares, and maximum of magnitudes."""
    largest = float(values.max()) if values.numel() else 0.0
    shift = int(np.frexp(largest)[1])
    scaled = torch.ldexp(values, torch.tensor(-shift // 2, device=values.device))
    scaled = torch.ldexp(scaled, torch.tensor(-shift - -shift // 2, device=values.device))  # 2^shift itself may be beyond float64
    total, square = torch.stack([scaled.sum(), (scaled * scaled).sum()]).tolist()
    return Fraction(total) * Fraction(2) ** shift, Fraction(square) * Fraction(4) ** shift, largest
