"""Lists the tensors that the headers of the weight files describe: each once, under one name."""

import re
from collections import Counter
from itertools import chain
from math import prod

from analyzers.checkpoints.formats.safetensors_header import Header
from analyzers.checkpoints.reference import quoted
from analyzers.checkpoints.tensor import DTYPE_BITS, Tensor
from analyzers.checkpoints.tensor_names.roles import is_buffer, layer, role
from analyzers.checkpoints.weight_files.file_names import file_name, stem
from analyzers.checkpoints.weight_files.selection import GGUF, SAFETENSORS, WeightFiles, WeightSet
from analyzers.errors import InvalidCheckpoint
from analyzers.terminal import plural, some_files

_NUMBER = re.compile(r"(?<=\.)[0-9]+(?=\.)")

# Number of tied or replaced tensors that the notes list by name.
_NAMED_TIES = 8


def file_tensors(weights: WeightFiles, headers: tuple[Header, ...], notes: list[str]) -> tuple[list[Tensor], dict[str, str]]:
    """Return every tensor, with the file added to names that collide, and a map from replaced tensors to those that loaders use.

    If several shards of one set hold the same name, transformers loads the tensor in the last shard, whatever the index says; the file is
    added to the names of the others. notes: receives remarks for the reader. Raises InvalidCheckpoint if a GGUF file repeats a name, or
    names still collide.
    """
    # Layers repeat the same names: without digits only a few dozen are distinct.
    roles: dict[str, str] = {}
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
            notes.append(
                f"{some_files(alike)} hold tensors of the same names, as several models do: they were read together, their parameters add "
                "up, and names begin with the file. If they are several models, read one alone."
            )
        _compare_index(chosen, places, headers, paths, notes)
        for place, loaded in ((place, held) for group, held in zip(places, last, strict=True) for place in group):
            for note in headers[place].notes:
                if note not in notes:
                    notes.append(note)
            for name, dtype, shape, start, stop, strides in headers[place].tensors:
                pattern = _NUMBER.sub("0", name)
                if pattern not in roles:
                    roles[pattern] = role(name)
                buffer = is_buffer(name, shape, dtype)
                nbytes = stop - start if strides is None else prod(shape) * DTYPE_BITS[dtype] // 8
                found = roles[pattern], layer(name)
                names = [f"{stems[at]}/{name}" for at in (place, loaded[name])]
                full = chosen.prefix + (names[0] if apart or loaded[name] != place else name)
                if loaded[name] != place:
                    replaced[full] = chosen.prefix + (names[1] if apart else name)
                    if len(replaced) <= _NAMED_TIES:
                        notes.append(_replaced_note(name, paths[place], paths[loaded[name]], chosen))
                tensors.append(Tensor(full, dtype, shape, place, start, nbytes, *found, buffer, strides=strides))
    if len(replaced) > _NAMED_TIES:
        notes.append(f"The same holds of {plural(len(replaced) - _NAMED_TIES, 'more tensor')} in several shards.")
    return _distinct(tensors, weights), replaced


def _replaced_note(name: str, path: str, loaded: str, chosen: WeightSet) -> str:
    """Write a note on a tensor in ``path`` that another one replaces. Raises InvalidCheckpoint for GGUF files, which llama.cpp refuses."""
    both = f"{quoted(path, 200)} and {quoted(loaded, 200)}"
    if path.endswith(GGUF):
        raise InvalidCheckpoint(f"The tensor {quoted(name)} is in both {both}, which llama.cpp refuses.")
    other = ", though the index names the other" if chosen.weight_map and chosen.weight_map.get(name) != loaded else ""
    return f"{quoted(name)} is in both {both}: transformers loads the one in the last shard{other}."


def count_once(every: list[Tensor], notes: list[str]) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """Separate the tensors to count from those that alias the same elements: the first alias that is not a head counts, else the first."""
    if len({(tensor.file, tensor.offset) for tensor in every}) == len(every):
        return every, ()
    kept: dict[tuple[object, ...], Tensor] = {}
    others: list[tuple[Tensor, tuple[object, ...]]] = []
    for tensor in every:
        place: tuple[object, ...] = (tensor.file, tensor.offset, tensor.shape, tensor.dtype, tensor.strides)
        if not tensor.elements:
            place = (tensor.name,)
        first = kept.setdefault(place, tensor)
        if first is not tensor:
            better = first.role == "head" != tensor.role
            others.append((first if better else tensor, place))
            if better:
                kept[place] = tensor
    for tensor, place in others[:_NAMED_TIES]:
        notes.append(f"{quoted(tensor.name)} is the same memory as {quoted(kept[place].name)}: counted once.")
    if len(others) > _NAMED_TIES:
        notes.append(f"The same holds of {plural(len(others) - _NAMED_TIES, 'more tensor')}.")
    return list(kept.values()), tuple(tensor for tensor, _ in others)


def _distinct(tensors: list[Tensor], weights: WeightFiles) -> list[Tensor]:
    """Raise InvalidCheckpoint if a tensor has the name that another one gets from its folder or file."""
    if len(weights.paths) > 1 and len({tensor.name for tensor in tensors}) < len(tensors):
        name = next(name for name, count in Counter(tensor.name for tensor in tensors).items() if count > 1)
        raise InvalidCheckpoint(f"The checkpoint contradicts itself: the tensor {quoted(name)} is in two of its folders or files.")
    return tensors


def _compare_index(
    chosen: WeightSet, places: list[list[int]], headers: tuple[Header, ...], paths: tuple[str, ...], notes: list[str]
) -> None:
    """Note where the index contradicts the headers. The headers are authoritative."""
    if chosen.weight_map is None:
        return
    held = {(tensor.name, paths[place]) for group in places for place in group for tensor in headers[place].tensors}
    wrong = [name for name, path in chosen.weight_map.items() if (name, path) not in held]
    unlisted = {name for name, _ in held} - chosen.weight_map.keys()
    if wrong:
        notes.append(f"The index and the files disagree on {_named(wrong[0], len(wrong))}: the files were read.")
    if unlisted:
        notes.append(f"The index leaves out {_named(min(unlisted), len(unlisted))}: they were read from the files.")
    said, shards = chosen.total_size, [place for group in places for place in group]
    nbytes = sum(tensor.stop - tensor.start for place in shards for tensor in headers[place].tensors)
    # For pickled shards some programs count tied tensors twice.
    if said is not None and said != nbytes and all(paths[place].endswith(SAFETENSORS) for place in shards):
        notes.append(f"The index counts {said:,.16g} bytes of tensors, and the files hold {nbytes:,}: the files were read.")


def _named(first: str, count: int) -> str:
    """Quote the first of ``count`` tensors and say how many more there are."""
    return quoted(first) + (f" and {plural(count - 1, 'more tensor')}" if count > 1 else "")
