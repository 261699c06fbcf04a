"""The facts behind the rules on engines: tensors as stored, settings of quantization, small files, and few values, read once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import DTYPE_BITS, Checkpoint, Tensor, read_range
from analyzers.checkpoints.repository import read_object
from analyzers.core import limits
from analyzers.core.notes import Note
from analyzers.dtype.statistics import TensorResult
from analyzers.language_models.load_report import LoadReport
from analyzers.numerics.bins import NARROW
from analyzers.numerics.conversions import values_of
from analyzers.numerics.formats import FNUZ, e8m0_values

Floats = NDArray[np.float64]
BUDGET = 1_000_000  # bytes of values that all of the rules together read, however large the checkpoint
_READS = 2_000  # ranges that `Values.samples` asks for at once: each is a request on the Hub
_GAP, _LONGEST = 256, 100_000  # bytes between two small tensors that are read along with them, and of all that is read at once
_INTEGERS = {"U8": "u1", "I8": "i1", "BOOL": "u1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8", "I64": "<i8"}
_FLOATS = ("F8_E8M0", "F64", "F32", "BF16", *NARROW, *FNUZ)
# Where settings of quantization stand: (file, path of keys)
_SETTINGS = (
    ("config.json", ("quantization_config",)), ("config.json", ("text_config", "quantization_config")),
    ("config.json", ("compression_config",)), ("config.json", ("quantization",)), ("hf_quant_config.json", ("quantization",)),
    ("quantize_config.json", ()), ("quant_config.json", ()),
)  # fmt: skip


class Values:
    """Reads values of stored tensors, at most `BUDGET` bytes in all; beyond that nothing."""

    def __init__(self) -> None:
        self._left = BUDGET

    def read(self, checkpoint: Checkpoint, tensor: Tensor, start: int, count: int) -> Floats:
        """Return (n,) values from element ``start`` on, n <= count; empty for views, packed dtypes and without budget."""
        size = tensor.itemsize
        count = min(count, tensor.elements - start, self._left // size) if _is_plain(tensor) else 0
        if count <= 0:
            return np.empty(0)
        return _decode(self._bytes(checkpoint, tensor.file, tensor.offset + start * size, count * size), tensor.dtype)

    def samples(self, checkpoint: Checkpoint, tensors: Sequence[Tensor], budget: int, least: int = 8) -> dict[str, Floats]:
        """Return the first values of tensors, by name, as many of each as ``budget`` bytes allow, and ``least`` bytes or more.

        Neighbours in a file are read at once: of a hundred thousand scalars, most stand side by side. Evenly chosen tensors are left out if
        there are too many.
        """
        plain = [tensor for tensor in tensors if _is_plain(tensor)]
        each = max(least, budget // max(1, len(plain)))
        spans = [(t.file, t.offset, min(t.nbytes, each // t.itemsize * t.itemsize), t) for t in plain[:: 1 + least * len(plain) // budget]]
        runs: list[list[tuple[int, int, int, Tensor]]] = []
        for span in sorted(spans, key=lambda span: span[:2]):
            last = runs[-1][-1] if runs else None
            near = last is not None and last[0] == span[0] and 0 <= span[1] - last[1] - last[2] <= _GAP
            if near and span[1] + span[2] - runs[-1][0][1] <= _LONGEST:
                runs[-1].append(span)
            else:
                runs.append([span])
        found: dict[str, Floats] = {}
        for run in runs[:: 1 + len(runs) // _READS]:
            start, stop = run[0][1], run[-1][1] + run[-1][2]
            if stop - start <= self._left:
                raw = self._bytes(checkpoint, run[0][0], start, stop - start)
                found |= {t.name: _decode(raw[offset - start :][:nbytes], t.dtype) for _, offset, nbytes, t in run}
        return found

    def same_bytes(self, one: tuple[Checkpoint, Tensor], other: tuple[Checkpoint, Tensor], most: int) -> int:
        """Return how many of the first ``most`` bytes of two tensors were compared, if all are equal; else 0."""
        count = min(one[1].nbytes, most, self._left // 2)
        if one[1].nbytes != other[1].nbytes or one[1].strides is not None or other[1].strides is not None:
            return 0
        first, second = (self._bytes(checkpoint, tensor.file, tensor.offset, count) for checkpoint, tensor in (one, other))
        return count if np.array_equal(first, second) else 0

    def _bytes(self, checkpoint: Checkpoint, file: int, start: int, count: int) -> NDArray[np.uint8]:
        self._left -= count
        return np.frombuffer(read_range(checkpoint.files[file], start, count), np.uint8)


def _is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor has values that stand one after the other, in a dtype that `_decode` knows."""
    return tensor.strides is None and tensor.elements > 0 and tensor.dtype in (*_INTEGERS, *_FLOATS)


def _decode(raw: NDArray[np.uint8], dtype: str) -> Floats:
    if dtype in _INTEGERS:
        return raw.view(_INTEGERS[dtype]).astype(np.float64)
    if dtype == "F8_E8M0":
        return e8m0_values()[raw]
    with np.errstate(all="ignore"):
        return values_of(raw.view(f"<u{DTYPE_BITS[dtype] // 8}"), dtype)


@dataclass(frozen=True)
class EngineFacts:
    """The input of the rules on engines.

    results: of the pass over all values, none if they could not be read; loading: transformers' report, None if it is unknown; base: the
    checkpoint that the model was trained from; notes: receives what could not be judged.
    """

    checkpoint: Checkpoint
    results: Sequence[TensorResult] = ()
    loading: LoadReport | None = None
    base: "EngineFacts | None" = None
    values: Values = field(default_factory=Values)
    notes: list[Note] = field(default_factory=list)

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """Tensors as the headers describe them, by name, without those of other components, whose names begin with a folder."""
        found = (tensor.on_disk for tensor in (*self.checkpoint.tensors, *self.checkpoint.aliases))
        return {tensor.name: tensor for tensor in found if "/" not in tensor.name}

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The contents of config.json."""
        return self.checkpoint.config or {}

    @cached_property
    def settings(self) -> Sequence[Mapping[str, Any]]:
        """The settings of quantization in config.json and in files next to it; each once."""
        found = list[Mapping[str, Any]]()
        for file, keys in _SETTINGS:
            value: Any = self.config if file == "config.json" else self.json(file)
            for key in keys:
                value = value.get(key) if isinstance(value, dict) else None
            if isinstance(value, dict) and value and value not in found:
                found.append(value)
        return found

    @cached_property
    def loads_whole(self) -> bool:
        """Return whether transformers finds every parameter of the model."""
        loading = self.loading
        return loading is not None and not (loading.refused or loading.quantized or loading.missing or loading.mismatched)

    def sections(self) -> Iterator[Mapping[str, Any]]:
        """Yield config.json and the parts in it that describe the language model, the outermost first."""
        queue: list[tuple[Mapping[str, Any], int]] = [(self.config, 0)]
        for section, depth in queue:
            yield section
            inner = [value for key, value in section.items() if key.startswith(("text", "llm", "language", "thinker", "decoder", "mtp"))]
            queue += [(value, depth + 1) for value in inner if isinstance(value, dict) and depth < 3]

    def json(self, path: str) -> Mapping[str, Any]:
        """Read a JSON object next to the weights; empty if it is missing, too large or damaged."""
        return read_object(self.checkpoint.repository, path, limits.CONFIG_BYTES)
