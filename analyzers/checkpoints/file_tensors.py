"""Lists the tensors that the headers of the weight files describe: each once, under one name."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain
from math import prod

from analyzers.checkpoints.formats.safetensors_header import Header
from analyzers.checkpoints.tensor import DTYPE_BITS, Tensor
from analyzers.checkpoints.tensor_names.roles import is_buffer, layer, role
from analyzers.checkpoints.weight_files.file_names import file_name, stem
from analyzers.checkpoints.weight_files.selection import WeightFiles
from analyzers.checkpoints.words import WORDS
from analyzers.core.errors import InvalidCheckpoint
from analyzers.core.notes import Note
from analyzers.core.terminal import quoted

_NUMBER = re.compile(r"(?<=\.)[0-9]+(?=\.)")


def file_tensors(weights: WeightFiles, headers: tuple[Header, ...], notes: list[Note]) -> tuple[list[Tensor], dict[str, str]]:
    """Return every tensor, with the file added to names that collide, and a map from replaced tensors to those that loaders use.

    If several shards of one set hold the same name, transformers loads the tensor in the last shard, whatever the index says; the file is
    added to the names of the others. notes: receives remarks for the reader. Raises InvalidCheckpoint if names still collide.
    """

    @cache  # layers repeat the same names: without digits only a few dozen are distinct, of few shapes
    def kind(pattern: str, shape: tuple[int, ...], dtype: str) -> tuple[str, bool]:
        return role(pattern), is_buffer(pattern, shape, dtype)

    tensors, replaced = list[Tensor](), dict[str, str]()
    numbers = {path: number for number, path in enumerate(weights.paths)}
    for chosen in weights.sets:
        loaded = [{tensor.name: path for path in group for tensor in headers[numbers[path]].tensors} for group in chosen.groups]
        again = {name for name, count in Counter(chain.from_iterable(loaded)).items() if count > 1}
        groups = list(zip(chosen.groups, loaded, strict=True))
        if again:
            notes.append(WORDS.note("same-names", files=tuple(group[0] for group, names in groups if again & names.keys())))
        if chosen.weight_map is not None:
            notes += _contradictions(chosen.weight_map, {path: headers[numbers[path]] for path in chosen.groups[0]})
        for group, names in groups:
            for path in group:
                number, before = numbers[path], f"{chosen.prefix}{stem(file_name(path))}/"
                notes += [note for note in headers[number].notes if note not in notes]
                for name, dtype, shape, start, stop, strides in headers[number].tensors:
                    last = names[name]
                    full = before + name if again or last != path else chosen.prefix + name
                    if last != path:
                        replaced[full] = chosen.prefix + (f"{stem(file_name(last))}/{name}" if again else name)
                    nbytes = stop - start if strides is None else prod(shape) * DTYPE_BITS[dtype] // 8
                    found = kind(_NUMBER.sub("0", name), shape, dtype)
                    tensors.append(Tensor(full, dtype, shape, number, start, nbytes, found[0], layer(name), found[1], strides=strides))
    if replaced:
        notes.append(WORDS.note("replaced", tensors=len(replaced), name=next(iter(replaced.values()))))
    repeated = [name for name, count in Counter(tensor.name for tensor in tensors).items() if count > 1]
    if repeated:
        raise InvalidCheckpoint(f"The checkpoint contradicts itself: the tensor {quoted(repeated[0])} is in two of its folders or files.")
    return tensors, replaced


def _contradictions(weight_map: Mapping[str, str], headers: Mapping[str, Header]) -> Iterator[Note]:
    """Yield notes on where an index contradicts the headers of its shards, which count."""
    held = {(tensor.name, path) for path, header in headers.items() for tensor in header.tensors}
    wrong = [name for name, path in weight_map.items() if (name, path) not in held]
    unlisted = sorted({name for name, _ in held} - weight_map.keys())
    for code, names in (("index-wrong-files", wrong), ("index-missing-names", unlisted)):
        if names:
            yield WORDS.note(code, tensors=len(names), name=names[0])


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
