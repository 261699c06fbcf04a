"""Matches tensors with uninformative names by their values alone: tensors of the same shape, possibly transposed, in the same layer."""

from collections.abc import Iterator, Sequence
from itertools import product

from analyzers.checkpoints.matching.layouts.match import Readers
from analyzers.checkpoints.matching.layouts.modules import Match
from analyzers.checkpoints.matching.layouts.packed_tensors import Part, variants
from analyzers.checkpoints.matching.layouts.probe import Floats, best_correlation, related, row_length, spread
from analyzers.checkpoints.matching.layouts.sites import PROJECTIONS, site
from analyzers.checkpoints.matching.layouts.views import View
from analyzers.checkpoints.tensor import Tensor

# Most names on each side, without layer numbers, that are all compared with each other; layers of each name that are compared.
_NAMES, _LAYERS = 64, 3
# Form of a match that the names contradict: the first Qwen calls the gate w2.
_MISNAMED = "under the name of another part"


def match_by_values(base: Sequence[Tensor], tuned: Sequence[Tensor], readers: Readers) -> list[Match]:
    """Return pairs of tensors whose values agree, the most similar first, each tensor at most once. None if a side has too many names."""
    sides = [_by_name(side) for side in (base, tuned)]
    if any(len(side) > _NAMES for side in sides):
        return []
    scores: list[tuple[float, str, str, str]] = []
    for ours, theirs in product(*sides):
        layers = spread([layer for layer in sides[0][ours] if layer in sides[1][theirs]], _LAYERS)
        for form, pairs in _values([(sides[0][ours][layer], sides[1][theirs][layer]) for layer in layers], readers).items():
            score = best_correlation(pairs)
            if related(*score):
                scores.append((score[0], ours, theirs, form))
    found: list[Match] = []
    taken: set[tuple[int, str]] = set()
    for _, ours, theirs, form in sorted(scores, reverse=True):
        if not taken & {(0, ours), (1, theirs)}:
            taken |= {(0, ours), (1, theirs)}
            said = ", ".join(filter(None, (form, _MISNAMED if _contradict(ours, theirs) else "")))
            for layer, one in sides[0][ours].items():
                other = sides[1][theirs].get(layer)
                view = in_form(other, one.shape, form) if other is not None else None
                if view is not None and other is not None:
                    found.append(Match(one, view, one, other, said, agree=True))
    return [*found, *_next_to(found, base, tuned)]


def _contradict(one: str, other: str) -> bool:
    """Return whether two names are those of different projections."""
    parts = set(site(one).parts), set(site(other).parts)
    return parts[0] != parts[1] and all(each <= PROJECTIONS for each in parts)


def in_form(tensor: Tensor, shape: tuple[int, ...], form: str) -> Tensor | None:
    """Return a whole tensor in the shape of another one, transposed if ``form`` says so; None if it does not fit."""
    part = next((part for words, part in _ways(tensor, shape) if words == form), None)
    return part.view.part_of(tensor, "") if part is not None else None


def _by_name(tensors: Sequence[Tensor]) -> dict[str, dict[int | None, Tensor]]:
    """Group tensors of at least two values: name without the layer's number -> layer -> tensor."""
    found: dict[str, dict[int | None, Tensor]] = {}
    for tensor in tensors:
        if tensor.elements > 1:
            found.setdefault(tensor.name.replace(f".{tensor.layer}.", ".*.", 1), {})[tensor.layer] = tensor
    return found


def _ways(tensor: Tensor, shape: tuple[int, ...]) -> Iterator[tuple[str, Part]]:
    """Return the variants of a whole tensor in the shape of another one."""
    return variants(Part(View.of(tensor), tensor.shape), "", shape, stacked=False, heads=())


def _values(pairs: Sequence[tuple[Tensor, Tensor]], readers: Readers) -> dict[str, list[tuple[Floats, Floats]]]:
    """Read values of both tensors of each pair, by the form in which the second tensor is read."""
    views = [(one, view, form) for one, other in pairs for form, part in _ways(other, one.shape) if (view := part.view.part_of(other, ""))]
    ours = readers[0].read([(one, row_length(one.shape)) for one, _, _ in views], spread=True)
    theirs = readers[1].read([(view, row_length(one.shape)) for one, view, _ in views], spread=True)
    found: dict[str, list[tuple[Floats, Floats]]] = {}
    for one, view, form in views:
        found.setdefault(form, []).append((ours[one], theirs[view]))
    return found


def _next_to(matches: Sequence[Match], base: Sequence[Tensor], tuned: Sequence[Tensor]) -> Iterator[Match]:
    """Yield pairs of tensors too short to compare by value, such as biases, in modules whose weights match."""
    modules = {match.base_stored.name.rpartition(".")[0]: match.tuned_stored.name.rpartition(".")[0] for match in matches}
    taken = {match.base_stored.name for match in matches}, {match.tuned_stored.name for match in matches}
    names = {tensor.name: tensor for tensor in tuned if tensor.name not in taken[1]}
    for tensor in base:
        module, _, leaf = tensor.name.rpartition(".")
        other = names.get(f"{modules.get(module)}.{leaf}")
        if tensor.name not in taken[0] and other is not None and other.shape == tensor.shape:
            yield Match(tensor, other, tensor, other)
