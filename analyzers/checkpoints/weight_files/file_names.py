"""Recognizes files by their names: weights, indexes and numbered shards, and those that are not read, each with one of three codes."""

import re
from collections.abc import Iterable

from analyzers.core.coverage import FileCode, NotRead
from analyzers.core.errors import InvalidCheckpoint
from analyzers.core.terminal import printable, quoted

SAFETENSORS: tuple[str, ...] = (".safetensors", ".sft")
GGUF = ".gguf"
PICKLED: tuple[str, ...] = (".bin", ".pt", ".pth", ".ckpt")
INDEX = ".index.json"
ENDINGS = (*SAFETENSORS, GGUF, *PICKLED)

# Files that trainers store next to the weights, and files of other programs with the same extensions.
_NO_WEIGHTS = re.compile(
    r"training_args|(optimizer|optim|scheduler|lr_scheduler|scaler|grad_scaler|rng_state|random_states|sampler|dl_state_dict|custom_checkpoint)"
    r"([_-]?\d+)*|.*_optim_states|(.*_)?zero_pp_rank_\d+_mp_rank_\d+_model_states|(openvino|ggml)[_-].*|.*[._-]imatrix|imatrix([._-].*)?"
)
_SHARD = re.compile(r"(.*?)-?([0-9]{1,6})-of-([0-9]{1,6})((?:\.[A-Za-z0-9_-]+)?)\.(safetensors|sft|bin|pt|pth|ckpt|gguf)")
VARIANT = re.compile(r"(.+?)(?:\.(?:non_ema|ema)|[._-](?:fp16|bf16|fp32|fp8(?:_e4m3fn|_e5m2)?))(?:-[0-9]+-of-[0-9]+)?")
ADAPTER = re.compile(r"adapter_|(.*[._-])?lora([._-]|$)", re.IGNORECASE)
CONSOLIDATED = "consolidated"

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
_MAIN = frozenset({"model", "pytorch_model"})
_WIDTH = re.compile(
    r"[-._]?(?<![a-z0-9])(ud-)?(i?q\d\w*|tq\d\w*|mxfp4\w*|nvfp4|f32|fp32|bf16|f16|fp16)(?![a-z0-9])|[-._](i1|imat(rix)?)(?![a-z0-9])",
    re.IGNORECASE,
)


def is_weights(path: str) -> bool:
    """Return whether a file may hold weights, judged by its name: excludes training state."""
    return path.endswith(ENDINGS) and not holds_no_weights(path)


def holds_no_weights(path: str) -> bool:
    """Return whether a file has the extension of weights and the name of something else, such as the optimizer's state."""
    return path.endswith(ENDINGS) and bool(_NO_WEIGHTS.fullmatch(file_name(path).rpartition(".")[0]))


def is_index(path: str) -> bool:
    """Return whether a file is an index of shards, judged by its name."""
    return path.endswith(INDEX) and path.removesuffix(INDEX).endswith((*SAFETENSORS, *PICKLED))


def folder(path: str) -> str:
    """Return the folder of a file, "" for the top folder."""
    return path.rpartition("/")[0]


def file_name(path: str) -> str:
    """Return the name of a file in its folder."""
    return path.rpartition("/")[2]


def stem(name: str) -> str:
    """Return the name of a weight file, or of an index, without its extension."""
    return name.removesuffix(INDEX).rpartition(".")[0]


def unnumbered(name: str) -> str:
    """Return the name of a weight file without its extension and "part k of n"."""
    match = _SHARD.fullmatch(name)
    return match[1] + match[4] if match else stem(name)


def without_variants(names: list[str]) -> list[str]:
    """Return ``names`` without variants of other names in the list, and without consolidated copies if there are other files."""
    stems = {stem(name) for name in names} | {unnumbered(name) for name in names}
    kept = [name for name in names if (match := VARIANT.fullmatch(stem(name))) is None or match[1] not in stems]
    return [name for name in kept if not name.startswith(CONSOLIDATED)] or kept


def grouped(names: Iterable[str], alternatives: bool = False) -> list[tuple[str, ...]]:
    """Group files that belong together: each file alone, and the parts "k of n", counted from 0 or 1, in order.

    alternatives: leave out numberings that lack parts if there is another group. Raises InvalidCheckpoint, which names a missing part.
    """
    groups, missing = list[tuple[str, ...]](), list[str]()
    numberings = dict[tuple[str, ...], dict[int, str]]()
    for name in names:
        match = _SHARD.fullmatch(name)
        if match is None:
            groups.append((name,))
        else:
            numberings.setdefault(match.group(1, 3, 4, 5), {})[int(match[2])] = name
    for (_, total, _, _), parts in numberings.items():
        first = 0 if 0 in parts else 1
        lost = next((number for number in range(first, first + int(total)) if number not in parts), None)
        if lost is None:
            groups.append(tuple(parts[number] for number in sorted(parts)))
        else:
            missing.append(_renumbered(next(iter(parts.values())), lost))
    if missing and not (groups and alternatives):
        raise InvalidCheckpoint(f"The checkpoint is incomplete: {quoted(missing[0], 200)} is missing.")
    return groups


def _renumbered(name: str, number: int) -> str:
    """Return the name of another part of the same numbering."""
    match = _SHARD.fullmatch(name)
    assert match is not None
    return f"{name[: match.start(2)]}{number:0{len(match[2])}d}{name[match.end(2) :]}"


def format_of(path: str) -> str:
    """Return "export" or "other" for a file in a format that is not read, judged by its name; "" for any other file."""
    name = file_name(path)
    return "export" if _EXPORT.fullmatch(name) else "other" if _OTHER.fullmatch(name) else ""


def is_projector(path: str) -> bool:
    """Return whether a GGUF file holds the encoder of images or sound that feeds a language model."""
    return file_name(path).lower().startswith("mmproj")


def files_not_read(paths: Iterable[str], chosen: Iterable[str], start: str) -> list[NotRead]:
    """List every file among ``paths`` that by its name may hold weights and is not ``chosen``, by path. start: the folder searched."""
    read = set(chosen)
    names = {(folder(path), unnumbered(file_name(path))) for path in read}
    folders = {where for where, _ in names}
    models = {_model(path) for path in read if path.endswith(GGUF)}
    only_adapters = all(ADAPTER.match(file_name(path)) for path in read)  # files of whole models are not copies of adapters

    def repeats(path: str) -> bool:
        where, name = folder(path), file_name(path)
        own = unnumbered(name)
        if only_adapters or ADAPTER.match(name) or is_projector(path):
            return (where, own) in names
        if path.endswith(GGUF):
            return not models or _model(path) in models
        if where not in folders:
            return any(_COPIES.fullmatch(part) for part in where.removeprefix(start).strip("/").split("/"))
        variant = VARIANT.fullmatch(own)
        own = variant[1] if variant else own
        return name.startswith(CONSOLIDATED) or any((where, other) in names for other in (_MAIN if own in _MAIN else (own,)))

    def code(path: str) -> FileCode | None:
        kind = format_of(path)
        if kind:
            return "repeats" if kind == "export" and not only_adapters else "format"
        return None if not is_weights(path) else "repeats" if repeats(path) else "outside"

    codes = ((path, code(path)) for path in sorted(paths) if path not in read)
    return [NotRead(path=printable(path), code=why) for path, why in codes if why is not None]


def _model(path: str) -> str:
    """Return the name of the model in a GGUF file: that of the file without width and part."""
    return _WIDTH.sub("", unnumbered(file_name(path))).lower().strip("-._")
