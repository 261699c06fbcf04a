"""The rule `loads` on files: those that transformers looks for in a folder and does not find or cannot read, whatever the tensors are."""

from collections.abc import Iterator, Mapping
from typing import Any

from analyzers import limits
from analyzers.check.report import Finding
from analyzers.check.rules import finding
from analyzers.checkpoints import Checkpoint, LocalRepository, MergedCheckpoint, quoted, read_range
from analyzers.checkpoints.tensor_names.adapters import is_adapter
from analyzers.checkpoints.weight_files.file_names import (
    GGUF,
    INDEX,
    PICKLED,
    SHARD,
    VARIANT,
    file_name,
    folder,
    holds_no_weights,
    stem,
)
from analyzers.formatting import listed, plural, size
from analyzers.language_models.load_report import loaded_tensors
from analyzers.untrusted_json import InvalidJson, JsonTooLarge, parse_json

_SAFE, _PICKLE = "model.safetensors", "pytorch_model.bin"
# In the order in which transformers looks for them
_NAMES = (_SAFE, _SAFE + INDEX, _PICKLE, _PICKLE + INDEX)
# Files that only transformers' save_pretrained writes beside the weights
_GENERATION = "generation_config.json"
_COMPANIONS = (_GENERATION, "tokenizer_config.json")
_ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_SHOWN = 5  # files of training state that a note names


def another_format(checkpoint: Checkpoint) -> str:
    """Explain why transformers' from_pretrained is plainly not meant for a checkpoint; empty if it may be."""
    paths = [file.path for file in checkpoint.files]
    if isinstance(checkpoint.repository, LocalRepository) and checkpoint.repository.single_file:
        return "a single file was named, and it loads folders."
    if any(path.endswith(GGUF) for path in paths):
        return "the weights are GGUF."
    return "the weights are an adapter." if is_adapter(paths, checkpoint.tensors) else ""


def find_missing_files(checkpoint: Checkpoint) -> tuple[list[Finding], str]:
    """Find problems with the files that transformers needs to load a checkpoint.

    Returns the findings, and the reason if loading could not be judged, else an empty text.
    """
    files = checkpoint.repository.files
    other = another_format(checkpoint)
    places = {folder(checkpoint.files[tensor.file].path) for tensor in loaded_tensors(checkpoint)}
    apart = (
        not places
        and len(checkpoint.files) > 1
        and all(tensor.name.startswith(f"{stem(file_name(checkpoint.files[tensor.file].path))}/") for tensor in checkpoint.tensors)
    )
    if apart:
        places = {folder(file.path) for file in checkpoint.files}
    if other or len(places) != 1:
        return [], other or "no folder holds all weights of one model."
    place = places.pop()
    path = next((path for path in (_in(place, "config.json"), "config.json") if path in files), None)
    if path is None:
        if not any(_in(place, name) in files for name in _COMPANIONS):
            return [], "no config.json could be read."
        return [_refused("config.json is not in the files, and transformers needs it: save the whole model with save_pretrained.")], ""
    if files[path] > limits.CONFIG_BYTES:
        return [], f"{path} has more than {limits.CONFIG_BYTES:,} bytes."
    try:
        fault = _unreadable(_read(checkpoint, path))
    except JsonTooLarge as error:
        return [], f"{path} {error}."
    if fault:
        return [_refused(f"{quoted(path, 200)} {fault}, and transformers refuses to read it: write it again.")], ""
    config = checkpoint.config or {}
    if not ("model_type" in config or "architectures" in config):
        return [], "config.json names neither a model_type nor architectures, so it may be another library's."
    found = list(_weights(checkpoint, config, place, folder(path)))
    return found, "several files hold tensors of the same names, as several models do." if apart and not found else ""


def _weights(checkpoint: Checkpoint, config: Mapping[str, Any], place: str, beside: str) -> Iterator[Finding]:
    """Find problems with the weight files in the folder ``place`` of a model whose config.json is in the folder ``beside``."""
    files = checkpoint.repository.files
    stated = config.get("transformers_weights")
    names = (stated,) if isinstance(stated, str) else _NAMES
    found = next((_in(beside, name) for name in names if _in(beside, name) in files), None)
    if found is None:
        stored = [file.path for file in checkpoint.files]
        sought = f"{quoted(_SAFE)} or {quoted(_PICKLE)}, or the index of one," if names is _NAMES else quoted(names[0], 200)
        yield _refused(f"transformers looks for {sought} next to config.json and does not find it. {_mend(stored, place, beside)}")
    elif found.endswith(INDEX) and place == beside and not _has_metadata(checkpoint, found):
        yield _refused(f'{quoted(found, 200)} has no metadata, and transformers fails without it: add "metadata": {{}} to the index.')
    if not (isinstance(checkpoint, MergedCheckpoint) and checkpoint.merge.unmerged):
        yield from _adapter(checkpoint, beside)
    refused = checkpoint.refused
    nested = next((note for note in checkpoint.notes if note.code == "nested"), None)
    if refused:
        path, why = next(iter(refused.items()))
        more = f", nor {plural(len(refused) - 1, 'more file')}" if len(refused) > 1 else ""
        yield _refused(f"transformers does not load {quoted(path, 200)}{more}: {why}. Save the model again with save_pretrained.")
    elif nested:
        detail = (
            f"{nested.text} transformers does not look there: it loads without an error, and initialises all parameters at random. "
            "Save model.state_dict() alone, best as safetensors."
        )
        yield finding("loads", "error", "All weights are missing", detail)


