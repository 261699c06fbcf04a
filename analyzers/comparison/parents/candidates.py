"""Opens the model and its candidates: those in the request, or those of the model card and the library."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from analyzers.checkpoints import Access, Checkpoint, with_commits
from analyzers.checkpoints.model_card import base_models
from analyzers.comparison.parents.report import ParentsRequest, Source
from analyzers.comparison.parents.words import WORDS
from analyzers.comparison.reading import open_models
from analyzers.core import limits
from analyzers.core.errors import InvalidRequest, MantissaError
from analyzers.core.notes import Note
from analyzers.core.request import Progress


@dataclass(slots=True)
class Opened:
    """The model and its candidates, with what is known of them before they are read side by side.

    names: in errors; sources: of each candidate, what proposed it; notes: about candidates.
    """

    sides: list[Checkpoint]
    names: list[str]
    sources: list[Source]
    notes: list[Note] = field(default_factory=list)


def find(request: ParentsRequest, access: Access, stack: ExitStack, opened: Opened) -> Iterator[Progress]:
    """Add the base of a model with adapters, the candidates that the card names, and those that the library suggests."""
    (base, _), *adapters = opened.sides[0].parts
    own = [with_commits(base.ref, base.commit)] if adapters else []
    of_card = base_models(opened.sides[0], limits.CANDIDATES)
    known, unread = {(side.ref, side.commit) for side in opened.sides}, ""
    for name in list(dict.fromkeys([*own, *of_card, *request.suggested]))[: limits.CANDIDATES]:
        try:
            (side,) = yield from open_models([name], ["Candidate"], request, access, stack)
        except MantissaError as error:
            if name in of_card:
                opened.notes.append(WORDS.note("card-unreadable", name=name))
                unread = unread or f"{name}, the base_model of the model card, cannot be compared: {error}"
            continue
        if (side.ref, side.commit) in known:
            continue
        known.add((side.ref, side.commit))
        opened.sides.append(side)
        opened.sources.append("named" if name in own else "card" if name in of_card else "library")
    opened.names[1:] = side_names(len(opened.sources))
    if not opened.sources:
        found = unread or f"The model card of {opened.sides[0].ref} names no other base_model."
        raise InvalidRequest(f"No candidates: name checkpoints that the model may come from. {found}")


def side_names(candidates: int) -> list[str]:
    """Return the names of this many candidates in messages."""
    return ["Candidate"] if candidates == 1 else [f"Candidate {number} of {candidates}" for number in range(1, candidates + 1)]


def check_different(sides: Sequence[Checkpoint], names: Sequence[str]) -> None:
    """Raise InvalidRequest if a checkpoint is named twice."""
    seen = set[tuple[str, str]]()
    for side, name in zip(sides, names, strict=True):
        if (side.ref, side.commit) in seen:
            raise InvalidRequest(f"{name}, {side.ref}, is the same checkpoint as one before it: name different models.")
        seen.add((side.ref, side.commit))
