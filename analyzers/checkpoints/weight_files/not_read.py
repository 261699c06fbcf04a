"""Lists the files of a repository that may hold weights and are not read: copies of those that are, other formats, and the rest."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from analyzers.checkpoints.weight_files.file_names import (
    ADAPTER,
    CONSOLIDATED,
    CONVENTIONAL,
    GGUF,
    SAFETENSORS,
    SHARD,
    VARIANT,
    file_name,
    folder,
    is_weights,
    stem,
)
from analyzers.checkpoints.weight_files.gguf_choice import is_projector, same_model
from analyzers.checkpoints.weight_files.other_formats import is_export, other_format
from analyzers.core.coverage import FileCode, NotRead
from analyzers.core.terminal import printable

# Folders in which programs keep the weights in their own formats, next to those of transformers.
_COPIES = re.compile(
    r"original|consolidated|onnx.*|openvino.*|gguf.*|ggml.*|coreml.*|flax.*|tf[12]?|tensorflow.*|tflite.*|mlx.*|metal|tensorrt.*|trt.*|jax"
    r"|executorch|litert|fp16|bf16|fp32|fp8|int8|int4|awq|gptq|exl[23].*",
    re.IGNORECASE,
)
_PARTITION = re.compile(r"mp_rank_\d+_model_states\.pt")  # training state of DeepSpeed
_MAIN = frozenset({"model", "pytorch_model", "diffusion_pytorch_model", "open_clip_pytorch_model", "open_clip_model"})
# Files next to a pipeline that modify it: not copies of it, whatever their size.
_EXTRA = re.compile(r"control|adapter|embed|inversion|lycoris|locon|hypernet", re.IGNORECASE)
_SMALLEST_COPY = 5  # a copy has at least this fraction of the bytes: fp8 for fp32, without storing any tensor twice


@dataclass(frozen=True, slots=True)
class Read:
    """The files that were read, as far as they tell what the others are.

    paths: the files; start: the folder that was searched; folders: those read; pipeline: whether they are the folders of a pipeline;
    whole: whether all of these are there; sizes: bytes of all files.
    """

    paths: tuple[str, ...]
    start: str
    folders: frozenset[str]
    pipeline: bool
    whole: bool
    sizes: Mapping[str, int]


def files_not_read(paths: Iterable[str], read: Read) -> list[NotRead]:
    """List every file among ``paths`` that by its name may hold weights and is not read, by path."""
    classified, chosen = _Classifier(read), set(read.paths)
    found = ((path, classified.code(path)) for path in sorted(paths) if path not in chosen)
    return [NotRead(path=printable(path), code=code) for path, code in found if code is not None]


class _Classifier:
    """Tells copies of the files that are read from others."""

    def __init__(self, read: Read) -> None:
        self._read = read
        # If only adapters were read, files of whole models are no copies of them.
        self._only_adapters = all(ADAPTER.match(file_name(path)) for path in read.paths)
        self._gguf = next((path for path in read.paths if path.endswith(GGUF)), None)
        self._safe = {folder(path) for path in read.paths if path.endswith(SAFETENSORS)}
        self._stems: dict[str, set[str]] = {}
        for path in read.paths:
            self._stems.setdefault(folder(path), set()).add(_unnumbered(stem(file_name(path))))

    def code(self, path: str) -> FileCode | None:
        """Return why a file is not read; None if, by its name, it holds no weights."""
        kind = other_format(path)
        if kind is not None:
            return "repeats" if is_export(kind) and not self._only_adapters else "format"
        if not is_weights(path):
            return None
        where = folder(path)
        copy = self._gguf_copy if path.endswith(GGUF) else self._copy_beside if where in self._read.folders else self._copy_elsewhere
        return "repeats" if copy(path, where, file_name(path)) else "outside"

    def _gguf_copy(self, path: str, _: str, name: str) -> bool:
        if (is_projector(path) and self._gguf is not None) or ADAPTER.match(name):
            return False
        return self._gguf is None or same_model(path, self._gguf)

    def _copy_elsewhere(self, path: str, where: str, name: str) -> bool:
        read = self._read
        if where == read.start and read.pipeline:
            large = read.sizes[path] * _SMALLEST_COPY >= sum(read.sizes[each] for each in read.paths)
            return read.whole and large and not ADAPTER.match(name) and not _EXTRA.search(name)
        inside = where.removeprefix(read.start).strip("/").split("/")
        return bool(_PARTITION.fullmatch(name)) or (not self._only_adapters and any(_COPIES.fullmatch(part) for part in inside))

    def _copy_beside(self, _: str, where: str, name: str) -> bool:
        stems, own = self._stems.get(where, set()), _unnumbered(stem(name))
        variant = VARIANT.fullmatch(own)
        if variant and (variant[1] in stems or (variant[1] in _MAIN and stems & _MAIN)):
            return True
        if name.startswith(CONSOLIDATED) or own in stems:
            return True
        return bool(not ADAPTER.match(name) and CONVENTIONAL.fullmatch(name) and where in self._safe and not self._only_adapters)


def _unnumbered(own: str) -> str:
    """Return the stem of a weight file without "part k of n"."""
    match = SHARD.fullmatch(f"{own}.bin")
    return match[1] + match[4] if match else own
