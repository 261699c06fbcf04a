"""Selects tensors by name."""

import re
from collections.abc import Sequence
from math import prod
from time import monotonic
from typing import TYPE_CHECKING

from analyzers.checkpoints.tensor import Tensor
from analyzers.core.errors import InvalidFilter
from analyzers.core.terminal import plural

if TYPE_CHECKING:
    import regex

FILTER_SECONDS = 2  # Longest time that name filters may take over all tensor names.
_FILTER_REPEATS = 10_000  # Counted repeats of a name filter, multiplied: compiling unrolls them.
_REPEAT = re.compile(r"\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}")


def select(tensors: Sequence[Tensor], include: str | None, exclude: str | None) -> list[Tensor]:
    """Return the tensors whose name matches ``include`` and not ``exclude`` (regular expressions, searched anywhere in the name).

    Raises InvalidFilter if a pattern does not compile or takes too long, or no tensor remains.
    """
    chosen = filtered(tensors, include, exclude)
    if not chosen and (include or exclude):
        example = repr(tensors[0].name[:80]) if tensors else "the checkpoint has no tensors"
        raise InvalidFilter(f"No tensor is left: of {plural(len(tensors), 'name')}, none passes the filters (an example: {example}).")
    return chosen


def filtered(tensors: Sequence[Tensor], include: str | None, exclude: str | None) -> list[Tensor]:
    """Select like `select`, but return an empty list if no tensor remains.

    Patterns are untrusted, and some take exponential time: together they have ``FILTER_SECONDS``.
    """
    deadline = monotonic() + FILTER_SECONDS
    chosen = list(tensors)
    for name, pattern, wanted in (("include", include, True), ("exclude", exclude, False)):
        compiled = compile_filter(name, pattern) if pattern else None
        if compiled is not None and pattern:
            try:
                chosen = [tensor for tensor in chosen if _found(compiled, tensor.name, deadline) == wanted]
            except TimeoutError:
                raise InvalidFilter(
                    f"The {name} filter {pattern[:60]!r} takes more than {FILTER_SECONDS} seconds; write it without nested repeats."
                ) from None
    return chosen


def compile_filter(name: str, pattern: str) -> "regex.Pattern[str]":
    """Compile ``pattern``; ``name`` denotes it in messages. Raises InvalidFilter.

    Large counted repeats are refused: compiling unrolls nested ones and cannot be timed out, so a{1000000000} would take all memory.
    """
    import regex  # local import: most runs have no filter

    if prod(max(int(low or 0), int(high or 0), 1) for low, high in _REPEAT.findall(pattern)) > _FILTER_REPEATS:
        raise InvalidFilter(
            f"The {name} filter {pattern[:60]!r} repeats more than {_FILTER_REPEATS:,} times, all counts multiplied: write + or * instead."
        )
    try:
        return regex.compile(pattern)
    except (regex.error, RecursionError, OverflowError, MemoryError) as error:
        reason = str(error) or type(error).__name__
        raise InvalidFilter(f"The {name} filter {pattern[:60]!r} is not a regular expression: {reason[:100]}.") from None


def _found(compiled: "regex.Pattern[str]", name: str, deadline: float) -> bool:
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError
    return compiled.search(name, timeout=left) is not None
