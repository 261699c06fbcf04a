"""Explains why files of a repository that may hold weights are not read: copies of the weights that are read, and all others."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from analyzers.checkpoints.reference import quoted
from analyzers.checkpoints.weight_files.component_folders import PIPELINE
from analyzers.checkpoints.weight_files.file_names import (
    ADAPTER,
    CONSOLIDATED,
    CONVENTIONAL,
    GGUF,
    PICKLED,
    SAFETENSORS,
    SHARD,
    VARIANT,
    file_name,
    folder,
    is_weights,
    stem,
    step,
)
from analyzers.checkpoints.weight_files.gguf_choice import is_projector, same_model
from analyzers.checkpoints.weight_files.other_formats import other_format
from analyzers.terminal import not_read, printable

# Folders in which programs keep the weights in their own formats, next to those of transformers.
_COPIES = re.compile(
    r"original|consolidated|onnx.*|openvino.*|gguf.*|ggml.*|coreml.*|flax.*|tf[12]?|tensorflow.*|tflite.*|mlx.*|metal|tensorrt.*|trt.*|jax"
    r"|executorch|litert|fp16|bf16|fp32|fp8|int8|int4|awq|gptq|exl[23].*",
    re.IGNORECASE,
)
_PARTITION = re.compile(r"mp_rank_\d+_model_states\.pt")
_MAIN = frozenset({"model", "pytorch_model", "diffusion_pytorch_model", "open_clip_pytorch_model", "open_clip_model"})
# Files next to a pipeline that modify it: not copies of it, whatever their size.
_EXTRA = re.compile(r"control|adapter|embed|inversion|lycoris|locon|hypernet", re.IGNORECASE)
_SMALLEST_COPY = 5  # a copy has at least this fraction of the bytes: fp8 for fp32, without storing any tensor twice
_PICKLE = "by name the same weights as a pickle, not compared"


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file that may hold weights and was not read.

    path: printable; why: a clause that follows it; alternative: whether, by its name, it repeats the weights that were read; nobody has
    compared the values.
    """

    path: str
    why: str
    alternative: bool = False


@dataclass(frozen=True, slots=True)
class Read:
    """The files that were read, as far as they explain why others were not.

    paths: the files; start: the folder that was searched; folders: those read; components: the file that lists the folders of the model;
    whole: whether they are a whole pipeline; sizes: bytes of all files; indexed: folders whose files an index names.
    """

    paths: tuple[str, ...]
    start: str
    folders: frozenset[str]
    components: str = ""
    whole: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)
    indexed: frozenset[str] = frozenset()


def skipped_files(paths: Iterable[str], read: Read, pending: Iterable[str] = ()) -> tuple[SkippedFile, ...]:
    """List every file among ``paths`` that may hold weights and is not read, by path. pending: files that are decided on later."""
    reasons, settled = _Reasons(read), {*read.paths, *pending}
    return tuple(found for path in sorted(paths) if path not in settled and (found := reasons.reason(path)) is not None)


def notes_on(skipped: Sequence[SkippedFile], gguf: bool) -> list[str]:
    """Write notes that name the first files for each reason. gguf: whether a GGUF file was read; its own note covers other GGUF files."""
    noted = [each for each in skipped if not (gguf and each.alternative and each.path.endswith(GGUF))]
    return not_read((each.path, each.why) for each in sorted(noted, key=lambda each: each.alternative))