def training_state(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield a note on files that have the extension of weights and, by their names, hold none: the optimizer's state and the like."""
    sizes = {path: nbytes for path, nbytes in checkpoint.repository.files.items() if holds_no_weights(path)}
    paths = sorted(sizes, key=lambda path: (-sizes[path], path))
    if paths:
        named, others = paths[:_SHOWN], paths[_SHOWN:]
        said = [f"{quoted(path, 200)} ({size(sizes[path])})" for path in named]
        if others:
            said.append(f"{plural(len(others), 'more file')} ({size(sum(sizes[path] for path in others))})")
        yield (
            "Training state and similar files, judged by their names, were not read; transformers loads no weights from them: "
            f"{listed(said)}."
        )


def generation_settings(checkpoint: Checkpoint) -> Any:
    """Read generation_config.json. None if it is missing or cannot be read: transformers then ignores it."""
    path = _GENERATION if _GENERATION in checkpoint.repository.files else ""
    if not path or checkpoint.repository.files[path] > limits.CONFIG_BYTES:
        return None
    try:
        return parse_json(_read(checkpoint, path).decode(), lenient=True)
    except ValueError:
        return None


def _has_metadata(checkpoint: Checkpoint, path: str) -> bool:
    """Return whether an index has metadata; True if the index cannot be judged."""
    if checkpoint.repository.files[path] > limits.INDEX_BYTES:
        return True
    try:
        index = parse_json(_read(checkpoint, path), lenient=True)
    except InvalidJson:
        return True
    return not isinstance(index, dict) or isinstance(index.get("metadata"), dict)


def _adapter(checkpoint: Checkpoint, place: str) -> Iterator[Finding]:
    """Find problems with an adapter in the folder of a model, which transformers loads on top of it."""
    files, path = checkpoint.repository.files, _in(place, "adapter_config.json")
    if path not in files or files[path] > limits.CONFIG_BYTES:
        return
    try:
        fault = _unreadable(_read(checkpoint, path))
    except JsonTooLarge:
        return
    if not fault and not any(_in(place, name) in files for name in _ADAPTER_WEIGHTS):
        fault = f"has no {quoted(_ADAPTER_WEIGHTS[0])} next to it"
    if fault:
        yield _refused(
            f"{quoted(path, 200)} {fault}: where peft is installed, transformers fails on it. Delete it, or save the adapter too."
        )


def _mend(stored: list[str], place: str, beside: str) -> str:
    """Say how to make weights stored under other names load."""
    names = [file_name(path) for path in stored]
    main = _PICKLE if names[0].endswith(PICKLED) else _SAFE
    if place != beside:
        return f"The weights are in the folder {quoted(place, 200)}: move them, and load that folder with a config.json of its own."
    if all(SHARD.fullmatch(name) for name in names) and len(names) > 1:
        return f"Without {quoted(main + INDEX)} the {len(names):,} shards are not found: save the model again with save_pretrained."
    base, _, ending = main.rpartition(".")
    variant = VARIANT.fullmatch(stem(names[0]))
    if len(names) == 1 and variant and names[0].startswith(f"{base}.") and names[0].endswith(f".{ending}"):
        kind = names[0].removeprefix(f"{base}.").removesuffix(f".{ending}")
        return f"It loads {quoted(names[0], 200)} only if asked for variant={quoted(kind)}: rename the file to {quoted(main)}."
    if len(names) == 1:
        return f"Rename {quoted(names[0], 200)} to {quoted(main)}."
    return "Save the model again with save_pretrained."


def _unreadable(raw: bytes) -> str:
    """Explain why transformers cannot read a config.json; empty if it can. Raises JsonTooLarge."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return "is not UTF-8"
    if text.startswith("\ufeff"):
        return "begins with a byte order mark"
    try:
        return "" if isinstance(parse_json(text, lenient=True), dict) else "is not a JSON object"
    except JsonTooLarge:
        raise
    except InvalidJson:
        return "is not JSON"


def _in(place: str, name: str) -> str:
    return f"{place}/{name}" if place else name


def _read(checkpoint: Checkpoint, path: str) -> bytes:
    file = checkpoint.repository.open(path)
    try:
        return read_range(file, 0, file.size)
    finally:
        file.close()


def _refused(detail: str) -> Finding:
    return finding("loads", "error", "It cannot be loaded", detail)
