"""Lists the tensors that the headers of the weight files describe: each once, under one name."""

import re
from collections import Counter
from itertools import chain
from math import prod

from analyzers.checkpoints.formats.safetensors_header import Header
from analyzers.checkpoints.tensor import DTYPE_BITS, Tensor
from analyzers.checkpoints.tensor_names.roles import is_buffer, layer, role
from analyzers.checkpoints.weight_files.file_names import GGUF, SAFETENSORS, file_name, stem
from analyzers.checkpoints.weight_files.selection import WeightFiles, WeightSet
from analyzers.checkpoints.words import WORDS
from analyzers.core.errors import InvalidCheckpoint
from analyzers.core.notes import Note
from analyzers.core.terminal import quoted

_NUMBER = re.compile(r"(?<=\.)[0-9]+(?=\.)")


def file_tensors(weights: WeightFiles, headers: tuple[Header, ...], notes: list[Note]) -> tuple[list[Tensor], dict[str, str]]:
    """Return every tensor, with the file added to names that collide, and a map from replaced tensors to those that loaders use.

    If several shards of one set hold the same name, transformers loads the tensor in the last shard, whatever the index says; the file is
    added to the names of the others. notes: receives remarks for the reader. Raises InvalidCheckpoint if a GGUF file repeats a name, or
    names still collide.
    """
    # Layers repeat the same names: without digits only a few dozen are distinct, of few shapes.
    kinds: dict[tuple[str, tuple[int, ...], str], tuple[str, bool]] = {}
    paths = weights.paths
    numbers, stems = {path: number for number, path in enumerate(paths)}, [stem(file_name(path)) for path in paths]
    tensors, replaced = [], dict[str, str]()
    for chosen in weights.sets:
        places = [[numbers[path] for path in group] for group in chosen.groups]
        last = [{tensor.name: place for place in group for tensor in headers[place].tensors} for group in places]
        again = {name for name, count in Counter(chain.from_iterable(last)).items() if count > 1}
        apart = bool(again)
        if apart:
            alike = [paths[group[0]] for group, held in zip(places, last, strict=True) if again & held.keys()]
            notes.append(WORDS.note("same-names", files=tuple(alike)))
        _compare_index(chosen, places, headers, paths, notes)
        for place, loaded in ((place, held) for group, held in zip(places, last, strict=True) for place in group):
            for note in headers[place].notes:
                if note not in notes:
                    notes.append(note)
            for name, dtype, shape, start, stop, strides in headers[place].tensors:
                pattern = _NUMBER.sub("0", name), shape, dtype
                if pattern not in kinds:
                    kinds[pattern] = role(name), is_buffer(name, shape, dtype)
                kind, buffer = kinds[pattern]
                nbytes = stop - start if strides is None else prod(shape) * DTYPE_BITS[dtype] // 8
                full = chosen.prefix + (f"{stems[place]}/{name}" if apart or loaded[name] != place else name)
                if loaded[name] != place:
                    replaced[full] = chosen.prefix + (f"{stems[loaded[name]]}/{name}" if apart else name)
                    _refuse_gguf(name, paths[place], paths[loaded[name]])
                tensors.append(Tensor(full, dtype, shape, place, start, nbytes, kind, layer(name), buffer, strides=strides))
    if replaced:
        notes.append(WORDS.note("replaced", tensors=len(replaced), name=next(iter(replaced.values()))))
    return _distinct(tensors, weights), replaced


def _refuse_gguf(name: str, path: str, other: str) -> None:
    """Raise InvalidCheckpoint if a tensor is in two GGUF files, which llama.cpp refuses."""
    if path.endswith(GGUF):
        both = f"{quoted(path, 200)} and {quoted(other, 200)}"
        raise InvalidCheckpoint(f"The tensor {quoted(name)} is in both {both}, which llama.cpp refuses.")


def count_once(every: list[Tensor]) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """Separate the tensors to count from those that alias the same elements: the first alias that is not a head counts, else the first."""
    if len({(tensor.file, tensor.offset) for tensor in every}) == len(every):
        return every, ()
    kept: dict[tuple[object, ...], Tensor] = {}
    others: list[Tensor] = []
    for tensor in every:
        place: tuple[object, ...] = (tensor.file, tensor.offset, tensor.shape, tensor.dtype, tensor.strides)
        if not tensor.elements:
            place = (tensor.name,)
        first = kept.setdefault(place, tensor)
        if first is not tensor:
            better = first.role == "head" != tensor.role
            others.append(first if better else tensor)
            if better:
                kept[place] = tensor
    return list(kept.values()), tuple(others)


def _distinct(tensors: list[Tensor], weights: WeightFiles) -> list[Tensor]:
    """Raise InvalidCheckpoint if a tensor has the name that another one gets from its folder or file."""
    if len(weights.paths) > 1 and len({tensor.name for tensor in tensors}) < len(tensors):
        name = next(name for name, count in Counter(tensor.name for tensor in tensors).items() if count > 1)
        raise InvalidCheckpoint(f"The checkpoint contradicts itself: the tensor {quoted(name)} is in two of its folders or files.")
    return tensors


def _compare_index(
    chosen: WeightSet, places: list[list[int]], headers: tuple[Header, ...], paths: tuple[str, ...], notes: list[Note]
) -> None:
    """Note where the index contradicts the headers. The headers are authoritative."""
    if chosen.weight_map is None:
        return
    held = {(tensor.name, paths[place]) for group in places for place in group for tensor in headers[place].tensors}
    wrong = [name for name, path in chosen.weight_map.items() if (name, path) not in held]
    unlisted = {name for name, _ in held} - chosen.weight_map.keys()
    for code, names in (("index-wrong-files", wrong), ("index-missing-names", sorted(unlisted))):
        notes += [WORDS.note(code, tensors=len(names), name=names[0])] if names else []
    stated, shards = chosen.total_size, [place for group in places for place in group]
    nbytes = sum(tensor.stop - tensor.start for place in shards for tensor in headers[place].tensors)
    # For pickled shards some programs count tied tensors twice.
    if stated is not None and stated != nbytes and all(paths[place].endswith(SAFETENSORS) for place in shards):
        notes.append(WORDS.note("index-wrong-size", stated=stated, stored=nbytes))
