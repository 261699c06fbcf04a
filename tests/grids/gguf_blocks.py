"""Writes the blocks of GGUF's K- and IQ-quants, which gguf itself only dequantizes. Scales are of the plainest kind: from the extremes."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Bytes = NDArray[Any]
LEVELS = np.array((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.float32)


def _half(values: Array) -> tuple[Array, Bytes]:
    """Return values rounded to fp16, and their bytes, (blocks, 2)."""
    half = values.astype(np.float16)
    return half.astype(np.float32), half.reshape(-1, 1).view(np.uint8)


def _ratio(values: Array, by: Array) -> Array:
    return np.divide(values, by, out=np.zeros(np.broadcast_shapes(values.shape, by.shape), np.float32), where=by != 0)


def _nibbles(codes: Bytes, run: int) -> Bytes:
    """Pack 4-bit codes, (blocks, 256): of two neighbouring runs the first gives the low halves."""
    pairs = codes.reshape(len(codes), -1, 2, run)
    packed: Bytes = pairs[:, :, 0] | pairs[:, :, 1] << 4
    return packed.reshape(len(codes), -1)


def _quarters(codes: Bytes) -> Bytes:
    """Pack 2-bit codes, (blocks, 256): four neighbouring runs of 32 share 32 bytes."""
    fours = codes.reshape(len(codes), -1, 4, 32)
    packed: Bytes = fours[:, :, 0] | fours[:, :, 1] << 2 | fours[:, :, 2] << 4 | fours[:, :, 3] << 6
    return packed.reshape(len(codes), -1)


def _affine(blocks: Array, parts: int, top: int, most: int) -> tuple[Bytes, Bytes, Bytes, Bytes, Bytes]:
    """Return the bytes of d and dmin, the codes of scales and minima, and the codes of the values (blocks, 256)."""
    x = blocks.reshape(len(blocks), parts, -1)
    low = -np.minimum(x.min(2), 0)
    step = (x.max(2) + low) / top
    d, d_bytes = _half(step.max(1, keepdims=True) / most)
    least, least_bytes = _half(low.max(1, keepdims=True) / most)
    scales, minima = (np.rint(_ratio(a, by)).clip(0, most).astype(np.uint8) for a, by in ((step, d), (low, least)))
    codes = np.rint(_ratio(x + (least * minima)[..., None], (d * scales)[..., None])).clip(0, top).astype(np.uint8)
    return d_bytes, least_bytes, scales, minima, codes.reshape(len(blocks), -1)


def _signed(blocks: Array, parts: int, top: int, most: int) -> tuple[Bytes, Array, Array]:
    """Return the bytes of d, the signed codes of scales, and those of the values in -top .. top - 1: the largest of each part gets -top."""
    x = blocks.reshape(len(blocks), parts, -1)
    largest = np.take_along_axis(x, np.abs(x).argmax(2)[..., None], 2)[..., 0]
    step = -largest / top
    d, d_bytes = _half(np.abs(step).max(1, keepdims=True) / most)
    scales = np.rint(_ratio(step, d)).clip(-most - 1, most).astype(np.int8)
    codes = np.rint(_ratio(x, (d * scales)[..., None])).clip(-top, top - 1).astype(np.int8)
    return d_bytes, scales, codes.reshape(len(blocks), -1)


def _scales_of_6_bits(scales: Bytes, minima: Bytes) -> Bytes:
    """Pack 8 scales and 8 minima of 6 bits into 12 bytes."""
    first = scales[:, :4] | (scales[:, 4:] >> 4) << 6
    second = minima[:, :4] | (minima[:, 4:] >> 4) << 6
    return np.concatenate([first, second, (scales[:, 4:] & 15) | (minima[:, 4:] & 15) << 4], axis=1)


def q2_k(blocks: Array) -> Bytes:
    """Write blocks of Q2_K, (blocks, 256) -> (blocks, 84)."""
    d, least, scales, minima, codes = _affine(blocks, 16, 3, 15)
    return np.concatenate([scales | minima << 4, _quarters(codes), d, least], axis=1)


def q3_k(blocks: Array) -> Bytes:
    """Write blocks of Q3_K, (blocks, 110)."""
    d, scales, codes = _signed(blocks, 16, 4, 31)
    raised, whole = (scales + 32).astype(np.uint8), (codes + 4).astype(np.uint8)
    low, high = raised & 15, raised >> 4
    packed = np.concatenate(
        [low[:, :8] | low[:, 8:] << 4, high[:, :4] | high[:, 4:8] << 2 | high[:, 8:12] << 4 | high[:, 12:] << 6], axis=1
    )
    mask = np.packbits((whole >> 2).reshape(-1, 8, 32), axis=1, bitorder="little").reshape(-1, 32)
    return np.concatenate([mask, _quarters(whole & 3), packed, d], axis=1)


def q4_k(blocks: Array) -> Bytes:
    """Write blocks of Q4_K, (blocks, 144)."""
    d, least, scales, minima, codes = _affine(blocks, 8, 15, 63)
    return np.concatenate([d, least, _scales_of_6_bits(scales, minima), _nibbles(codes, 32)], axis=1)


def q5_k(blocks: Array) -> Bytes:
    """Write blocks of Q5_K, (blocks, 176)."""
    d, least, scales, minima, codes = _affine(blocks, 8, 31, 63)
    high = np.packbits((codes >> 4).reshape(-1, 8, 32), axis=1, bitorder="little").reshape(-1, 32)
    return np.concatenate([d, least, _scales_of_6_bits(scales, minima), high, _nibbles(codes & 15, 32)], axis=1)


def q6_k(blocks: Array) -> Bytes:
    """Write blocks of Q6_K, (blocks, 210)."""
    d, scales, codes = _signed(blocks, 16, 32, 127)
    whole = (codes + 32).astype(np.uint8)
    return np.concatenate([_nibbles(whole & 15, 64), _quarters(whole >> 4), scales.view(np.uint8), d], axis=1)


def _iq4(x: Array, step: Array) -> Bytes:
    scaled = _ratio(x, step)
    return np.searchsorted((LEVELS[1:] + LEVELS[:-1]) / 2, scaled).astype(np.uint8)


def iq4_nl(blocks: Array) -> Bytes:
    """Write blocks of IQ4_NL, (blocks, 32) -> (blocks, 18)."""
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1)
    d, d_bytes = _half(largest / -127)
    return np.concatenate([d_bytes, _nibbles(_iq4(blocks, d), 16)], axis=1)


def iq4_xs(blocks: Array) -> Bytes:
    """Write blocks of IQ4_XS, (blocks, 256) -> (blocks, 136)."""
    x = blocks.reshape(-1, 8, 32)
    step = np.take_along_axis(x, np.abs(x).argmax(2)[..., None], 2)[..., 0] / -127
    d, d_bytes = _half(np.abs(step).max(1, keepdims=True) / 31)
    scales = np.rint(_ratio(step, d)).clip(-32, 31)
    codes = _iq4(x, (d * scales)[..., None].astype(np.float32)).reshape(-1, 256)
    raised = (scales + 32).astype(np.uint16)
    high = ((raised >> 4) << np.arange(0, 16, 2, dtype=np.uint16)).sum(1, dtype=np.uint16).reshape(-1, 1).view(np.uint8)
    low = (raised & 15).astype(np.uint8)
    return np.concatenate([d_bytes, high, low[:, ::2] | low[:, 1::2] << 4, _nibbles(codes, 16)], axis=1)


WRITERS: dict[str, tuple[int, Callable[[Array], Bytes]]] = {
    "Q2_K": (256, q2_k), "Q3_K": (256, q3_k), "Q4_K": (256, q4_k), "Q5_K": (256, q5_k), "Q6_K": (256, q6_k), "IQ4_NL": (32, iq4_nl),
    "IQ4_XS": (256, iq4_xs),
}  # fmt: skip