class _Reasons:
    """Finds the reason why a file is not read."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._stems: dict[str, set[str]] = {}
        # If only adapters were read, files of whole models are no copies of them.
        self._only_adapters = all(ADAPTER.match(file_name(path)) for path in read.paths)
        self._gguf = next((path for path in read.paths if path.endswith(GGUF)), None)
        self._safe = {folder(path) for path in read.paths if path.endswith(SAFETENSORS)}
        for path in read.paths:
            self._stems.setdefault(folder(path), set()).add(_unnumbered(stem(file_name(path))))

    def reason(self, path: str) -> SkippedFile | None:
        """Return the reason why a file is not read; None if, by its name, it holds no weights."""
        kind = other_format(path)
        if kind is not None:
            return self._skip(path, f"{kind.what}: {kind.convert}", kind.export and not self._only_adapters)
        if not is_weights(path):
            return None
        if path.endswith(GGUF):
            return self._other_gguf(path)
        where, name = folder(path), file_name(path)
        if where not in self._read.folders:
            return self._other_folder(path, where)
        return self._same_folder(path, where, name)

    def _other_gguf(self, path: str) -> SkippedFile:
        if is_projector(path) and self._gguf is not None:
            return self._skip(path, "the encoder of images or sound, which is another part of the model")
        if ADAPTER.match(file_name(path)):
            return self._skip(path, "an adapter by its name")
        if self._gguf is None or same_model(path, self._gguf):
            return self._skip(path, "by name the same weights as GGUF, not compared", alternative=True)
        return self._skip(path, "another model by its name")

    def _other_folder(self, path: str, where: str) -> SkippedFile:
        read = self._read
        if where == read.start and read.components.endswith(PIPELINE):
            if ADAPTER.match(name := file_name(path)):
                return self._skip(path, "an adapter by its name")
            if not read.whole:
                return self._skip(path, f"next to the folders of {quoted(read.components, 200)}, which are not all there")
            if _EXTRA.search(name) or read.sizes[path] * _SMALLEST_COPY < sum(read.sizes[each] for each in read.paths):
                return self._skip(path, f"next to the folders of {quoted(read.components, 200)}, and no copy of them by its name or size")
            return self._skip(
                path, f"by name and size a copy in one file of the folders of {quoted(read.components, 200)}, not compared", True
            )
        inside = where.removeprefix(read.start).strip("/").split("/")
        if _PARTITION.fullmatch(file_name(path)):
            return self._skip(path, "the training state of DeepSpeed", alternative=True)
        if not self._only_adapters and any(_COPIES.fullmatch(part) for part in inside):
            return self._skip(path, "by the folder's name the same weights in another format, not compared", alternative=True)
        if step(where):
            return self._skip(path, "another checkpoint of the training")
        if read.components:
            return self._skip(path, f"in a folder that {printable(read.components)} does not name")
        return self._skip(path, "in a folder that is not part of the model")

    def _same_folder(self, path: str, where: str, name: str) -> SkippedFile:
        stems = self._stems.get(where, set())
        own = _unnumbered(stem(name))
        variant = VARIANT.fullmatch(own)
        if variant and (variant[1] in stems or (variant[1] in _MAIN and stems & _MAIN)):
            return self._skip(path, "by name a precision variant of the same weights, not compared", alternative=True)
        if name.startswith(CONSOLIDATED):
            return self._skip(path, "by name a consolidated copy of the same weights, not compared", alternative=True)
        if own in stems:
            what = _PICKLE if name.endswith(PICKLED) and where in self._safe else "by name the same weights in other files, not compared"
            return self._skip(path, what, alternative=True)
        if ADAPTER.match(name):
            loaded = name.startswith("adapter_model.") and path.replace(name, "adapter_config.json") in self._read.sizes
            return self._skip(path, f"an adapter{', which transformers loads on top of these weights' if loaded else ' by its name'}")
        if CONVENTIONAL.fullmatch(name) and where in self._safe and not self._only_adapters:
            return self._skip(path, _PICKLE, alternative=True)
        if where in self._read.indexed:
            return self._skip(path, "no index names it")
        return self._skip(path, "next to the files that make up the model")

    @staticmethod
    def _skip(path: str, why: str, alternative: bool = False) -> SkippedFile:
        return SkippedFile(printable(path), why, alternative)


def _unnumbered(own: str) -> str:
    """Return the stem of a weight file without "part k of n"."""
    match = SHARD.fullmatch(f"{own}.bin")
    return match[1] + match[4] if match else own
