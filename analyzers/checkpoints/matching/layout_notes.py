"""Writes sentences on tensors compared in another layout, or in layers of other numbers."""

from collections.abc import Iterator, Sequence

from analyzers.checkpoints.matching.align import TIED, Relaid, Unmatched
from analyzers.checkpoints.reference import quoted
from analyzers.formatting import plural

_LISTED = 12  # most layers that a sentence names


def moved_layers(found: Unmatched) -> list[tuple[int, int | None]]:
    """Return the moved layers of the base with the tuned layers that have or repeat their content; None for a missing layer."""
    again = [(source, layer) for each in found.layers for layer, source in sorted(each.repeated.items())]
    return [*((layer, source) for each in found.layers for layer, source in sorted(each.moved.items())), *again]


def layout_words(found: Unmatched) -> list[str]:
    """Return the layouts in which tensors were compared, the most frequent first."""
    forms = [each.form for each in found.relaid]
    return sorted(set(forms), key=lambda form: (-forms.count(form), form))


def layout_notes(found: Unmatched, base: str, tuned: str) -> Iterator[str]:
    """Yield a sentence for each layout in which tensors were compared, and on renumbered layers.

    base, tuned: names used in the sentences.
    """
    moved = [each for of in found.layers for each in sorted(of.moved.items())]
    lost = [str(layer) for layer, source in moved if source is None]
    others = [f"{layer} with {source}" for layer, source in moved if source is not None]
    again = [f"{layer} with {source}" for each in found.layers for layer, source in sorted(each.repeated.items())]
    if others:
        yield f"Compared under other numbers, as their values show: {plural(len(others), 'layer')} of {base} ({_listed(others)})."
    if lost:
        yield f"{tuned[:1].upper()}{tuned[1:]} has no counterpart of {plural(len(lost), 'layer')} of {base}: {_listed(lost)}."
    if again:
        yield f"{tuned[:1].upper()}{tuned[1:]} repeats layers of {base}, which are compared again: its layers {_listed(again)}."
    forms: dict[tuple[str, bool], list[Relaid]] = {}
    for each in found.relaid:
        forms.setdefault((each.form, each.agree or each.form == TIED), []).append(each)
    for (form, agree), alike in forms.items():
        first, more = alike[0], ", for one" if len(alike) > 1 else ""
        unsure = "" if agree else ", the most usual layout of these shapes: in none that was tried do the values agree"
        yield (
            f"Compared in another layout ({form}{unsure}): {plural(len(alike), 'tensor')}, {quoted(first.base.name)} with "
            f"{quoted(first.tuned.name)}{more}."
        )


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words[:_LISTED]) + (", ..." if len(words) > _LISTED else "")
