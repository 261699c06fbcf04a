"""Matches layers by content: in a model of stacked, dropped or repeated layers, layer 20 may be another model's layer 12."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from analyzers.checkpoints.elements import read_bytes
from analyzers.checkpoints.matching.choices import Match, Readers
from analyzers.checkpoints.matching.forms import Form, turned_forms
from analyzers.checkpoints.matching.probe import SCATTERED, Floats, normalised, places, related
from analyzers.checkpoints.tensor import Tensor
from analyzers.checkpoints.views import View

_NUMBERED = re.compile(r"(.*?\.)(\d{1,6})(\..+)")
# A layer moved only if another layer's correlation exceeds that of the layer with its own number by this much.
_CLEARLY = 0.1
# Most layers of a stack that are compared with each other, and the number of matrices compared, whose median counts: some may be damaged;
# of models without a relation, fewer.
_MOST, _MATRICES, _UNRELATED = 2_000, 5, 2


@dataclass(frozen=True, slots=True)
class LayerMap:
    """The moved layers of one stack of blocks, whose tensor names begin with ``base`` and ``tuned`` before the layer's number.

    moved: layer of the base -> the tuned checkpoint's layer with its content, None if there is none; only for layers that do not match the
    layer of their own number. repeated: further layers of the tuned checkpoint -> the base's layer whose content they repeat.
    """

    base: str
    tuned: str
    moved: Mapping[int, int | None]
    repeated: Mapping[int, int]


def split_name(name: str) -> tuple[str, int, str] | None:
    """Return what is before a layer's number in a name, the number, and what is after it; None without a number."""
    found = _NUMBERED.fullmatch(name)
    return (found[1], int(found[2]), found[3]) if found else None


def layer_maps(matches: Sequence[Match], base: Sequence[Tensor], tuned: Sequence[Tensor], readers: Readers) -> list[LayerMap]:
    """Return the stacks in which layers moved. matches: of layers with equal numbers; they select the matrices that distinguish layers."""
    sides, found = (_by_stack(base), _by_stack(tuned)), []
    for (before, after), matrices in _stacks(matches).items():
        scores: list[tuple[Floats, int]] = []
        layers: tuple[list[int], list[int]] = ([], [])
        for ours, theirs, form in matrices[:_MATRICES]:
            first, second = _usual(sides[0][before, ours]), _usual(sides[1][after, theirs])
            if 2 <= max(len(first), len(second)) <= _MOST and (not scores or layers == (list(first), list(second))):
                layers = list(first), list(second)
                scores.append(_correlations((first, second), form, readers))
                in_place = layers[0] == layers[1] and _in_place(*scores[-1])
                unrelated = not any(related(float(similar.max()), values) for similar, values in scores)
                if in_place or (unrelated and len(scores) == _UNRELATED):
                    break  # the other matrices are read only if a layer is in doubt
        if scores:
            moved, repeated = _moved(np.median([each for each, _ in scores], axis=0), *layers, scores[0][1])
            if moved or repeated:
                found.append(LayerMap(before, after, moved, repeated))
    return found


def with_layers_moved(tensors: Sequence[Tensor], maps: Sequence[LayerMap]) -> dict[Tensor, Tensor]:
    """Map the tensors of the tuned checkpoint, renumbered as the base's layers, to the stored ones.

    Layers of the base without a counterpart receive none; tuned layers that match no layer of the base keep their number if it is free.
    """
    found: dict[Tensor, Tensor] = {}
    stacks = {of.tuned: of for of in maps}
    for tensor in tensors:
        before, own, after = split_name(tensor.name) or ("", 0, "")
        of = stacks.get(before)
        homes = [layer for layer, source in of.moved.items() if source == own] if of is not None else []
        if of is None or (own not in of.moved and own not in of.repeated):
            found[tensor] = tensor
        found |= {replace(tensor, name=f"{before}{home}{after}", layer=home): tensor for home in homes}
    return found


def _stacks(matches: Sequence[Match]) -> dict[tuple[str, str], list[tuple[str, str, str]]]:
    """Return the prefixes of each stack -> name suffixes and form of the matrices that distinguish its layers, best first.

    Matrices that most layers have come first; among these, matrices matched as stored, then those of which a few values take few bytes,
    then matrices that are not square.
    """
    found: dict[tuple[str, str], Counter[tuple[str, str, str]]] = {}
    order: dict[tuple[str, str, str], tuple[int, bool]] = {}
    for match in matches:
        whole = match.base == match.base_stored and match.tuned.name == match.tuned_stored.name
        if whole and match.base.layer is not None and len(match.base.shape) > 1 and match.base.elements > 1:
            ours, theirs = split_name(match.base_stored.name), split_name(match.tuned_stored.name)
            if ours is not None and theirs is not None:
                matrix = ours[2], theirs[2], match.form
                found.setdefault((ours[0], theirs[0]), Counter())[matrix] += 1
                if matrix not in order:
                    sides = match.base, match.tuned
                    cost = max(read_bytes(side, *place) for place in places(sides, spread=False) for side in sides)
                    order[matrix] = cost // SCATTERED, len(set(match.base.shape[-2:])) == 1
    return {
        stack: sorted(layers, key=lambda matrix: (-layers[matrix], matrix[2] != "", order[matrix], matrix))
        for stack, layers in found.items()
    }  # fmt: skip


