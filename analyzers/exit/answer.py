"""Decides the answer of exit feedback, the advice, and what limits them."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from analyzers.core.notes import Advice, Note
from analyzers.exit.report import CostRow, Exact, Head, Inputs, Method, closest
from analyzers.exit.signals import CEILINGS, EXACT, RANDOM
from analyzers.exit.words import SAME, WORDS

if TYPE_CHECKING:
    from analyzers.exit.request import ExitRequest

# Mean cosines below this are weak.
_SMALL = 0.1


def answer(methods: dict[str, Method]) -> Note:
    """Return which signal is closest to the exact gradient."""
    name = closest(methods)
    best = methods[name].cosine if name else None
    if name is None or best is None:
        return WORDS.note("no-gradient")
    if name in CEILINGS:
        return WORDS.note("ceilings", signal=name, cosine=best.mean, tokens=methods[name].tokens)
    code = "closest-weak" if best.mean < _SMALL else "closest"
    return WORDS.note(code, signal=name, cosine=best.mean, low=best.p10, high=best.p90, tokens=methods[name].tokens)


def advice(methods: dict[str, Method], rows: Sequence[CostRow], model: str) -> Advice:
    """Return whether a signal is worth using: near the exact gradient, and clearly faster; or what to measure next."""
    name = closest(methods)
    best = methods[name].cosine if name else None
    if name is None or best is None:
        return WORDS.advice("other-text", "conflict", model)
    if name in CEILINGS:
        return WORDS.advice("measure-signals", "conflict", model)
    if best.mean < _SMALL:
        return WORDS.advice("keep-weak", "conflict", model)
    times = fastest(rows, name).seconds / fastest(rows, EXACT).seconds
    if 1 / SAME < times < SAME:
        return WORDS.advice("time-again", "conflict", model, signal=name)
    if times >= 1:
        return WORDS.advice("keep-slow", "conflict", model, signal=name, times=times)
    inside = methods[name].before_norm.cosine
    if inside is not None and inside.mean < _SMALL:
        return WORDS.advice("head-only", "conflict", model, signal=name, cosine=inside.mean)
    return WORDS.advice("try", "conflict", model, signal=name)


def fastest(rows: Sequence[CostRow], method: str) -> CostRow:
    """Return the fastest run of a method, in either form."""
    return min((row for row in rows if row.method == method), key=lambda row: row.seconds)


def notes(request: "ExitRequest", head: Head, inputs: Inputs, exact: Exact, methods: dict[str, Method], dtype: str) -> Iterator[Note]:
    """Yield what limits the answer."""
    if inputs.measured < inputs.answer_tokens:
        yield WORDS.note("measured-part", measured=inputs.measured, answers=inputs.answer_tokens)
    if head.padded:
        yield WORDS.note("padded-head", rows=head.padded, tokens=head.tokenizer_vocabulary)
    if exact.zero:
        yield WORDS.note("certain", tokens=exact.zero)
    anchors = methods["span"].settings["anchors"] if "span" in methods else None
    if isinstance(anchors, int) and anchors >= head.width:
        yield WORDS.note("wide-span", anchors=anchors, width=head.width)
    if dtype != "float32":
        yield WORDS.note("narrow", dtype=dtype)
    if any(method in RANDOM for method in request.methods) and request.seeds < 2:
        yield WORDS.note("one-seed")
