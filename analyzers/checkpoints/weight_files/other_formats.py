"""Recognizes weights in formats that Mantissa does not read, by file names, and says how to convert each."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from analyzers.checkpoints.reference import quoted


class OtherFormat(NamedTuple):
    """A format that is not read.

    what: names it; convert: how to obtain a file that is read; export: whether such a file next to weights is an export of the same
    weights.
    """

    what: str
    convert: str
    export: bool = True


_ORIGINAL = "take the model that it was exported from"
_DISTRIBUTED = OtherFormat(
    "a distributed checkpoint of PyTorch (.distcp)",
    "join it with 'python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER model.pt' and read model.pt",
    export=False,
)
_ZERO = OtherFormat(
    "partitions of DeepSpeed ZeRO",
    "join them with 'python zero_to_fp32.py FOLDER OUT --safe_serialization', a script that DeepSpeed stores next to them, and read OUT",
)
_MEGATRON = OtherFormat(
    "a Megatron checkpoint of several ranks, each with a part of every matrix",
    "join them with Megatron Bridge (AutoBridge.export_ckpt) or with 'python tools/checkpoint/convert.py' of Megatron-LM",
    export=False,
)
_NEMO = OtherFormat("a NeMo archive (.nemo)", "unpack it with 'tar -xf FILE' and read the model_weights.ckpt inside")
_GGML = OtherFormat("a GGML file, the format before GGUF", "convert it with 'python convert_llama_ggml_to_gguf.py' of llama.cpp")
_KERAS = OtherFormat(
    "weights for TensorFlow (.h5)",
    "with transformers 4, AutoModel.from_pretrained(FOLDER, from_tf=True).save_pretrained(OUT) converts them",
)
_FLAX = OtherFormat(
    "weights for Flax (.msgpack)",
    "with transformers 4, AutoModel.from_pretrained(FOLDER, from_flax=True).save_pretrained(OUT) converts them",
)
_ORBAX = OtherFormat(
    "an Orbax checkpoint of JAX (ocdbt)",
    "restore it with orbax.checkpoint.PyTreeCheckpointer().restore(FOLDER) and save its arrays with safetensors.flax.save_file",
)
_TENSORFLOW = OtherFormat(
    "a TensorFlow checkpoint",
    "with r = tf.train.load_checkpoint(PATH), save {name: r.get_tensor(name) for name in r.get_variable_to_shape_map()} with "
    "safetensors.numpy.save_file; the variables of a SavedModel are in variables/variables",
)
_ONNX = OtherFormat(
    "weights for ONNX",
    "save {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load(FILE).graph.initializer} with safetensors.numpy.save_file",
)
_NUMPY = OtherFormat(
    "a NumPy archive (.npz), as MLX writes it",
    "convert it with safetensors.numpy.save_file(dict(numpy.load(FILE)), 'model.safetensors')",
    export=False,
)
_OPENVINO = OtherFormat("weights for OpenVINO", _ORIGINAL)
_CORE_ML = OtherFormat("weights for Core ML", _ORIGINAL)
_ENGINE = OtherFormat("a file of an inference engine", _ORIGINAL)
_CAFFE = OtherFormat("weights for Caffe (.caffemodel)", _ORIGINAL)
_RUST = OtherFormat("weights for Rust (.ot)", _ORIGINAL)
_PADDLE = OtherFormat(
    "weights for PaddlePaddle", "save {name: t.numpy() for name, t in paddle.load(FILE).items()} with safetensors.numpy.save_file"
)
_ARRAY = OtherFormat(
    "a NumPy array (.npy)", "convert it with safetensors.numpy.save_file({NAME: numpy.load(FILE)}, 'model.safetensors')", export=False
)
_IMATRIX = OtherFormat("an importance matrix, statistics for quantization without weights", "the model that it was measured on has them")
_ARCHIVE = OtherFormat("an archive", "unpack it and read the files inside", export=False)
# If one checkpoint holds several formats, an error names the first of these.
_PRECEDENCE = (
    _DISTRIBUTED, _ZERO, _MEGATRON, _NEMO, _GGML, _KERAS, _FLAX, _ORBAX, _TENSORFLOW, _PADDLE, _NUMPY, _ONNX, _OPENVINO, _CORE_ML, _RUST,
    _CAFFE, _ENGINE, _ARRAY, _ARCHIVE, _IMATRIX,
)  # fmt: skip

_ENDINGS = {
    "distcp": _DISTRIBUTED, "nemo": _NEMO, "ggml": _GGML, "ggjt": _GGML, "h5": _KERAS, "hdf5": _KERAS, "keras": _KERAS, "msgpack": _FLAX,
    "ocdbt": _ORBAX, "pb": _TENSORFLOW, "pdparams": _PADDLE, "pdiparams": _PADDLE, "npz": _NUMPY, "onnx": _ONNX, "onnx_data": _ONNX,
    "ort": _ONNX, "mlmodel": _CORE_ML, "ot": _RUST, "tflite": _ENGINE, "litertlm": _ENGINE, "task": _ENGINE, "engine": _ENGINE,
    "plan": _ENGINE, "pte": _ENGINE, "mnn": _ENGINE, "rknn": _ENGINE, "llamafile": _ENGINE, "caffemodel": _CAFFE,
    "npy": _ARRAY, **dict.fromkeys(("zip", "tar", "gz", "tgz", "bz2", "xz", "zst", "7z", "rar"), _ARCHIVE),
}  # fmt: skip
_NAMES = (
    (re.compile(r"(.*_)?zero_pp_rank_\d+_mp_rank_\d+_(optim|model)_states\.pt"), _ZERO),
    (re.compile(r"(.*[._-]imatrix|imatrix([._-].*)?)\.(gguf|dat|gguf_file)"), _IMATRIX),
    (re.compile(r"ggml[_-].*\.bin"), _GGML),
    (re.compile(r"openvino_.*\.bin"), _OPENVINO),
    (re.compile(r"weight\.bin"), _CORE_ML),  # only inside a package; otherwise it is read
    (re.compile(r".*\.data-\d+-of-\d+|.*\.ckpt[^/]*\.index"), _TENSORFLOW),
    (re.compile(r".*\.onnx(\.data|_data_\d+)"), _ONNX),
)
_CHECKED = re.compile(r"\.(pt|bin|index|data|gguf|dat|gguf_file|onnx_data_\d+|data-\d+-of-\d+)$")
# Whole names of arrays and archives that are stored next to weights and hold none.
_NO_MODEL = re.compile(
    r"(vocab|token(s|izer)?|labels?|scaler|rng_states?|config|(training_)?args|optim(izer)?|(training_|train_)?data(set)?|stats|features?)"
    r"([_-]?\d+)?\.(npy|zip|tar|t?gz|tar\.gz|bz2|xz|zst|7z|rar)",
    re.IGNORECASE,
)
_OPTIMIZER = re.compile(r"(^|/)optim", re.IGNORECASE)
_RANK = re.compile(r"(?:.*/)?(mp_rank_\d+(?:_\d+)?)(?:/model(?:_optim)?_rng|_model_states)\.pt")


def other_format(path: str) -> OtherFormat | None:
    """Return the format of a file that holds weights and is not read, judged by its name; None for any other file."""
    name = path.rpartition("/")[2]
    found = _ENDINGS.get(name.rpartition(".")[2].lower())
    if found is None and _CHECKED.search(name):
        found = next((kind for pattern, kind in _NAMES if pattern.fullmatch(name)), None)
    if found is _ARCHIVE and name.endswith((".pth.tar", ".pt.tar")):  # PyTorch files, written by torch.save
        return None
    if (found in (_ARRAY, _ARCHIVE) and _NO_MODEL.fullmatch(name)) or (found is _DISTRIBUTED and _OPTIMIZER.search(path)):
        return None
    return found


def megatron_ranks(paths: Iterable[str]) -> list[str]:
    """Return the files of a Megatron checkpoint of several ranks; empty for a single rank, which holds whole matrices."""
    ranks = {path: match[1] for path in paths if (match := _RANK.fullmatch(path))}
    return list(ranks) if len(set(ranks.values())) > 1 else []


def only_other_formats(paths: Iterable[str]) -> str:
    """Write a sentence on what a checkpoint without weight files holds and how to convert it; "" if no format is known."""
    every = list(paths)
    found = dict.fromkeys(megatron_ranks(every), _MEGATRON)
    found |= {path: kind for path in every if (kind := other_format(path)) is not None}
    if not found:
        return ""
    first = min(found, key=lambda path: (_PRECEDENCE.index(found[path]), path))
    what, convert, _ = found[first]
    return f"The checkpoint holds {what}, such as {quoted(first, 200)}, and no weights that Mantissa reads: {convert}."
