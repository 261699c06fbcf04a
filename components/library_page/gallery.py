"""Renders instructive results for the first page, one for each rule, newest first, or built-in samples if the library has none."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from typing import NamedTuple

from analyzers.core.errors import MantissaError
from analyzers.core.report import Report
from analyzers.dtype_detection import DtypeRequest, analyze
from components.library import Library, Query, Result
from components.site import addresses, stored_results
from components.text import macros

_PARTS = macros("library_page/templates/gallery.html")
_CARDS = 6
# Newest results that a rule considers.
_LOOKED_AT = 50
_MODELS = 500
_LATEST = 5
_PROVEN = ("same-weights", "quantized-copy", "derived", "merge", "stack")
_SAMPLES = {
    "sample:tiny-bf16-as-fp32": "Half of its bytes say nothing",
    "sample:tiny-overflow": "Overflows in fp16",
    "sample:tiny-bf16-as-fp16": "Rounded twice",
}


class Card(NamedTuple):
    """A result in the gallery. why: the rule; picture: the address of an image, or ""."""

    why: str
    subject: str
    headline: str
    address: str
    picture: str


def gallery() -> str:
    """Render the cards, and links to the latest results, as HTML. Cached until the library changes. Never raises."""
    try:
        ours = stored_results.our_library()
        stored = _stored(ours, ours.version())
    except MantissaError:
        stored = ""
    return stored or _PARTS.gallery(_samples(), False, ())


def _latest(library: Library) -> list[tuple[str, str, str, str]]:
    """Return the analysis, the model, the address and the day of each of the latest results."""
    results = _newest(library)[:_LATEST]
    return [(addresses.layout(each.analyzer).title, each.models[0], addresses.stored(each.id), each.created[:10]) for each in results]


_Found = Iterable[Result]


def _contradicting(library: Library) -> Iterator[Result]:
    """Yield results of models whose label differs from the inferred precision."""
    for row in library.models(Query(per_page=_MODELS)).rows:
        labelled, inferred = (text.partition("-")[0].replace("tf32", "fp32") for text in (row.precision, row.trained_in))
        row_of_result = library.result_row(row.result) if labelled and inferred not in ("", "undecided", labelled) else None
        if row_of_result is not None:
            yield row_of_result.result


def _newest(library: Library, **wanted: str) -> list[Result]:
    rows = library.results(Query(per_page=_LOOKED_AT, **wanted)).rows  # type: ignore[arg-type]
    return [row.result for row in rows if not row.result.sample and row.result.whole]


def _wasteful(library: Library) -> list[Result]:
    """Return results of float32 checkpoints that could be stored in fewer bytes, the largest savings first."""
    rows = library.models(Query(sort="wasted", storage="F32", per_page=_LOOKED_AT)).rows
    stored = (library.result_row(row.result) for row in rows if row.wasted)
    return [row.result for row in stored if row is not None]


def _proven(library: Library) -> Iterator[Result]:
    for each in _newest(library, analyzer="parents"):
        if getattr(stored_results.load(library, each), "verdict", "") in _PROVEN:
            yield each


_RULES: dict[str, Callable[[Library], _Found]] = {
    "Its label says otherwise": _contradicting,
    "Overflows in fp16": lambda library: _newest(library, analyzer="dtype", fp16_risk="overflow"),
    "Could be stored in far fewer bytes": _wasteful,
    "Where it comes from": _proven,
    "What fine-tuning changed": lambda library: _newest(library, analyzer="sparsity"),
    "How its samples disagree": lambda library: _newest(library, analyzer="conflict"),
    "How rounding errors grow": lambda library: _newest(library, analyzer="precision"),
    "Learning without backpropagation": lambda library: _newest(library, analyzer="exit"),
}


@lru_cache(1)
def _stored(library: Library, version: str) -> str:
    """Render at most _CARDS cards of distinct models; "" if there are none. version: of the library."""
    cards: dict[str, Card] = {}
    for why, rule in _RULES.items():
        of = ((each, stored_results.load(library, each)) for each in rule(library) if each.models[0] not in cards)
        result, report = next((each for each in of if each[1] is not None), (None, None))
        if result is not None and report is not None and len(cards) < _CARDS:
            cards[result.models[0]] = _card(why, result, report)
    return _PARTS.gallery(cards.values(), True, _latest(library)) if cards else ""


def _card(why: str, result: Result, report: Report) -> Card:
    summary = addresses.layout(report.analyzer).summary(report)
    subject = " from ".join(result.models[:: len(result.models) - 1 or 1])
    return Card(why, subject, summary, addresses.stored(result.id), f"card/{result.id}.png")


@cache
def _samples() -> tuple[Card, ...]:
    """Make cards of some built-in samples, which takes a second."""
    cards = []
    for name, why in _SAMPLES.items():
        *_, report = analyze(DtypeRequest(model=name))
        assert isinstance(report, Report)  # always the last item of an analysis
        cards.append(Card(why, name, addresses.layout("dtype").summary(report), f"./{addresses.passport(name)}", ""))
    return tuple(cards)
