"""Treats the tensors that a program holds in memory as the safetensors file that saving them would write, without writing it."""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any

from analyzers.checkpoints.formats.safetensors_header import written_header
from analyzers.checkpoints.local import HASHED_WHOLE_BYTES, LocalRepository
from analyzers.checkpoints.reference import quoted
from analyzers.checkpoints.repository import RangeFile, read_range
from analyzers.checkpoints.tensor import DTYPE_BITS
from analyzers.core import limits
from analyzers.core.errors import CheckpointNotFound
from analyzers.numerics.torch_kernels import checksums

WEIGHTS = "model.safetensors"
# Order of dtypes in a file written by the safetensors library, widest first.
_ORDER = {dtype: -number for number, dtype in enumerate(DTYPE_BITS)}
_HASHED_AT_ONCE = 8 << 20


@dataclass(frozen=True, slots=True)
class MemoryTensor:
    """A tensor in memory.

    dtype: as safetensors names it; read_into: fills a buffer with its row-major bytes from an offset on, from any thread; value: the tensor
    itself, for running the model; patterns: (n,) those of torch's integers, in place.
    """

    dtype: str
    shape: tuple[int, ...]
    read_into: Callable[[int, memoryview], None]
    value: Any
    patterns: Any = None

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return prod(self.shape) * DTYPE_BITS[self.dtype] // 8


class MemoryFile:
    """Tensors in memory, concatenated, as a file for positioned reads."""

    def __init__(self, path: str, parts: Iterable[MemoryTensor]) -> None:
        self.path = path
        self._parts = [part for part in parts if part.nbytes]
        self._ends = list(accumulate(part.nbytes for part in self._parts))
        self.size = self._ends[-1] if self._ends else 0

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``offset`` on."""
        while len(buffer):
            number = bisect_right(self._ends, offset)
            part = self._parts[number]
            within = offset - (self._ends[number] - part.nbytes)
            count = min(len(buffer), part.nbytes - within)
            part.read_into(within, buffer[:count])
            offset, buffer = offset + count, buffer[count:]

    def patterns(self, offset: int, count: int, device: str) -> Any:
        """``count`` patterns from byte ``offset`` on, where they are; None unless they are those of a tensor on such a device."""
        number = bisect_right(self._ends, offset)
        part, held = self._parts[number], self._parts[number].patterns
        if held is None or held.device.type != device:
            return None
        first = (offset - (self._ends[number] - part.nbytes)) // held.element_size()
        return held[first : first + count]


class MemoryRepository:
    """Tensors and small files in memory as a `Repository`.

    name: reports call it ``memory:NAME``; tensors: by name; small: path -> contents of config.json and the tokenizer's files.
    """

    public = False
    range_requests = LocalRepository.range_requests  # as for local files, so that the same sample is drawn

    def __init__(self, name: str, tensors: Mapping[str, MemoryTensor], small: Mapping[str, bytes]) -> None:
        self.ref = f"memory:{name}"
        self.tensors = dict(sorted(tensors.items(), key=lambda item: (_ORDER[item[1].dtype], item[0])))
        self.parallel_reads = max(2, min(8, limits.cores()))  # as for local files
        header = written_header((name, each.dtype, each.shape, each.nbytes) for name, each in self.tensors.items())
        self._files = {path: MemoryFile(path, [_part(content)]) for path, content in small.items()}
        self._files[WEIGHTS] = MemoryFile(WEIGHTS, [_part(header), *self.tensors.values()])
        self.files: Mapping[str, int] = {path: self._files[path].size for path in sorted(self._files)}

    @property
    def device(self) -> str:
        """The kind of device that all tensors are on; "cpu" where they are on several."""
        kinds = {"cpu" if each.patterns is None else each.patterns.device.type for each in self.tensors.values()}
        return kinds.pop() if len(kinds) == 1 else "cpu"

    @cached_property
    def commit(self) -> str:
        """SHA-256 (hex) over names, sizes and contents of weights and config.json, equal to that of a local checkpoint of up to 64 MiB.

        Above 64 MiB, contents of tensors that are on another device are replaced by `checksums`, which are computed there.
        """
        digest = hashlib.sha256()
        for path, size in self.files.items():
            if path in (WEIGHTS, "config.json"):
                digest.update(len(path).to_bytes(8, "little") + path.encode() + size.to_bytes(8, "little"))
                if path == WEIGHTS and self.device != "cpu" and size > HASHED_WHOLE_BYTES:
                    size = size - sum(each.nbytes for each in self.tensors.values())  # the header
                    digest.update(b"".join(checksums(each.patterns) for each in self.tensors.values()))
                for offset in range(0, size, _HASHED_AT_ONCE):
                    digest.update(read_range(self._files[path], offset, min(_HASHED_AT_ONCE, size - offset)))
        return digest.hexdigest()

    def open(self, path: str) -> RangeFile:
        """Open one of ``files``. Raises CheckpointNotFound."""
        if path not in self._files:
            raise CheckpointNotFound(f"{quoted(self.ref)} holds no file {quoted(path)}.")
        return self._files[path]

    def close(self) -> None:
        """Do nothing: the memory is the caller's."""


def _part(content: bytes) -> MemoryTensor:
    def read_into(offset: int, buffer: memoryview) -> None:
        buffer[:] = content[offset : offset + len(buffer)]

    return MemoryTensor("U8", (len(content),), read_into, content)
