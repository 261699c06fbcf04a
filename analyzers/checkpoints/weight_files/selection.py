"""Selects the weight files of a repository, with the precedence of transformers where it knows the names. In one folder, the first of

    model.safetensors                  or the shards of its index
    pytorch_model.bin                  or the shards of its index
    adapter_model.safetensors, .bin    of peft
    every other *.safetensors          or the shards of another index
    every other *.bin, *.pt, *.pth, *.ckpt with weights, or the shards of another index
    the widest GGUF file, with all its parts

Files in precision variants (``model.fp16.safetensors``) and ``consolidated`` ones are read only if there are no others. The folder is the
top one, else the only topmost one with weights; GGUF files may be in several. A model consists of several folders only if modules.json
(sentence encoders) says so. Every other file that may hold weights is listed as not read.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analyzers.checkpoints.weight_files.file_names import (
    ADAPTER,
    CONSOLIDATED,
    GGUF,
    INDEX,
    PICKLED,
    SAFETENSORS,
    file_name,
    files_not_read,
    folder,
    format_of,
    grouped,
    is_index,
    is_projector,
    is_weights,
    without_variants,
)
from analyzers.checkpoints.weight_files.lists import ReadJson, read_index, read_modules
from analyzers.checkpoints.words import WORDS
from analyzers.core import limits
from analyzers.core.coverage import NotRead
from analyzers.core.errors import CheckpointNotFound, LimitExceeded, NoWeights
from analyzers.core.notes import Note
from analyzers.core.terminal import quoted, some_files

_MAINS = ("model.safetensors", "pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin")
# Storage widths in the names of GGUF files, widest first; names without any of these rank last.
_WIDTHS = [re.compile(rf"(^|[-._])({names})([-._]|$)", re.IGNORECASE) for names in ("f32|fp32", "bf16", "f16|fp16")]


@dataclass(frozen=True, slots=True)
class WeightSet:
    """Weight files that make up one model or one module of it.

    folder: contains its configuration, "" for the top folder; groups: files that belong together (the shards of one index or
    numbering), in which a name must be unique; if a name occurs in several groups, the file is added to it;
    weight_map: tensor name -> path, from the index if there is one; prefix: begins the names of its tensors.
    """

    folder: str
    groups: tuple[tuple[str, ...], ...]
    weight_map: Mapping[str, str] | None = None
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The weight files of a checkpoint: one set, or one for the folder of each module, the main one first.

    notes: remarks for the reader; not_read: every other file that may hold weights.
    """

    sets: tuple[WeightSet, ...]
    notes: tuple[Note, ...] = ()
    not_read: tuple[NotRead, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of all weight files, in order."""
        return tuple(path for weights in self.sets for group in weights.groups for path in group)


def select_weights(files: Mapping[str, int], read_json: ReadJson, subfolder: str | None = None) -> WeightFiles:
    """Select the weight files among ``files`` (path -> bytes). read_json: see `repository.read_json`; subfolder: search only this folder.

    Raises NoWeights, which names what was found instead, InvalidCheckpoint for missing shards or a damaged index,
    CheckpointNotFound for a missing subfolder, LimitExceeded.
    """
    start = (subfolder or "").strip("/")
    listed = [path for path in files if not start or path.startswith(f"{start}/")]
    if start and not listed:
        raise CheckpointNotFound(f"This checkpoint has no folder {quoted(start)}.")
    inside = dict[str, list[str]]()
    for path in sorted(listed):
        if is_weights(path) or is_index(path):
            inside.setdefault(folder(path), []).append(path)
    if not inside:
        other = next((path for path in listed if format_of(path)), None)
        instead = f" but {quoted(other, 200)}, which docs/conversions.md says how to convert" if other else ""
        raise NoWeights(f"The checkpoint holds no weights{instead}: safetensors, PyTorch or GGUF files are needed.")
    notes = list[Note]()
    folders = read_modules(start, files, inside, read_json, notes) or _folders(inside, start)
    every = [path for where in folders for path in inside[where]]
    if all(path.endswith(GGUF) for path in every):
        group = _widest(every, files)
        sets = [WeightSet(folder(group[0]), (group,))]
        notes += [WORDS.note("widest-gguf", files=len(every), path=group[0])] * (len(every) > len(group))
    else:
        sets = [_select(where, inside[where], files, read_json, f"{where}/" if number else "") for number, where in enumerate(folders)]
    if len(sets) > 1:
        notes.append(WORDS.note("folders", folders=tuple(each.folder or "." for each in sets)))
    paths = WeightFiles(tuple(sets)).paths
    if len(paths) > limits.SHARDS:
        raise LimitExceeded(f"The checkpoint has {len(paths):,} weight files, more than {limits.SHARDS:,}.")
    return WeightFiles(tuple(sets), tuple(notes), tuple(files_not_read(listed, paths, start)))


def _folders(inside: Mapping[str, list[str]], start: str) -> tuple[str, ...]:
    """Return the folder to read, or several with GGUF files only. Raises NoWeights for several with other weights."""
    if start in inside:
        return (start,)
    others = [where for where, paths in inside.items() if not all(path.endswith(GGUF) for path in paths)]
    if not others:
        return tuple(inside)
    depth = min(where.count("/") for where in others)
    topmost = [where for where in others if where.count("/") == depth]
    if len(topmost) > 1:
        raise NoWeights(f"The checkpoint has weights in several folders: name one of {some_files(topmost)}.")
    return (topmost[0],)


def _select(where: str, paths: list[str], files: Mapping[str, int], read_json: ReadJson, prefix: str) -> WeightSet:
    """Select the weight files of one folder. paths: of its weight files and indexes. Raises InvalidCheckpoint, LimitExceeded."""
    before = f"{where}/" if where else ""
    names = [file_name(path) for path in paths]

    def of_index(name: str, endings: tuple[str, ...]) -> WeightSet:
        weight_map = read_index(before + name, endings, files, read_json)
        return WeightSet(where, (tuple(sorted(set(weight_map.values()))),), weight_map, prefix)

    for main in _MAINS:
        if main in names:
            return WeightSet(where, ((before + main,),), prefix=prefix)
        if main + INDEX in names:
            return of_index(main + INDEX, SAFETENSORS if main.endswith(SAFETENSORS) else PICKLED)
    for endings in (SAFETENSORS, PICKLED):
        weights = without_variants([name for name in names if name.endswith(endings)])
        indexes = without_variants([name for name in names if is_index(name) and name.removesuffix(INDEX).endswith(endings)])
        if indexes and (not indexes[0].startswith(CONSOLIDATED) or all(name.startswith(CONSOLIDATED) for name in weights)):
            return of_index(indexes[0], endings)
        if weights:
            return WeightSet(where, tuple(tuple(before + name for name in group) for group in grouped(weights)), prefix=prefix)
    return WeightSet(where, (_widest(paths, files),), prefix=prefix)


def _widest(paths: Sequence[str], files: Mapping[str, int]) -> tuple[str, ...]:
    """Return the widest complete GGUF file with all its parts. Raises InvalidCheckpoint if every file lacks parts.

    Projectors of images or sound, which are another part of the model, and adapters are read only if there is nothing else.
    """
    models = [path for path in paths if not is_projector(path) and not ADAPTER.match(file_name(path))] or list(paths)

    def rank(group: tuple[str, ...]) -> tuple[int, int, tuple[str, ...]]:
        name = file_name(group[0]).removesuffix(GGUF)
        width = next((number for number, pattern in enumerate(_WIDTHS) if pattern.search(name)), len(_WIDTHS))
        return width, -sum(files[path] for path in group), group

    return min(grouped(models, alternatives=True), key=rank)
