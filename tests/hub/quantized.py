"""Makes virtual quantized checkpoints: 4-bit codes, computed from the values of a `generated` model while they are read.

All groups have one step and one zero point, so that a code depends on its value alone.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from .generated import BLOCK, LINEAGES, Floats, Stored, files_of, from_bf16, phase, repeated, stored, to_bf16
from .repositories import Contents

STEP = 2.0**-7  # a third of the deviation of the values
_AWQ, _IN_ORDER = (0, 2, 4, 6, 1, 3, 5, 7), tuple(range(8))  # the column of each code of a word
Words = Callable[[NDArray[np.int64]], NDArray[np.int64]]


def quantized(
    layout: str, tensors: Iterable[tuple[str, tuple[int, ...]]], config: Mapping[str, object], shards: int, values: tuple[Floats, Floats]
) -> dict[str, bytes | Contents]:
    """Make a checkpoint whose matrices in layers are quantized. layout: "gptq", whose errors are a calibration's, "awq" or "mlx"."""
    matrices, norms = values
    noise = np.random.default_rng(2).standard_normal(BLOCK, dtype=np.float32) * np.float32(STEP / 3 if layout == "gptq" else 0)
    codes = np.clip(np.rint((from_bf16(to_bf16(matrices)) + noise) / STEP) + 8, 0, 15).astype(np.uint8).tobytes()
    blocks = repeated(LINEAGES["bf16-as-fp16"].store(matrices)), repeated(LINEAGES["bf16-as-fp16"].store(norms))
    found: list[Stored] = []
    for name, shape in tensors:
        if len(shape) == 2 and ".layers." in name:
            found += LAYOUTS[layout](codes, name, *shape)
        else:
            found.append(stored(LINEAGES["bf16-as-fp16"], blocks, name, shape))
    method: dict[str, object] = {"quantization": {"bits": 4, "group_size": 64}}
    if layout != "mlx":
        method = {"quantization_config": {"quant_method": layout, "bits": 4, "group_size": 128, "desc_act": False}}
    return files_of(found, {**config, **method}, f"{layout} {zlib.crc32(codes):08x} {zlib.crc32(norms.tobytes()):08x}", shards)


def _gptq(codes: bytes, name: str, rows: int, columns: int) -> Iterator[Stored]:
    module, start = name.removesuffix("weight"), phase(name)

    def words(at: NDArray[np.int64]) -> NDArray[np.int64]:
        return start + at % rows * columns + at // rows * 8

    yield _words(module + "qweight", "I32", (columns // 8, rows), partial(_packed, codes, words, 1, _IN_ORDER))
    yield from _of_groups(module, rows, columns, 0x77777777)
    yield _words(module + "g_idx", "I32", (columns,), lambda at: (at // 128).astype(np.uint32))


def _awq(codes: bytes, name: str, rows: int, columns: int) -> Iterator[Stored]:
    module, start = name.removesuffix("weight"), phase(name)

    def words(at: NDArray[np.int64]) -> NDArray[np.int64]:
        return start + at % (rows // 8) * 8 * columns + at // (rows // 8)

    yield _words(module + "qweight", "I32", (columns, rows // 8), partial(_packed, codes, words, columns, _AWQ))
    yield from _of_groups(module, rows, columns, 0x88888888)


def _mlx(codes: bytes, name: str, rows: int, columns: int) -> Iterator[Stored]:
    module, start = name.removesuffix("weight"), phase(name)
    yield _words(name, "U32", (rows, columns // 8), partial(_packed, codes, lambda at: start + at * 8, 1, _IN_ORDER))
    yield _constant(module + "scales", (rows, columns // 64), STEP)
    yield _constant(module + "biases", (rows, columns // 64), -8 * STEP)


LAYOUTS: dict[str, Callable[[bytes, str, int, int], Iterator[Stored]]] = {"gptq": _gptq, "awq": _awq, "mlx": _mlx}


def _of_groups(module: str, rows: int, columns: int, zero: int) -> Iterator[Stored]:
    """Yield the zero points and steps of groups of 128 inputs."""
    yield _words(module + "qzeros", "I32", (columns // 128, rows // 8), lambda at: np.full(at.size, zero, np.uint32))
    yield _constant(module + "scales", (columns // 128, rows), STEP)


def _packed(codes: bytes, first: Words, step: int, order: tuple[int, ...], at: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return words number ``at``. first: the number of the first value of a word; step: from there to the next."""
    return _block_of_words(codes, step, order)[first(at) % BLOCK]


@cache
def _block_of_words(codes: bytes, step: int, order: tuple[int, ...]) -> NDArray[np.uint32]:
    """Return the word of eight codes that begins at each place of the block."""
    block, words = np.frombuffer(codes, np.uint8), np.zeros(BLOCK, np.uint32)
    for place, column in enumerate(order):
        words |= np.roll(block, -column * step).astype(np.uint32) << np.uint32(4 * place)
    return words


def _words(name: str, dtype: str, shape: tuple[int, ...], words: Callable[[NDArray[np.int64]], NDArray[np.uint32]]) -> Stored:
    """Return a tensor of 32-bit words, computed from their numbers."""

    def read(offset: int, length: int) -> bytes:
        first, stop = offset // 4, -(-(offset + length) // 4)
        return words(np.arange(first, stop)).tobytes()[offset - 4 * first :][:length]

    return Stored(name, dtype, shape, 4 * int(np.prod(shape)), read)


def _constant(name: str, shape: tuple[int, int], value: float) -> Stored:
    block = repeated(np.full(1 << 16, value, np.float16).tobytes())
    return Stored(name, "F16", shape, 2 * shape[0] * shape[1], block.stretch)
