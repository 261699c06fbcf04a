"""Notes on tensors compared in another form, or in layers of other numbers."""

from collections.abc import Iterator

from analyzers.checkpoints.matching.align import Pair, Unmatched
from analyzers.checkpoints.matching.pairs import TIED
from analyzers.checkpoints.words import WORDS
from analyzers.core.notes import Note

_LISTED = 12  # most layers that a sentence names


def moved_layers(found: Unmatched) -> list[tuple[int, int | None]]:
    """Return the moved layers of the base with the tuned layers that have or repeat their content; None for a missing layer."""
    moved = [pair for each in found.layers for pair in sorted(each.moved.items())]
    return [*moved, *((source, layer) for each in found.layers for layer, source in sorted(each.repeated.items()))]


def layout_notes(found: Unmatched, base: str, tuned: str) -> Iterator[Note]:
    """Yield a note for each form in which tensors were compared, and on renumbered layers.

    base, tuned: names used in the sentences.
    """
    moved = [pair for of in found.layers for pair in sorted(of.moved.items())]
    numbers = {
        "moved-layers": [f"{layer} with {source}" for layer, source in moved if source is not None],
        "lost-layers": [str(layer) for layer, source in moved if source is None],
        "repeated-layers": [f"{layer} with {source}" for each in found.layers for layer, source in sorted(each.repeated.items())],
    }
    for code, layers in numbers.items():
        if layers:
            listed = (*layers[:_LISTED], *(["more"] if len(layers) > _LISTED else []))
            yield WORDS.note(code, layers=len(layers), numbers=listed, base=base, tuned=tuned)
    forms: dict[tuple[str, bool], list[Pair]] = {}
    for each in found.relaid:
        forms.setdefault((each.form, each.agree or each.form == TIED), []).append(each)
    for (form, agree), alike in forms.items():
        code, first = "relaid" if agree else "relaid-unsure", alike[0]
        yield WORDS.note(code, form=form, tensors=len(alike), name=first.base.name, other=first.tuned.name)
