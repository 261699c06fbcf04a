"""Opens the model and its candidates: those in the request, or those of the model card and the library; tells what references say."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from analyzers.checkpoints import Access, Checkpoint, with_commits
from analyzers.checkpoints.model_card import base_models
from analyzers.comparison.parents.report import Candidate, Construction, ParentsRequest, Source
from analyzers.comparison.parents.words import WORDS
from analyzers.comparison.reading import open_models
from analyzers.core import limits
from analyzers.core.coverage import Coverage
from analyzers.core.errors import InvalidRequest, MantissaError
from analyzers.core.notes import Note
from analyzers.core.request import Progress


@dataclass(slots=True)
class Opened:
    """The model and its candidates, with what is known of them before they are read side by side.

    names: in errors; sources: of each candidate, what proposed it; notes: about candidates; screened, coverage: rows and coverage of
    candidates that a small sample left out; nbytes, seconds: that earlier passes have read and taken.
    """

    sides: list[Checkpoint]
    names: list[str]
    sources: list[Source]
    notes: list[Note] = field(default_factory=list)
    screened: Sequence[Candidate] = ()
    coverage: Sequence[Coverage] = ()
    nbytes: int = 0
    seconds: float = 0.0


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


def made(model: Checkpoint, other: Checkpoint) -> Construction | None:
    """Return how a model is made if it is another one with adapters, or the base of it, or has the same base; None if it is neither.

    BASE+ADAPTER names its base, so that weights need not show it.
    """
    (base, *mine), (same, *theirs) = ([(part.ref, part.commit, weight) for part, weight in side.parts] for side in (model, other))
    if base != same or mine == theirs:
        return None
    if mine[: len(theirs)] == theirs:
        added = [ref if weight == 1 else f"{weight:.12g}*{ref}" for ref, _, weight in mine[len(theirs) :]]
        return Construction(kind="merged", ref=other.ref, adapters=tuple(added))
    return Construction(kind="base" if theirs[: len(mine)] == mine else "sibling", ref=other.ref)
