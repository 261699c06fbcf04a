"""Finds models in several folders: sentence encoders, whose modules.json lists them, and diffusers pipelines, with a model_index.json.

modules.json      [{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}, {"path": "2_Dense", ...}, ...]
model_index.json  {"_class_name": "FluxPipeline", "vae": ["diffusers", "AutoencoderKL"], "safety_checker": [null, null], ...}
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from analyzers.checkpoints.words import WORDS
from analyzers.core.notes import Note
from analyzers.core.untrusted_json import InvalidJson, parse_json

_JSON_BYTES = 1_000_000  # modules.json and model_index.json are parsed in memory; real ones have 2 kB.
MODULES, PIPELINE = "modules.json", "model_index.json"
# Parts without weights, by their names and classes.
_NO_PART = re.compile(r"scheduler|tokenizer|processor|extractor|guider|watermark|pooling|normalize|dropout|bow$|wordweights", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Components:
    """The folders of one model.

    folders: those with weights, in listed order; notes: remarks for the reader.

    main: the folder whose tensors are named as in a model of its own, and whose config.json is the model's; None in a pipeline; empty:
    further listed folders whose parts have weights, though none are there.
    """

    folders: tuple[str, ...] = ()
    main: str | None = None
    empty: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()


def find_components(start: str, files: Mapping[str, int], folders: Collection[str], read_small: Callable[[str], bytes]) -> Components:
    """Find the components of the model in the folder ``start``; none if no file lists them, or with a note if the list cannot be used.

    folders: all folders that hold weights.
    """
    inside = f"{start}/" if start else ""
    notes: list[Note] = []
    for name, read in ((MODULES, _modules), (PIPELINE, _pipeline)):
        path = inside + name
        if path not in files:
            continue
        try:
            parts = read(parse_json(read_small(path), lenient=True)) if files[path] <= _JSON_BYTES else None
        except InvalidJson:
            parts = None
        if parts is None or not all(map(_is_folder, parts)):
            notes.append(WORDS.note("components", file=path))
            continue
        listed = {f"{inside}{part}".strip("/"): kind for part, kind in parts.items()}
        found = tuple(each for each in listed if each in folders)
        if found and found != (start,):
            empty = tuple(each for each, kind in listed.items() if each not in found and not _NO_PART.search(kind))
            return Components(found, found[0] if name == MODULES else None, empty, tuple(notes))
    return Components(notes=tuple(notes))


def _modules(entries: Any) -> dict[str, str] | None:
    """Return the folder of each module with its class; None for anything but a list."""
    if not isinstance(entries, list):
        return None
    modules = [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("path"), str)]
    return {entry["path"]: str(entry.get("type")).rpartition(".")[2] for entry in modules}


def _pipeline(entries: Any) -> dict[str, str] | None:
    """Return the folder of each part with its name and class; None for anything but an object."""
    if not isinstance(entries, dict):
        return None
    return {
        name: f"{name} {entry[1]}"
        for name, entry in sorted(entries.items())
        if isinstance(entry, list) and list(map(type, entry)) == [str, str]
    }


def _is_folder(path: str) -> bool:
    """Return whether a path stays inside the checkpoint; "" is the top folder."""
    return path == "" or (
        path.isprintable() and "\\" not in path and not any(part in ("", ".", "..") for part in path.removesuffix("/").split("/"))
    )
