"""Recognizes weights in formats that are not read, by file names. docs/conversions.md says how to convert each."""

import re
from collections.abc import Iterable

from analyzers.core.terminal import quoted

# If a checkpoint holds several formats, an error names the first of these.
_DISTRIBUTED, _ZERO = "a distributed checkpoint of PyTorch", "partitions of DeepSpeed ZeRO"
_MEGATRON = "a Megatron checkpoint of several ranks"
_NEMO, _GGML, _KERAS, _FLAX, _ORBAX = "a NeMo archive", "a GGML file", "weights for Keras", "weights for Flax", "an Orbax checkpoint of JAX"
_TENSORFLOW, _PADDLE, _NUMPY, _ONNX = "a TensorFlow checkpoint", "weights for PaddlePaddle", "NumPy arrays", "weights for ONNX"
_ENGINE, _ARCHIVE = "a file of an inference engine", "an archive"
_PRECEDENCE = (
    _DISTRIBUTED, _ZERO, _MEGATRON, _NEMO, _GGML, _KERAS, _FLAX, _ORBAX, _TENSORFLOW, _PADDLE, _NUMPY, _ONNX, _ENGINE, _ARCHIVE,
)  # fmt: skip
# Next to weights, files of these hold others; those of the other formats are exports of the same.
_NO_EXPORTS = frozenset({_DISTRIBUTED, _MEGATRON, _NUMPY, _ARCHIVE})
_ENDINGS = {
    "distcp": _DISTRIBUTED, "nemo": _NEMO, "ggml": _GGML, "ggjt": _GGML, "h5": _KERAS, "hdf5": _KERAS, "keras": _KERAS, "msgpack": _FLAX,
    "ocdbt": _ORBAX, "pb": _TENSORFLOW, "pdparams": _PADDLE, "pdiparams": _PADDLE, "npz": _NUMPY, "npy": _NUMPY,
    **dict.fromkeys(("onnx", "onnx_data", "ort"), _ONNX),
    **dict.fromkeys(("mlmodel", "ot", "tflite", "litertlm", "task", "engine", "plan", "pte"), _ENGINE),
    **dict.fromkeys(("mnn", "rknn", "llamafile", "caffemodel"), _ENGINE),
    **dict.fromkeys(("zip", "tar", "gz", "tgz", "bz2", "xz", "zst", "7z", "rar"), _ARCHIVE),
}  # fmt: skip
_NAMES = (
    (re.compile(r"(.*_)?zero_pp_rank_\d+_mp_rank_\d+_(optim|model)_states\.pt"), _ZERO),
    (re.compile(r"ggml[_-].*\.bin"), _GGML),
    (re.compile(r"openvino_.*\.bin|weight\.bin"), _ENGINE),  # weight.bin: in packages of Core ML; elsewhere it is read
    (re.compile(r".*\.data-\d+-of-\d+|.*\.ckpt[^/]*\.index"), _TENSORFLOW),
    (re.compile(r".*\.onnx(\.data|_data_\d+)"), _ONNX),
)
_CHECKED = re.compile(r"\.(pt|bin|index|data|onnx_data_\d+|data-\d+-of-\d+)$")
# Whole names of arrays and archives that are stored next to weights and hold none.
_NO_MODEL = re.compile(
    r"(vocab|token(s|izer)?|labels?|scaler|rng_states?|config|(training_)?args|optim(izer)?|(training_|train_)?data(set)?|stats|features?)"
    r"([_-]?\d+)?\.(npy|zip|tar|t?gz|tar\.gz|bz2|xz|zst|7z|rar)",
    re.IGNORECASE,
)
_OPTIMIZER = re.compile(r"(^|/)optim", re.IGNORECASE)
_RANK = re.compile(r"(?:.*/)?(mp_rank_\d+(?:_\d+)?)(?:/model(?:_optim)?_rng|_model_states)\.pt")


def other_format(path: str) -> str | None:
    """Name the format of a file that holds weights and is not read, judged by its name; None for any other file."""
    name = path.rpartition("/")[2]
    found = _ENDINGS.get(name.rpartition(".")[2].lower())
    if found is None and _CHECKED.search(name):
        found = next((kind for pattern, kind in _NAMES if pattern.fullmatch(name)), None)
    if found == _ARCHIVE and name.endswith((".pth.tar", ".pt.tar")):  # PyTorch files, written by torch.save
        return None
    if (found in (_NUMPY, _ARCHIVE) and _NO_MODEL.fullmatch(name)) or (found == _DISTRIBUTED and _OPTIMIZER.search(path)):
        return None
    return found


def is_export(kind: str) -> bool:
    """Return whether a file of a format, next to weights, is an export of the same weights."""
    return kind not in _NO_EXPORTS


def megatron_ranks(paths: Iterable[str]) -> list[str]:
    """Return the files of a Megatron checkpoint of several ranks; empty for a single rank, which holds whole matrices."""
    ranks = {path: match[1] for path in paths if (match := _RANK.fullmatch(path))}
    return list(ranks) if len(set(ranks.values())) > 1 else []


def only_other_formats(paths: Iterable[str]) -> str:
    """Write a sentence on what a checkpoint without weight files holds, and where to read how to convert it; "" if no format is known."""
    every = list(paths)
    found = dict.fromkeys(megatron_ranks(every), _MEGATRON)
    found |= {path: kind for path in every if (kind := other_format(path)) is not None}
    if not found:
        return ""
    first = min(found, key=lambda path: (_PRECEDENCE.index(found[path]), path))
    return f"The checkpoint holds {found[first]}, such as {quoted(first, 200)}, which is not read: see docs/conversions.md to convert it."
