"""Reads the files that list weights: indexes of shards, and the modules of sentence encoders.

*.index.json      {"metadata": {"total_size": 28}, "weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors", ...}}
modules.json      [{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}, {"path": "2_Dense", ...}, ...]
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from analyzers.checkpoints.words import WORDS
from analyzers.core import limits
from analyzers.core.errors import InvalidCheckpoint, LimitExceeded
from analyzers.core.notes import Note
from analyzers.core.terminal import quoted, quoted_names
from analyzers.core.untrusted_json import InvalidJson, JsonTooLarge

_JSON_BYTES = 1_000_000  # modules.json is parsed in memory; real ones have 2 kB.
ReadJson = Callable[[str, int], Any]
MODULES = "modules.json"


def read_index(path: str, endings: tuple[str, ...], files: Mapping[str, int], read_json: ReadJson) -> dict[str, str]:
    """Return tensor name -> path of its shard, which is in ``files`` and ends with one of ``endings``.

    read_json: see `repository.read_json`. Raises InvalidCheckpoint for a damaged index and for missing shards, LimitExceeded.
    """
    shown = quoted(path, 200)
    try:
        index = read_json(path, limits.INDEX_BYTES)
    except JsonTooLarge as error:
        raise LimitExceeded(f"{shown} {error}.") from None
    except InvalidJson as error:
        raise InvalidCheckpoint(f"{shown} {error}: the index of the weight files is damaged.") from None
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise InvalidCheckpoint(f"{shown} is damaged: it has no weight_map from tensor names to files.")
    if len(weight_map) > limits.TENSORS:
        raise LimitExceeded(f"{shown} lists more than {limits.TENSORS:,} tensors.")
    prefix = path[: path.rfind("/") + 1]
    missing = [shard for shard in sorted(set(weight_map.values())) if prefix + shard not in files or not shard.endswith(endings)]
    if missing:
        raise InvalidCheckpoint(f"{shown} names {quoted_names(missing)}, which cannot be found: complete the files, or rebuild the index.")
    return {name: prefix + shard for name, shard in weight_map.items()}


def read_modules(start: str, files: Mapping[str, int], folders: Collection[str], read_json: ReadJson, notes: list[Note]) -> tuple[str, ...]:
    """Return those of ``folders`` that modules.json in the folder ``start`` lists, in its order; none if it lists no others than that.

    The tensors of the first are named as in a model of its own. notes: receives one if the file cannot be used.
    """
    inside = f"{start}/" if start else ""
    path = inside + MODULES
    if path not in files:
        return ()
    try:
        content = read_json(path, _JSON_BYTES)
    except InvalidJson:
        content = None
    if not isinstance(content, list):
        notes.append(WORDS.note("unreadable-json", file=path))
        return ()
    parts = (entry.get("path") for entry in content if isinstance(entry, dict))
    listed = dict.fromkeys(f"{inside}{part}".strip("/") for part in parts if isinstance(part, str))
    found = tuple(part for part in listed if part in folders)
    return () if found == (start,) else found
