"""Opens the sides of a comparison, several checkpoints at once, and checks that their weights can be compared at all."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING

from analyzers.checkpoints.adapters.merged_checkpoint import MergedCheckpoint, is_adapter_alone, merge, open_checkpoint, open_whole
from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.in_memory import MemoryRepository
from analyzers.checkpoints.local import is_local
from analyzers.checkpoints.reading.read_once import read_once
from analyzers.checkpoints.reading.worker_threads import work_through
from analyzers.checkpoints.reference import joined, parse_reference, quoted, summands
from analyzers.checkpoints.repository import Access, Repository
from analyzers.core.errors import MantissaError, NoWeights, UnsupportedWeights

if TYPE_CHECKING:
    from analyzers.core.request import Progress

# A checkpoint with a smaller share of integer parameters than this is not quantized.
_FEW = 0.01

# Checkpoints opened at once: each may use the maximum number of connections to the Hub.
OPENED_AT_ONCE = 8


@contextmanager
def errors_about(name: str) -> Iterator[None]:
    """Prefix errors with the name of the side they come from."""
    try:
        yield
    except MantissaError as error:
        raise error.about(name) from None


def open_sides(
    texts: Sequence[str], names: Sequence[str], access: Access, subfolder: str | None = None, *, into_first: bool = False
) -> Generator["Progress", None, list[Checkpoint]]:
    """Open several checkpoints, a few at once; return them in the order of ``texts``. names: of the sides, for errors.

    An adapter alone is merged into the base that its configuration names, or, if ``into_first``, into the first checkpoint.

    Yields progress while headers are read. Raises the first error of `open_whole` in this order, naming the side. After an error, or
    when the generator is closed, nothing stays open: checkpoints still being opened are closed once they are open.
    """
    from analyzers.core.request import Progress  # local import: opening a checkpoint must not load pydantic

    for text, name in zip(texts, names, strict=True):  # invalid references fail before any request to the Hub
        with errors_about(name):
            parse_reference(text, access.local)
    held, opened, stop = list[Checkpoint | Repository](), list[Checkpoint](), Event()
    found = dict[int, Checkpoint | MantissaError]()

    def hold(one: Checkpoint | Repository) -> None:
        held.append(one)
        if stop.is_set():  # tested after appending, so that it is closed either here or below
            one.close()

    def open_one(number: int) -> Checkpoint | MantissaError:
        opening = open_checkpoint if into_first and number else open_whole
        try:
            checkpoint = opening(texts[number], access, subfolder, hold)
        except MantissaError as error:  # raised when it is its turn
            return error.about(names[number])
        hold(checkpoint)
        return checkpoint

    try:
        # Does not wait for threads that still wait for the Hub.
        with closing(work_through(range(len(texts)), min(len(texts), OPENED_AT_ONCE), lambda: open_one, stop, patience=0)) as results:
            for result in results:
                if result is not None:
                    found[result[0]] = result[1]
                while isinstance(side := found.get(len(opened)), Checkpoint):
                    with errors_about(names[len(opened)]):
                        opened.append(_sharing(opened[0], side, into_first) if opened else _readable_twice(side))
                if side is not None:
                    raise side
                yield Progress(done=0, total=0, unit="bytes", note=f"reading headers, {len(opened)} of {len(texts)} checkpoints")
        return opened
    except BaseException:
        stop.set()
        for each in list(held):
            each.close()
        raise


def _sharing(first: Checkpoint, side: Checkpoint, into_first: bool) -> Checkpoint:
    """Return ``side`` with ``first`` in place of its base if they are the same; ``into_first``: an adapter alone is merged into it."""
    if isinstance(side, MergedCheckpoint) and (side.parts[0][0].ref, side.parts[0][0].commit) == (first.ref, first.commit):
        (base, _), *adapters = side.parts
        base.close()
        return merge(first, [adapter for adapter, _ in adapters], [weight for _, weight in adapters])
    return merge(first, [side]) if into_first and is_adapter_alone(side) else side


def _readable_twice(first: Checkpoint) -> Checkpoint:
    at_hand = is_local(first.repository) or isinstance(first.repository, MemoryRepository)
    return first if at_hand else replace(first, files=read_once(first.files))


def canonical_names(texts: Sequence[str], sides: Sequence[Checkpoint]) -> list[str]:
    """Return the canonical reference of each of ``texts``, with the requested revision; there may be more ``sides``."""
    named = [f"{texts[0]}+{text}" if _is_short(text, side, sides[0]) else text for text, side in zip(texts, sides, strict=False)]
    return [canonical_name(text, side) for text, side in zip(named, sides, strict=False)]


def _is_short(text: str, side: Checkpoint, first: Checkpoint) -> bool:
    """Return whether ``text`` is an adapter alone that was merged into the first side."""
    return side.parts[0][0] is first and len(side.parts) > len(summands(text, local=True))


def canonical_name(text: str, checkpoint: Checkpoint) -> str:
    """Return the canonical reference of ``text``, with the requested revision, also of each part of BASE+ADAPTER."""
    given = [parse_reference(part.text, local=True).revision for part in summands(text, local=True)]
    revisions = (*(None for _ in checkpoint.parts[len(given) :]), *given)  # a base that only an adapter's configuration names comes first
    return joined(
        (f"{part.ref}@{revision}" if revision else part.ref, weight)
        for (part, weight), revision in zip(checkpoint.parts, revisions, strict=True)
    )


def check_side(checkpoint: Checkpoint, name: str, filtered: bool) -> None:
    """Raise UnsupportedWeights for integer weights, unless names are ``filtered``.

    Raises NoWeights if there are no parameters.
    """
    if all(tensor.buffer for tensor in checkpoint.tensors):
        raise NoWeights(f"{name}: {checkpoint.ref} holds no parameters, only buffers ({quoted(checkpoint.tensors[0].name)}).")
    unread = sum(t.elements for t in checkpoint.tensors if not (t.has_values or t.holds_scales or t.buffer))
    # A few integers without any other sign of quantization are not quantized weights; the report lists them.
    few = checkpoint.quantization == "integer" and unread < _FEW * checkpoint.parameters
    if checkpoint.quantization is not None and unread and not (filtered or few):
        raise UnsupportedWeights(
            f"{name}: {checkpoint.ref} holds {checkpoint.quantization} weights, which cannot be "
            "compared weight by weight: compare the original models, or choose the tensors that are still floats with an include filter "
            "(for example: embed|norm)."
        )
