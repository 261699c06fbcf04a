"""Lists the files of a repository that may hold weights and are not read, by their names, each with one of three codes."""

import re
from collections.abc import Iterable

from analyzers.checkpoints.weight_files.file_names import (
    ADAPTER,
    CONSOLIDATED,
    GGUF,
    VARIANT,
    file_name,
    folder,
    is_weights,
    unnumbered,
)
from analyzers.core.coverage import FileCode, NotRead
from analyzers.core.terminal import printable

# Formats that are not read (docs/conversions.md): next to weights, exports of the same, and others.
_EXPORT = re.compile(
    r".*\.(h5|hdf5|keras|msgpack|pb|pdparams|pdiparams|onnx|onnx_data|onnx\.data|onnx_data_\d+|ort|ot|tflite|litertlm|mlmodel|pte|engine|nemo"
    r"|ggml|data-\d+-of-\d+)|(openvino|ggml)_.*\.bin|(.*_)?zero_pp_rank_.*\.pt|weight\.bin",
    re.DOTALL,
)
_OTHER = re.compile(
    r"(?!vocab|token|label|optim|config|scaler|rng_state).*\.(distcp|ocdbt|npz|npy|zip|tar|gz|tgz|bz2|xz|zst|7z|rar)", re.DOTALL
)
# Folders in which programs keep the weights in their own formats, next to those of transformers.
_COPIES = re.compile(
    r"original|consolidated|onnx.*|openvino.*|gguf.*|mlx.*|coreml.*|flax.*|tf|tensorrt.*|metal|fp16|bf16|fp32|fp8|int8|int4"
)
_MAIN = frozenset({"model", "pytorch_model", "diffusion_pytorch_model", "open_clip_pytorch_model", "open_clip_model"})
_WIDTH = re.compile(
    r"[-._]?(?<![a-z0-9])(ud-)?(i?q\d\w*|tq\d\w*|mxfp4\w*|nvfp4|f32|fp32|bf16|f16|fp16)(?![a-z0-9])|[-._](i1|imat(rix)?)(?![a-z0-9])",
    re.IGNORECASE,
)
_PROJECTOR = "mmproj"


def format_of(path: str) -> str:
    """Return "export" or "other" for a file in a format that is not read, judged by its name; "" for any other file."""
    name = file_name(path)
    if name.endswith(".distcp") and "optim" in path:
        return ""
    return "export" if _EXPORT.fullmatch(name) else "other" if _OTHER.fullmatch(name) else ""


def is_projector(path: str) -> bool:
    """Return whether a GGUF file holds the encoder of images or sound that feeds a language model."""
    return file_name(path).lower().startswith(_PROJECTOR)


def files_not_read(paths: Iterable[str], chosen: Iterable[str], start: str) -> list[NotRead]:
    """List every file among ``paths`` that by its name may hold weights and is not ``chosen``, by path. start: the folder searched."""
    read = set(chosen)
    stems: dict[str, set[str]] = {}
    for path in read:
        stems.setdefault(folder(path), set()).add(unnumbered(file_name(path)))
    gguf = next((_model(path) for path in read if path.endswith(GGUF)), None)
    adapters = all(ADAPTER.match(file_name(path)) for path in read)  # files of whole models are no copies of them

    def repeats(path: str) -> bool:
        where, name = folder(path), file_name(path)
        if adapters or ADAPTER.match(name) or is_projector(path):
            return unnumbered(name) in stems.get(where, ())
        if path.endswith(GGUF):
            return gguf is None or _model(path) == gguf
        if where not in stems:
            return any(_COPIES.fullmatch(part) for part in where.removeprefix(start).strip("/").split("/"))
        own = unnumbered(name)
        variant = VARIANT.fullmatch(own)
        plain, beside = variant[1] if variant else own, stems[where]
        return plain in beside or name.startswith(CONSOLIDATED) or (plain in _MAIN and not beside.isdisjoint(_MAIN))

    def code(path: str) -> FileCode | None:
        kind = format_of(path)
        if kind:
            return "repeats" if kind == "export" and not adapters else "format"
        return None if not is_weights(path) else "repeats" if repeats(path) else "outside"

    codes = ((path, code(path)) for path in sorted(paths) if path not in read)
    return [NotRead(path=printable(path), code=why) for path, why in codes if why is not None]


def _model(path: str) -> str:
    """Return the name of the model in a GGUF file: that of the file without width and part."""
    return _WIDTH.sub("", unnumbered(file_name(path))).lower().strip("-._")
