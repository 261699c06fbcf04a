"""Selects the weight files of one folder of a repository, and notes which file or set another loader would take."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from analyzers.checkpoints.weight_files.file_names import (
    CONSOLIDATED,
    INDEX,
    PICKLED,
    SAFETENSORS,
    is_index,
    is_weights,
    without_variants,
)
from analyzers.checkpoints.weight_files.shards import complete_groups, complete_sets, read_index
from analyzers.checkpoints.words import WORDS
from analyzers.core.errors import InvalidCheckpoint, LimitExceeded
from analyzers.core.notes import Note

_DIFFUSERS = "diffusion_pytorch_model."


@dataclass(frozen=True, slots=True)
class WeightSet:
    """Weight files that make up one model or one component of it.

    folder: contains its configuration, "" for the top folder; groups: files that belong together (the shards of one index or
    numbering), in which a name must be unique; if a name occurs in several groups, the file is added to it;
    weight_map: tensor name -> path, from the index if there is one; total_size: bytes of all tensors according to the index;
    prefix: begins the names of its tensors.
    """

    folder: str
    groups: tuple[tuple[str, ...], ...]
    weight_map: Mapping[str, str] | None = None
    total_size: float | None = None
    prefix: str = ""


def select_folder(
    folder: str, names: Sequence[str], files: Mapping[str, int], read_small: Callable[[str], bytes], prefix: str, notes: list[Note]
) -> WeightSet:
    """Select the weight files of ``folder`` with the precedence of `selection`, without GGUF.

    names: its files, without the folder; files: path -> bytes; prefix: begins the names of the set's tensors; notes: receives remarks for
    the reader. Raises InvalidCheckpoint, LimitExceeded.
    """
    before = f"{folder}/" if folder else ""
    main, endings = ("model.safetensors", SAFETENSORS) if _prefers_safetensors(names) else ("pytorch_model.bin", PICKLED)
    indexes = without_variants([name for name in names if is_index(name) and name.removesuffix(INDEX).endswith(endings)])
    weights = without_variants([name for name in names if name.endswith(endings) and is_weights(before + name)])
    if main in weights:
        notes.extend(_other_set(main, weights, indexes, before, endings, files, read_small))
        return WeightSet(folder, ((before + main,),), prefix=prefix)
    if (single := f"{_DIFFUSERS}{main.rpartition('.')[2]}") in weights:  # diffusers loads this file alone
        return WeightSet(folder, ((before + single,),), prefix=prefix)
    if any(not name.startswith(CONSOLIDATED) for name in weights):
        indexes = [name for name in indexes if not name.startswith(CONSOLIDATED)]
    indexes.sort(key=lambda name: name != main + INDEX)
    if not indexes:
        groups = tuple(tuple(before + name for name in group) for group in complete_groups(weights))
        return WeightSet(folder, groups, prefix=prefix)
    index = read_index(before + indexes[0], endings, files, read_small)
    return WeightSet(folder, (index.shards,), index.weight_map, index.total_size, prefix)


def _prefers_safetensors(names: Sequence[str]) -> bool:
    """Return whether transformers loads safetensors: by the file names it looks for, else by the presence of any such file."""
    for main, safe in (("model.safetensors", True), ("adapter_model.safetensors", True), ("pytorch_model.bin", False)):
        if main in names or main + INDEX in names:
            return safe
    return any(name.endswith((*SAFETENSORS, *(ending + INDEX for ending in SAFETENSORS))) for name in names)


def _other_set(
    main: str,
    weights: Sequence[str],
    indexes: Sequence[str],
    before: str,
    endings: tuple[str, ...],
    files: Mapping[str, int],
    read_small: Callable[[str], bytes],
) -> Iterator[Note]:
    """Yield a note on a set of shards next to a single file, which transformers prefers and other loaders do not."""
    path, index = before + main, main + INDEX
    shards = next(iter(complete_sets(weights)), ())
    if index in indexes:
        try:
            shards = read_index(before + index, endings, files, read_small).shards
        except (InvalidCheckpoint, LimitExceeded):
            yield WORDS.note("stale-index", path=path, index=before + index)
            return
    if shards and shards != (path,):
        yield WORDS.note("other-loaders", path=path, shards=len(shards))