def _by_stack(tensors: Sequence[Tensor]) -> dict[tuple[str, str], dict[int, Tensor]]:
    """Index tensors: (before the layer's number, after it) -> number -> tensor."""
    found: dict[tuple[str, str], dict[int, Tensor]] = {}
    for tensor in tensors:
        parts = split_name(tensor.name)
        if parts is not None and tensor.has_values:
            found.setdefault((parts[0], parts[2]), {})[parts[1]] = tensor
    return found


def _usual(layers: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Return the layers in which a matrix has its most frequent shape."""
    ((shape, _),) = Counter(tensor.shape for tensor in layers.values()).most_common(1)
    return {number: tensor for number, tensor in layers.items() if tensor.shape == shape}


def _in_place(scores: Floats, values: int) -> bool:
    """Return whether each layer clearly resembles the layer of its own number, and no other one as much. Arguments as of `_moved`."""
    own = np.diagonal(scores)
    others = scores[~np.eye(len(scores), dtype=np.bool_)]
    return all(related(float(each), values) for each in own) and float(own.min()) > float(others.max(initial=-1.0)) + _CLEARLY


def _moved(scores: Floats, ours: list[int], theirs: list[int], values: int) -> tuple[dict[int, int | None], dict[int, int]]:
    """Determine ``moved`` and ``repeated`` of a `LayerMap`.

    scores: (layers of base, layers of tuned) correlations, each over ``values`` values.
    """

    def source_of(layer: int, layers: list[int], similar: Floats) -> int | None:
        """Return the layer that resembles this one: of its own number, unless another one does clearly more; None if none does."""
        best, own = int(np.argmax(similar)), float(similar[layers.index(layer)]) if layer in layers else -1.0
        if related(float(similar[best]), values) and similar[best] > own + _CLEARLY:
            return layers[best]
        return layer if related(own, values) else None

    sources = {layer: source_of(layer, theirs, scores[row]) for row, layer in enumerate(ours)}
    for layer in [each for each, source in sources.items() if source is None]:
        # A layer with the values of another one, while nothing holds its own, is damaged, not moved.
        holders = [each for each, source in sources.items() if source == layer]
        if len(holders) == 1 and holders[0] in theirs and holders[0] not in sources.values():
            sources[holders[0]] = holders[0]
    claimed = set(sources.values())
    # A layer that resembles none is compared with that of its own number, unless another layer is.
    homes = {layer: layer if source is None and layer not in claimed else source for layer, source in sources.items()}
    moved = {layer: source for layer, source in homes.items() if source != layer}
    repeated = {}
    for column, layer in enumerate(theirs):
        source = source_of(layer, ours, scores[:, column])
        if layer not in homes.values() and source not in (None, layer):
            repeated[layer] = source
    return moved, {layer: source for layer, source in repeated.items() if source is not None}


def _correlations(sides: tuple[dict[int, Tensor], dict[int, Tensor]], form: str, readers: Readers) -> tuple[Floats, int]:
    """Return the (layers of base, layers of tuned) correlations and the number of values per layer."""
    shape = next(iter(sides[0].values())).shape
    views = [_in_form(tensor, shape, form) for tensor in sides[1].values()]
    turned = [view for view in views if view is not None]
    if len(turned) < len(views) or not turned:
        return np.zeros((len(sides[0]), len(views))), 0
    at = places((next(iter(sides[0].values())), turned[0]), spread=bool(form))
    ours, theirs = (
        np.stack([normalised(values) for values in reader.read([(view, at) for view in side]).values()])
        for side, reader in zip((sides[0].values(), turned), readers, strict=True)
    )
    return (ours @ theirs.T, ours.shape[1]) if ours.shape[1:] == theirs.shape[1:] else (np.zeros((len(ours), len(theirs))), 0)


def _in_form(tensor: Tensor, shape: tuple[int, ...], form: str) -> Tensor | None:
    """Return a whole tensor in the shape of another one; None if it does not fit in this form."""
    forms = turned_forms(Form("", View.of(tensor), tensor.shape), "", shape, False, ())
    return next((each.view.part_of(tensor, "") for each in forms if each.words == form), None)
