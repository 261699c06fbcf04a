"""The rule `loads` on files: those that transformers looks for in a folder and does not find or cannot read, whatever the tensors are."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analyzers.check.report import Finding
from analyzers.check.words import finding
from analyzers.checkpoints import Checkpoint, LocalRepository
from analyzers.checkpoints.repository import read_file, read_json, read_object
from analyzers.checkpoints.tensor_names.adapters import is_adapter
from analyzers.checkpoints.weight_files.file_names import GGUF, INDEX, folder
from analyzers.core import limits
from analyzers.core.untrusted_json import InvalidJson, JsonTooLarge, parse_json
from analyzers.language_models.load_report import loaded_tensors

_SAFE, _PICKLE = "model.safetensors", "pytorch_model.bin"
# In the order in which transformers looks for them
_NAMES = (_SAFE, _SAFE + INDEX, _PICKLE, _PICKLE + INDEX)
# Files that only transformers' save_pretrained writes beside the weights
_GENERATION = "generation_config.json"
_COMPANIONS = (_GENERATION, "tokenizer_config.json")
_ADAPTER_CONFIG, _ADAPTER_WEIGHTS = "adapter_config.json", ("adapter_model.safetensors", "adapter_model.bin")


def another_format(checkpoint: Checkpoint) -> str:
    """Explain why transformers' from_pretrained is plainly not meant for a checkpoint; empty if it may be."""
    paths = [file.path for file in checkpoint.files]
    if isinstance(checkpoint.repository, LocalRepository) and checkpoint.repository.single_file:
        return "a single file was named, and it loads folders."
    if any(path.endswith(GGUF) for path in paths):
        return "the weights are GGUF."
    settings = (checkpoint.config or {}).get("quantization")
    if isinstance(settings, dict) and "group_size" in settings and "quant_method" not in settings:
        return "the weights are quantized for MLX."
    return "the weights are an adapter." if is_adapter(paths, checkpoint.tensors) else ""


def find_missing_files(checkpoint: Checkpoint) -> tuple[list[Finding], str]:
    """Find problems with the files that transformers needs to load a checkpoint.

    Returns the findings, and the reason if loading could not be judged, else an empty text.
    """
    files = checkpoint.repository.files
    other = another_format(checkpoint)
    places = {folder(checkpoint.files[tensor.file].path) for tensor in loaded_tensors(checkpoint)}
    if other or len(places) != 1:
        return [], other or "no folder holds all weights of one model."
    place = places.pop()
    path = next((path for path in (_in(place, "config.json"), "config.json") if path in files), None)
    if path is None:
        if not any(_in(place, name) in files for name in _COMPANIONS):
            return [], "no config.json could be read."
        return [finding("loads", "error", "config-missing")], ""
    if files[path] > limits.CONFIG_BYTES:
        return [], f"{path} has more than {limits.CONFIG_BYTES:,} bytes."
    try:
        readable = _is_readable(read_file(checkpoint.repository, path))
    except JsonTooLarge as error:
        return [], f"{path} {error}."
    if not readable:
        return [finding("loads", "error", "config-refused", why=f"{path} is no JSON object in UTF-8 without a byte order mark")], ""
    config = checkpoint.config or {}
    if not ("model_type" in config or "architectures" in config):
        return [], "config.json names neither a model_type nor architectures, so it may be another library's."
    return list(_weights(checkpoint, config, place, folder(path))), ""


def _weights(checkpoint: Checkpoint, config: Mapping[str, Any], place: str, beside: str) -> Iterator[Finding]:
    """Find problems with the weight files in the folder ``place`` of a model whose config.json is in the folder ``beside``."""
    files = checkpoint.repository.files
    stated = config.get("transformers_weights")
    names = (stated,) if isinstance(stated, str) else _NAMES
    found = next((_in(beside, name) for name in names if _in(beside, name) in files), None)
    if found is None:
        sought = (_SAFE, _PICKLE) if names is _NAMES else tuple(names)
        stored = tuple(file.path for file in checkpoint.files)
        yield finding("loads", "error", "weights-not-found", sought=sought, files=stored[: limits.REPORT_TENSORS])
    elif found.endswith(INDEX) and place == beside and not _has_metadata(checkpoint, found):
        yield _refused((found,), 'it has no "metadata", which may be {}')
    if _adapter_fails(checkpoint, beside):
        yield _refused((_in(beside, _ADAPTER_CONFIG),), "the adapter is unreadable or without weights, and peft loads it with the model")
    if checkpoint.refused:
        yield _refused(tuple(checkpoint.refused), next(iter(checkpoint.refused.values())))
    elif any(note.code == "nested" for note in checkpoint.notes):
        yield _refused(tuple(checkpoint.pickled), "the weights are under a key: save model.state_dict() alone")


def _refused(files: Sequence[str], why: str) -> Finding:
    return finding("loads", "error", "file-refused", files=tuple(files[: limits.REPORT_TENSORS]), why=why)


def generation_settings(checkpoint: Checkpoint) -> Any:
    """Read generation_config.json. None if it is missing or cannot be read: transformers then ignores it."""
    try:
        return read_json(checkpoint.repository, _GENERATION, limits.CONFIG_BYTES) if _GENERATION in checkpoint.repository.files else None
    except InvalidJson:
        return None


def _has_metadata(checkpoint: Checkpoint, path: str) -> bool:
    """Return whether an index has metadata; True if the index cannot be judged."""
    index = read_object(checkpoint.repository, path, limits.INDEX_BYTES)
    return not index or isinstance(index.get("metadata"), dict)


def _adapter_fails(checkpoint: Checkpoint, place: str) -> bool:
    """Return whether transformers, which loads an adapter in the folder of a model on top of it, fails on that adapter."""
    files, path = checkpoint.repository.files, _in(place, _ADAPTER_CONFIG)
    if path not in files or files[path] > limits.CONFIG_BYTES:
        return False
    try:
        return not _is_readable(read_file(checkpoint.repository, path)) or not any(_in(place, name) in files for name in _ADAPTER_WEIGHTS)
    except JsonTooLarge:
        return False


def _is_readable(raw: bytes) -> bool:
    """Return whether transformers can read a configuration: a JSON object in UTF-8. Raises JsonTooLarge."""
    try:
        text = raw.decode()
        return not text.startswith("\ufeff") and isinstance(parse_json(text, lenient=True), dict)
    except JsonTooLarge:
        raise
    except (UnicodeDecodeError, InvalidJson):
        return False


def _in(place: str, name: str) -> str:
    return f"{place}/{name}" if place else name
