"""Makes virtual checkpoints: real safetensors headers and indexes of weights that exist only while they are read.

A tensor's values are a slice of one repeated block of pre-generated random values, from a position that depends on the tensor's name.
Reading costs a slice and is deterministic.
"""

import json
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, prod

import numpy as np
from numpy.typing import NDArray

from .repositories import Contents, Generated

Floats = NDArray[np.float32]
BLOCK = 4_194_301  # values of the block; a prime, so that no row length divides it and rows differ


def to_bf16(values: Floats) -> NDArray[np.uint16]:
    """Round finite values to bf16 bit patterns, to nearest even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(patterns: NDArray[np.uint16]) -> Floats:
    """Decode bf16 bit patterns."""
    return (patterns.astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True)
class Lineage:
    """The history of weights: the dtype in which they are stored, and the bytes stored for float32 values."""

    dtype: str
    itemsize: int
    store: Callable[[Floats], bytes]


LINEAGES: dict[str, Lineage] = {
    "bf16": Lineage("BF16", 2, lambda x: to_bf16(x).tobytes()),
    "bf16-as-fp16": Lineage("F16", 2, lambda x: from_bf16(to_bf16(x)).astype(np.float16).tobytes()),
    "bf16-as-fp32": Lineage("F32", 4, lambda x: from_bf16(to_bf16(x)).tobytes()),
}


@dataclass(frozen=True)
class Block:
    """``nbytes`` of stored values, twice in memory, so that any stretch of at most ``nbytes`` is one view."""

    doubled: memoryview
    nbytes: int

    def stretch(self, start: int, length: int) -> bytes | memoryview:
        """Return ``length`` bytes of the endless repetition from byte ``start``."""
        start %= self.nbytes
        if length <= self.nbytes:
            return self.doubled[start : start + length]
        whole, rest = divmod(length, self.nbytes)
        turned = bytes(self.doubled[start : start + self.nbytes])
        return turned * whole + turned[:rest]


def normal_values(seed: int = 0) -> tuple[Floats, Floats]:
    """Draw values for matrices (normal, deviation 0.02) and for norms (around 1, deviation 0.1), each (BLOCK,)."""
    values = np.random.default_rng(seed).standard_normal(BLOCK, dtype=np.float32)
    return values * np.float32(0.02), 1 + values * np.float32(0.1)


def phase(name: str) -> int:
    """Return the position in the block at which a tensor of this name begins."""
    return zlib.crc32(name.encode()) % BLOCK


@dataclass(frozen=True)
class Stored:
    """A virtual tensor. read: returns so many of its ``nbytes`` from a byte on."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    read: Callable[[int, int], bytes | memoryview]


class Shard:
    """A virtual safetensors file. ``tensors``: in file order."""

    def __init__(self, tensors: Sequence[Stored]) -> None:
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        self._tensors = tensors
        self._ends: list[int] = []
        end = 0
        for tensor in tensors:
            start, end = end, end + tensor.nbytes
            header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end]}
            self._ends.append(end)
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._head = len(text).to_bytes(8, "little") + text
        self.size = len(self._head) + end

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """Return ``length`` bytes from ``offset``, as a view if one stretch suffices."""
        pieces = list(self._pieces(offset, offset + length))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _pieces(self, start: int, stop: int) -> Iterator[bytes | memoryview]:
        head = len(self._head)
        if start < head or start == stop:
            yield self._head[start:stop]
        start, stop = max(start - head, 0), stop - head
        place = bisect_right(self._ends, start)
        while start < stop:
            begin, end = self._ends[place - 1] if place else 0, self._ends[place]
            piece = min(end, stop) - start
            if piece > 0:
                yield self._tensors[place].read(start - begin, piece)
                start += piece
            place += 1


def checkpoint(
    tensors: Iterable[tuple[str, tuple[int, ...]]],
    config: Mapping[str, object],
    lineage: str = "bf16",
    shards: int = 1,
    values: Callable[[], tuple[Floats, Floats]] = normal_values,
) -> dict[str, bytes | Contents]:
    """Make the files of a virtual checkpoint in about ``shards`` shards.

    lineage: a key of LINEAGES. values: float32 values of matrices and of 1-D tensors, before they are stored.
    """
    how = LINEAGES[lineage]
    matrices, norms = (how.store(each) for each in values())
    store = partial(stored, how, (repeated(matrices), repeated(norms)))
    return files_of([store(*each) for each in tensors], config, f"{lineage} {zlib.crc32(matrices):08x} {zlib.crc32(norms):08x}", shards)


def stored(how: Lineage, blocks: tuple[Block, Block], name: str, shape: tuple[int, ...]) -> Stored:
    """Return a tensor of values as they are. blocks: of matrices and of 1-D tensors."""
    block, start = blocks[len(shape) == 1], phase(name) * how.itemsize
    return Stored(name, how.dtype, shape, prod(shape) * how.itemsize, lambda at, length: block.stretch(start + at, length))


def files_of(tensors: Sequence[Stored], config: Mapping[str, object], identity: str, shards: int = 1) -> dict[str, bytes | Contents]:
    """Make config.json, the index, and about ``shards`` shards. identity: of the values."""
    total = sum(tensor.nbytes for tensor in tensors)
    limit = ceil(total / shards)
    groups: list[list[Stored]] = [[]]
    filled = 0
    for tensor in tensors:
        if filled >= limit * len(groups):
            groups.append([])
        groups[-1].append(tensor)
        filled += tensor.nbytes
    files: dict[str, bytes | Contents] = {"config.json": json.dumps(config, indent=2).encode()}
    weight_map: dict[str, str] = {}
    for number, group in enumerate(groups, start=1):
        file_name = f"model-{number:05}-of-{len(groups):05}.safetensors" if len(groups) > 1 else "model.safetensors"
        shard = Shard(group)
        files[file_name] = Generated(shard.size, shard.read, f"{identity} {total} {file_name} {group[0].name}")
        weight_map.update((tensor.name, file_name) for tensor in group)
    if len(groups) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        files["model.safetensors.index.json"] = json.dumps(index).encode()
    return files


def repeated(data: bytes) -> Block:
    """Return bytes as a block."""
    return Block(memoryview(data + data), len(data))
