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
_ROUTERS, _ROUTE = (".Router", ".Asym"), re.compile(r"\w+_\d+_\w+")
_WITHOUT_WEIGHTS = frozenset({"Pooling", "SpladePooling", "Normalize", "Dropout", "BoW", "WordWeights", "Router", "Asym"})
# Parts of a pipeline without weights, by their names and classes.
_NO_PART = re.compile(r"scheduler|tokenizer|processor|extractor|guider|watermark", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Components:
    """The folders of one model.

    file: the file that lists them; folders: those with weights, in listed order; notes: remarks for the reader.

    main: the folder whose tensors are named as in a model of its own, and whose config.json is the model's; None in a pipeline; empty:
    further folders that it names and whose parts have weights, though none are there; complete: whether each part of a pipeline that should
    have weights, by its name and class, has them in its folder.
    """

    file: str = ""
    folders: tuple[str, ...] = ()
    main: str | None = None
    complete: bool = False
    empty: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()


def find_components(start: str, files: Mapping[str, int], folders: Collection[str], read_small: Callable[[str], bytes]) -> Components:
    """Find the components of the model in the folder ``start``; none if no file lists them, or with a note if the list cannot be used.

    folders: all folders that hold weights.
    """
    inside = f"{start}/" if start else ""
    notes: list[Note] = []
    for name in (MODULES, PIPELINE):
        path = inside + name
        if path not in files:
            continue
        entries = _read(path, files, read_small)
        names = [] if entries is None else _modules(entries, inside, folders) if name == MODULES else _pipeline(entries)
        if entries is None or not all(map(_is_folder, names)):
            notes.append(WORDS.note("components", file=path))
            continue
        found = tuple(dict.fromkeys(folder for each in names if (folder := f"{inside}{each}".strip("/")) in folders))
        if found and found != (start,):
            if name == PIPELINE:
                needed = [each for each in names if not _NO_PART.search(f"{each} {entries[each][1]}")]
            else:
                needed = _with_weights(entries)
            paths = (f"{inside}{each}".strip("/") for each in needed)
            empty = tuple(dict.fromkeys(each for each in paths if each not in found))
            return Components(path, found, found[0] if name == MODULES else None, name == PIPELINE and not empty, empty, tuple(notes))
    return Components(notes=tuple(notes))


def _read(path: str, files: Mapping[str, int], read_small: Callable[[str], bytes]) -> Any:
    """Read a list of folders; None if it is too large or not what its name says."""
    try:
        found = parse_json(read_small(path), lenient=True) if files[path] <= _JSON_BYTES else None
    except InvalidJson:
        return None
    return found if isinstance(found, list if path.endswith(MODULES) else dict) else None


def _modules(entries: list[Any], inside: str, folders: Collection[str]) -> list[str]:
    """Return the paths in modules.json and those of the modules inside a router, in folders like query_0_Transformer."""
    routes: dict[str, list[str]] = {}
    for folder in sorted(folders):
        above, _, name = folder.removeprefix(inside).rpartition("/")
        if folder.startswith(inside) and _ROUTE.fullmatch(name):
            routes.setdefault(above, []).append(folder.removeprefix(inside))
    names: dict[str, None] = {}
    for entry in entries:
        if isinstance(entry, dict) and isinstance(path := entry.get("path"), str):
            names[path] = None
            if str(entry.get("type")).endswith(_ROUTERS):
                names |= dict.fromkeys(routes.pop(path.rstrip("/"), ()))
    return list(names)


def _with_weights(entries: list[Any]) -> list[str]:
    """Return the paths of the modules whose types have weights."""
    found = [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("path"), str)]
    return [entry["path"] for entry in found if str(entry.get("type")).rpartition(".")[2] not in _WITHOUT_WEIGHTS]


def _pipeline(entries: dict[str, Any]) -> list[str]:
    return sorted(name for name, entry in entries.items() if isinstance(entry, list) and list(map(type, entry)) == [str, str])


def _is_folder(path: str) -> bool:
    """Return whether a path stays inside the checkpoint; "" is the top folder."""
    return path == "" or (
        path.isprintable() and "\\" not in path and not any(part in ("", ".", "..") for part in path.removesuffix("/").split("/"))
    )
