"""Selects the weight files of a repository.

In one folder, the first of these that exists, which is the precedence of transformers where it knows the names:

    model.safetensors                               pytorch_model.bin                               the widest GGUF file,
    model.safetensors.index.json and its shards     pytorch_model.bin.index.json and its shards     all its parts
    another *.safetensors.index.json                another *.bin.index.json
    every *.safetensors                             every *.bin, *.pt, *.pth, *.ckpt with weights

safetensors take precedence over pickles, pickles over GGUF. If modules.json (sentence encoders) or model_index.json (pipelines) names
folders with weights, these are the model. Else, if the top folder has no weights, the same rules apply to each of the topmost folders
that do; of folders that are several steps of a training (checkpoint-100, checkpoint-200), the last is read, as transformers' trainer
does; folders with only GGUF files, or pickles under unconventional names, count only if no other folder has weights. Plain files
take precedence over variants (``model.fp16.safetensors``) and ``consolidated`` copies. Every other file that may hold weights is listed
as not read.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from analyzers.checkpoints.weight_files.component_folders import PIPELINE, Components, find_components
from analyzers.checkpoints.weight_files.file_names import (
    GGUF,
    PICKLED,
    SAFETENSORS,
    file_name,
    folder,
    is_conventional,
    is_index,
    is_weights,
    step,
)
from analyzers.checkpoints.weight_files.gguf_choice import numbered_parts, widest_files
from analyzers.checkpoints.weight_files.not_read import Read, files_not_read
from analyzers.checkpoints.weight_files.one_folder import WeightSet, select_folder
from analyzers.checkpoints.weight_files.other_formats import megatron_ranks, only_other_formats
from analyzers.checkpoints.words import WORDS
from analyzers.core import limits
from analyzers.core.coverage import NotRead
from analyzers.core.errors import CheckpointNotFound, LimitExceeded, NoWeights
from analyzers.core.notes import Note
from analyzers.core.terminal import printable, quoted

__all__ = ["GGUF", "SAFETENSORS", "WeightFiles", "WeightSet", "is_index", "is_weights", "select_weights", "single_file"]

_NAMED_PARTS = 100  # missing parts of a GGUF file that are listed


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The weight files of a checkpoint: one set, or one per component folder.

    notes: remarks for the reader; not_read: every other file that may hold weights; config_folder: the folder whose config.json takes
    precedence over that of the top folder.
    """

    sets: tuple[WeightSet, ...]
    notes: tuple[Note, ...] = ()
    not_read: tuple[NotRead, ...] = ()
    config_folder: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of all weight files, in order."""
        return tuple(path for weights in self.sets for group in weights.groups for path in group)


def select_weights(files: Mapping[str, int], read_small: Callable[[str], bytes], subfolder: str | None = None) -> WeightFiles:
    """Select the weight files among ``files`` (path -> bytes).

    read_small: reads a whole file; called only for files whose size is within a limit. subfolder: search only this folder.

    Raises NoWeights, which names what was found instead, InvalidCheckpoint for missing shards or a damaged index,
    CheckpointNotFound for a missing subfolder, LimitExceeded.
    """
    start = (subfolder or "").strip("/")
    inside = f"{start}/" if start else ""
    listed = [path for path in files if path.startswith(inside)]
    if start and not listed:
        raise CheckpointNotFound(f"This checkpoint has no folder {quoted(start)}.")
    weights = _weights(listed)
    if not weights:
        raise NoWeights(only_other_formats(listed) or f"{_instead(listed)}: safetensors, PyTorch or GGUF files are needed.")
    top, start, notes = start, *_last_step(weights, start)
    if start != top:
        weights = [path for path in weights if path.startswith(f"{start}/")]
    by_folder: dict[str, list[str]] = {}
    for path in sorted(listed):
        by_folder.setdefault(folder(path), []).append(file_name(path))
    components = find_components(start, files, {folder(path) for path in weights}, read_small)
    folders = list(components.folders) or _folders(weights, start)
    if len(folders) > limits.SHARDS:
        raise LimitExceeded(f"The checkpoint has weights in {len(folders):,} folders, more than {limits.SHARDS:,}.")
    notes += components.notes
    chosen = set(folders)
    gguf = all(path.endswith(GGUF) for path in weights if folder(path) in chosen)
    if gguf:
        every = [path for path in weights if folder(path) in chosen]
        group = widest_files(every, files)
        notes += [WORDS.note("widest-gguf", files=len(every), path=group[0])] * (len(every) > len(group))
        sets: tuple[WeightSet, ...] = (WeightSet(folder(group[0]), (group,)),)
    else:
        sets = tuple(_select(each, components, len(folders) > 1, by_folder, files, read_small, notes) for each in folders)
    config_folder = components.main if components.main is not None else sets[0].folder if len(sets) == 1 else ""
    found = WeightFiles(sets, config_folder=config_folder)
    if len(found.paths) > limits.SHARDS:
        raise LimitExceeded(f"The checkpoint has {len(found.paths):,} weight files, more than {limits.SHARDS:,}.")
    pipeline = components.file.endswith(PIPELINE)
    read = Read(found.paths, start, frozenset(each.folder for each in sets), pipeline, components.complete, files)
    empty = [NotRead(path=printable(each), code="outside") for each in components.empty]
    not_read = tuple(sorted((*files_not_read(listed, read), *empty), key=lambda each: each.path))
    if len(sets) > 1:
        notes.append(WORDS.note("folders", folders=tuple(each.folder or "." for each in sets)))
    return WeightFiles(sets, tuple(notes), not_read, config_folder)


def single_file(files: Iterable[str]) -> WeightFiles:
    """Return the weight file that a path names, with the other parts of a GGUF file: a single part cannot be interpreted.

    files: that file, and the parts next to it. A missing part is listed as not read; a shard of another format is read alone.
    """
    paths = tuple(files)
    number, names = numbered_parts(paths[0])
    if len(names) == 1:
        return WeightFiles((WeightSet("", (paths,)),))
    missing = [name for name in names if name not in set(paths)]
    skipped = tuple(NotRead(path=printable(name), code="outside") for name in missing[:_NAMED_PARTS])
    if not paths[0].endswith(GGUF):
        note = WORDS.note("one-shard", path=paths[0], number=number, shards=len(names))
        return WeightFiles((WeightSet("", (paths,)),), (note,))
    notes = [WORDS.note("missing-parts", parts=len(names), missing=len(missing), path=missing[0])] if missing else []
    return WeightFiles((WeightSet("", (paths,)),), tuple(notes), skipped)


def _weights(listed: list[str]) -> list[str]:
    """Return weight files and indexes, without the files of a checkpoint in another format."""
    unusable = set(megatron_ranks(listed))
    distributed = {folder(path) for path in listed if path.endswith(".distcp")}
    if distributed:
        unusable |= {path for path in listed if file_name(path) == "common.pt" and folder(path) in distributed}
    return [path for path in listed if (is_weights(path) or is_index(path)) and path not in unusable]


def _folders(weights: list[str], start: str) -> list[str]:
    """Return the topmost folders with weights of the most specific kind, without folders of training steps unless there are no others."""
    folders = _topmost({folder(path) for path in _known(weights)}, start)
    return [each for each in folders if step(each.removeprefix(start)) is None] or folders


def _known(weights: list[str]) -> list[str]:
    """Return the weights of the most specific kind: conventional names, then any pickle, then GGUF."""
    return [path for path in weights if is_conventional(path)] or [path for path in weights if not path.endswith(GGUF)] or weights


def _last_step(weights: list[str], start: str) -> tuple[str, list[Note]]:
    """Return the folder of the last training step and a note if ``start`` holds nothing but several steps of one run; else ``start``.

    get_last_checkpoint of transformers takes the same folder.
    """
    inside = f"{start}/" if start else ""
    steps = {step(folder(path).removeprefix(inside)) for path in _known(weights)}
    found = sorted((each for each in steps if each is not None), key=lambda each: (each[1], each[2]))
    if len(found) < max(2, len(steps)) or len({each[0] for each in found}) > 1:
        return start, []
    last = inside + found[-1][2]
    return last, [WORDS.note("last-step", steps=len(found), folder=last)]


def _topmost(folders: set[str], start: str) -> list[str]:
    if start in folders:
        return [start]
    chosen: set[str] = set()
    for each in sorted(folders, key=lambda folder: (folder.count("/"), folder)):
        names = each.split("/")
        if not any("/".join(names[:depth]) in chosen for depth in range(1, len(names))):
            chosen.add(each)
    return sorted(chosen)


def _select(
    where: str,
    components: Components,
    several: bool,
    by_folder: Mapping[str, list[str]],
    files: Mapping[str, int],
    read_small: Callable[[str], bytes],
    notes: list[Note],
) -> WeightSet:
    prefix = f"{where}/" if several and where and where != components.main else ""
    names = by_folder.get(where, [])
    if any(is_conventional(name) or name.endswith(PICKLED) for name in names if is_weights(name) or is_index(name)):
        return select_folder(where, names, files, read_small, prefix, notes)
    group = widest_files([f"{where}/{name}" if where else name for name in names if is_weights(name)], files)
    return WeightSet(where, (group,), prefix=prefix)


def _instead(paths: list[str]) -> str:
    if not paths:
        return "The checkpoint is empty"
    if any(file_name(path) == "config.json" for path in paths):
        return "The checkpoint holds a configuration and no weights"
    if any(path.endswith(PICKLED) for path in paths):
        return "The checkpoint holds training state and no weights"
    return "The checkpoint holds no weights"
