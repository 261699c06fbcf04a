"""Reads the files that list weights: indexes of shards, the modules of sentence encoders, the parts of diffusers pipelines.

*.index.json      {"metadata": {"total_size": 28}, "weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors", ...}}
modules.json      [{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}, {"path": "2_Dense", ...}, ...]
model_index.json  {"_class_name": "FluxPipeline", "vae": ["diffusers", "AutoencoderKL"], "safety_checker": [null, null], ...}
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from analyzers.checkpoints.words import WORDS
from analyzers.core import limits
from analyzers.core.errors import InvalidCheckpoint, LimitExceeded
from analyzers.core.notes import Note
from analyzers.core.terminal import quoted, quoted_names
from analyzers.core.untrusted_json import InvalidJson, JsonTooLarge

_JSON_BYTES = 1_000_000  # modules.json and model_index.json are parsed in memory; real ones have 2 kB.
ReadJson = Callable[[str, int], Any]
MODULES, PIPELINE = "modules.json", "model_index.json"
# Parts without weights, by their names and classes.
_NO_PART = re.compile(r"scheduler|tokenizer|processor|extractor|guider|watermark|pooling|normalize|dropout|bow$|wordweights", re.IGNORECASE)


def read_index(path: str, endings: tuple[str, ...], files: Mapping[str, int], read_json: ReadJson) -> tuple[dict[str, str], float | None]:
    """Return tensor name -> path of its shard, and the bytes of all tensors, None if an index does not state them as a number.

    Each shard is in ``files`` and ends with one of ``endings``. read_json: see `repository.read_json`.

    Raises InvalidCheckpoint for a damaged index and for missing shards, LimitExceeded.
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
    shards = sorted(set(weight_map.values()))
    missing = [shard for shard in shards if prefix + shard not in files or not shard.endswith(endings)]
    if missing:
        raise InvalidCheckpoint(f"{shown} names {quoted_names(missing)}, which cannot be found: complete the files, or rebuild the index.")
    metadata = index.get("metadata")
    stated = metadata.get("total_size") if isinstance(metadata, dict) else None
    number = isinstance(stated, int | float) and not isinstance(stated, bool) and 0 <= stated < 2**63
    return {name: prefix + shard for name, shard in weight_map.items()}, stated if number else None


@dataclass(frozen=True, slots=True)
class Components:
    """The folders of one model.

    folders: those with weights, in listed order; main: the folder whose tensors are named as in a model of its own, and whose config.json
    is the model's; None in a pipeline; empty: further listed folders whose parts have weights, though none are there; notes: remarks.
    """

    folders: tuple[str, ...] = ()
    main: str | None = None
    empty: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()


def find_components(start: str, files: Mapping[str, int], folders: Collection[str], read_json: ReadJson) -> Components:
    """Find the components of the model in the folder ``start``; none if no file lists them, or with a note if the list cannot be used.

    folders: all folders that hold weights; read_json: see `repository.read_json`.
    """
    inside = f"{start}/" if start else ""
    notes: list[Note] = []
    for name in (MODULES, PIPELINE):
        path = inside + name
        if path not in files:
            continue
        try:
            listed = {f"{inside}{part}".strip("/"): kind for part, kind in _parts(read_json(path, _JSON_BYTES))}
        except ValueError:
            notes.append(WORDS.note("unreadable-json", file=path))
            continue
        found = tuple(part for part in listed if part in folders)
        if found and found != (start,):
            empty = tuple(part for part, kind in listed.items() if part not in found and not _NO_PART.search(kind))
            return Components(found, found[0] if name == MODULES else None, empty, tuple(notes))
    return Components(notes=tuple(notes))


def _parts(content: Any) -> list[tuple[str, str]]:
    """Return the folder of each module or part of a pipeline, with its name and class. Raises ValueError."""
    if isinstance(content, list):
        modules = (entry for entry in content if isinstance(entry, dict) and isinstance(entry.get("path"), str))
        return [(entry["path"], str(entry.get("type"))) for entry in modules]
    if isinstance(content, dict):
        pairs = ((name, entry) for name, entry in sorted(content.items()) if isinstance(entry, list))
        return [(name, f"{name} {entry[1]}") for name, entry in pairs if list(map(type, entry)) == [str, str]]
    raise ValueError("neither a list of modules nor a pipeline")
