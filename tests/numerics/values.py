"""Makes values for every corner case of a format, and slow oracles: torch's casts and float64."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

# Mantissa's dtype name -> torch's. Together these are all the formats in which every pattern has a bin.
TORCH = {
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}


def decoded(codes: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    """Decode patterns of ``dtype`` by torch to float64. Same shape."""
    if dtype == "F32":
        with np.errstate(invalid="ignore"):  # signalling NaN
            return codes.view(np.float32).astype(np.float64)
    if dtype == "F64":
        return codes.view(np.float64)
    values: NDArray[np.float64] = tensor(codes, dtype).to(torch.float64).numpy()
    return values


def tensor(codes: NDArray[Any], dtype: str) -> torch.Tensor:
    """Return patterns as a tensor of torch."""
    signed = torch.from_numpy(codes.view(f"i{codes.itemsize}").copy())
    return signed.view(torch.float32 if dtype == "F32" else TORCH[dtype])


def bf16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Return the patterns of values rounded to bf16 by torch."""
    return torch.from_numpy(values.astype(np.float32)).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)


def all_patterns(dtype: str) -> NDArray[Any]:
    """Return every pattern of a 16- or 8-bit dtype, in order."""
    return np.arange(256, dtype=np.uint8) if dtype.startswith("F8") else np.arange(65536).astype(np.uint16)


def survives(values: NDArray[np.float64], name: str) -> NDArray[np.bool_]:
    """Return whether casting to the format and back gives the same finite value, by torch, or for tf32 by its bits."""
    with np.errstate(all="ignore"):
        narrow = values.astype(np.float32)
        same: NDArray[np.bool_] = np.isfinite(values) & (narrow == values)
    if name == "fp32":
        return same
    if name == "tf32":
        zeros: NDArray[np.bool_] = same & (narrow.view(np.uint32) & 0x1FFF == 0)
        return zeros
    short = {
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
        "fp8_e4m3": torch.float8_e4m3fn,
        "fp8_e5m2": torch.float8_e5m2,
    }[name]
    tensor = torch.from_numpy(narrow)
    back: NDArray[np.float32] = tensor.to(short).to(torch.float32).numpy()
    kept: NDArray[np.bool_] = same & np.isfinite(back) & (back == narrow)
    return kept


def around(points: list[float], ulps: int = 3) -> NDArray[np.float32]:
    """Return fp32 ``points`` with their neighbours, of both signs."""
    near = []
    for point in points:
        pattern = int(np.float32(point).view(np.uint32))
        near += [pattern + i for i in range(-ulps, ulps + 1) if 0 <= pattern + i < 0x7F800000]
    values = np.array(near, dtype=np.uint32).view(np.float32)
    return np.concatenate([values, -values])


EDGES = [65504.0, 65519.0, 65520.0, 65535.0, 65536.0, 65280.0, 448.0, 57344.0, 1.0, 0.1]
SMALL_EDGES = [2.0**e for e in (-9, -14, -16, -17, -18, -24, -25, -26, -126, -133, -134, -136, -149)]


def hostile32() -> NDArray[np.uint32]:
    """Make fp32 patterns: every plane, subnormals, NaN payloads, infinities, zeros of both signs, and the edges of formats."""
    rng = np.random.default_rng(5)
    planes = [
        rng.integers(0, 1 << 32, 400, dtype=np.uint32) & np.uint32(0xFFFFFFFF << low & 0xFFFFFFFF) for low in (0, 12, 13, 14, 15, 16, 20)
    ]
    subnormal = rng.integers(0, 1 << 23, 300, dtype=np.uint32) | (rng.integers(0, 2, 300, dtype=np.uint32) << np.uint32(31))
    special = np.array([0, 1 << 31, 0x7F800000, 0xFF800000, 0x7F800001, 0x7FC00000, 0xFFFFFFFF, 0x7F810000, 0x7FBFFFFF], dtype=np.uint32)
    edges = around(EDGES + SMALL_EDGES).view(np.uint32)
    return np.concatenate([*planes, subnormal, special, edges, np.array([0x7F7FFFFF, 0xFF7FFFFF, 1, 0x80000001], dtype=np.uint32)])
