"""Opens the model and its candidates: those in the request, or those of the model card and the library."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from analyzers.checkpoints import Access, Checkpoint, check_side, open_sides, with_commits
from analyzers.checkpoints.model_card import base_models
from analyzers.comparison.parents.report import ParentsRequest, Source
from analyzers.comparison.parents.words import WORDS
from analyzers.core import limits
from analyzers.core.errors import InvalidRequest, MantissaError
from analyzers.core.notes import Note
from analyzers.core.request import Progress


@dataclass(slots=True)
class Opened:
    """The model and its candidates, the source of each candidate's name, and notes about candidates that could not be opened."""

    sides: list[Checkpoint]
    sources: list[Source]
    notes: list[Note]


def open_all(request: ParentsRequest, access: Access, stack: ExitStack) -> Generator[Progress, None, Opened]:
    """Open the model and its candidates: those in the request, or those of the card and the library that can be opened."""
    names = ["Model", *side_names(len(request.candidates))]
    sides = yield from open_sides([request.model, *request.candidates], names, access, request.subfolder)
    for side, name in zip(sides, names, strict=True):
        stack.enter_context(side)
        check_side(side, name, bool(request.include))
    _check_different(sides)
    opened = Opened(sides, ["named"] * len(request.candidates), [])
    if not request.candidates:
        yield from find(request, access, stack, opened)
    return opened


def find(request: ParentsRequest, access: Access, stack: ExitStack, opened: Opened) -> Iterator[Progress]:
    """Add the base of a model with adapters, the candidates that the card names, and those that the library suggests."""
    (base, _), *adapters = opened.sides[0].parts
    own = [with_commits(base.ref, base.commit)] if adapters else []
    of_card = base_models(opened.sides[0], limits.CANDIDATES)
    known, unread = {(side.ref, side.commit) for side in opened.sides}, ""
    for name in list(dict.fromkeys([*own, *of_card, *request.suggested]))[: limits.CANDIDATES]:
        try:
            (side,) = yield from open_sides([name], ["Candidate"], access, request.subfolder)
            stack.enter_context(side)
            check_side(side, "Candidate", bool(request.include))
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
    if not opened.sources:
        found = unread or f"The model card of {opened.sides[0].ref} names no other base_model."
        raise InvalidRequest(f"No candidates: name checkpoints that the model may come from. {found}")


def side_names(candidates: int) -> list[str]:
    """Return the names of this many candidates in messages."""
    return ["Candidate"] if candidates == 1 else [f"Candidate {number} of {candidates}" for number in range(1, candidates + 1)]


def _check_different(sides: Sequence[Checkpoint]) -> None:
    seen: dict[tuple[str, str], int] = {}
    for number, side in enumerate(sides):
        first = seen.setdefault((side.ref, side.commit), number)
        if first != number:
            what = "the model itself" if first == 0 else f"the same checkpoint as candidate {first}"
            raise InvalidRequest(f"Candidate {number}, {side.ref}, is {what}: name different checkpoints.")
