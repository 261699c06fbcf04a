"""The three lists of the library as tables in HTML: models, labels, results. Whatever comes from a contributor is escaped here."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from analyzers.formatting import day
from components.library import Library, ModelRow, Query, ResultRow
from components.library_page.labels import contributor, evidence, state
from components.site import addresses
from components.text import numbers
from components.text.markup import tag
from components.text.plain_text import html

MODELS, LABELS, RESULTS = "models", "labels", "results"
RISKS = {"fits": "weights fit", "caution": "with losses", "overflow": "weights overflow", "unknown": "unknown"}
_THROUGH = {"": numbers.NOTHING, "native": "nothing narrower", "undecided": "undecided"}


class Kind(NamedTuple):
    """A list. titles: of its columns; orders: what a visitor may sort by -> the library's name for it, and whether that begins with the
    largest; read: a page of it; cells: of a row, HTML. filters: which of the fields of the page narrow it.
    """

    titles: Sequence[str]
    orders: dict[str, tuple[str, bool]]
    read: Callable[[Library, Query], Any]
    cells: Callable[[Any], Sequence[str]]
    nothing: str


def _model(row: ModelRow) -> Sequence[str]:
    labelled = html(row.precision) + f" {tag('label', numbers.plural(row.contributors, 'label'))}" if row.precision else ""
    how = tag("fact", "known") if row.model.startswith("sample:") else tag("inference", "inference")
    inferred = f"{html(row.trained_in)} {how}" if row.trained_in not in ("", "undecided") else numbers.NOTHING
    disputed = f" {tag('warning', 'labels disagree')}" if row.disputed else ""
    return (
        _named(row.model),
        (labelled + disputed) or inferred,
        html(row.storage) or numbers.NOTHING,
        html(_through(row.passed_through)),
        html(RISKS.get(row.fp16_risk, numbers.NOTHING)),
        numbers.count(row.labels),
        _result_link(row.result, numbers.count(row.results)) if row.result else numbers.count(row.results),
        html(day(row.updated)) if row.updated else numbers.NOTHING,
    )


def _label(row: Any) -> Sequence[str]:
    label = row.label
    doubted = f" {tag('warning', numbers.plural(row.flags, 'flag'))}" if row.flags else ""
    replaced = "" if row.current else f" {tag('undecided', 'replaced')}"
    said = f"{html(label.precision)}{replaced}{doubted}"
    return _named(label.model), said, evidence(label, short=True), contributor(label), html(day(label.created)), state(row)


def _result(row: ResultRow) -> Sequence[str]:
    result = row.result
    subject = _named(result.models[0]) + (
        f'<br><small class="m-dim">from {html(result.models[-1])}</small>' if len(result.models) > 1 else ""
    )
    return (
        subject,
        _result_link(result.id, result.analyzer),
        html(result.storage) or numbers.NOTHING,
        html(_through(result.passed_through)) if result.analyzer == "dtype" else numbers.NOTHING,
        html(result.trained_in) or numbers.NOTHING,
        html(RISKS.get(result.fp16_risk, numbers.NOTHING)),
        html(result.contributor) or numbers.NOTHING,
        html(day(result.created)),
        state(row),
    )


KINDS = {
    MODELS: Kind(
        ("Model", "Trained in", "Stored as", "Passed through", "fp16", "Labels", "Results", "Updated"),
        {
            "Updated last": ("updated", True),
            "Name": ("model", False),
            "Trained in": ("precision", False),
            "Stored as": ("storage", False),
            "Passed through": ("passed_through", False),
            "fp16 risk": ("fp16_risk", False),
            "Most labels": ("labels", True),
            "Most results": ("results", True),
        },
        lambda library, query: library.models(query),
        _model,
        "No model",
    ),
    LABELS: Kind(
        ("Model", "Trained in", "Evidence", "Contributor", "Added", "State"),
        {
            "Newest": ("created", True),
            "Model": ("model", False),
            "Trained in": ("precision", False),
            "Contributor": ("contributor", False),
            "Most flags": ("flags", True),
        },
        lambda library, query: library.labels(query),
        _label,
        "No label",
    ),
    RESULTS: Kind(
        ("Model", "Analysis", "Stored as", "Passed through", "Trained in", "fp16", "By", "Stored", "State"),
        {
            "Newest": ("created", True),
            "Model": ("model", False),
            "Analysis": ("analyzer", False),
            "Stored as": ("storage", False),
            "Passed through": ("passed_through", False),
            "Trained in": ("trained_in", False),
            "fp16 risk": ("fp16_risk", False),
            "Largest report": ("size", True),
        },
        lambda library, query: library.results(query),
        _result,
        "No result",
    ),
}


def listed(kind: str, page: Any) -> str:
    """A page of a list as a table; a sentence where nothing is in it."""
    parts = KINDS[kind]
    if not page.rows:
        return f'<p class="m-say">{parts.nothing} is as asked for. Leave out a filter, or add what is missing below.</p>'
    top = "".join(f'<th scope="col">{html(title)}</th>' for title in parts.titles)
    rows = (zip(parts.titles, parts.cells(row), strict=True) for row in page.rows)
    cells = ("".join(f'<td{_empty(cell)} data-title="{html(title)}"><span>{cell}</span></td>' for title, cell in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return (
        f'<div class="m-scroll m-list" tabindex="0" role="group" aria-label="{html(kind)}"><table class="m-table m-stacked">'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def extent(page: Any, per_page: int) -> str:
    """Which rows of how many these are, as a sentence."""
    if not page.total:
        return "Nothing found."
    first = (page.page - 1) * per_page + 1
    return f"{first:,} to {first + len(page.rows) - 1:,} of {page.total:,}"


def _empty(cell: str) -> str:
    """Marks a cell with nothing in it, which a narrow screen leaves out."""
    return ' class="m-none"' if cell in (numbers.NOTHING, "0") else ""


def _through(text: str) -> str:
    return _THROUGH.get(text, text.replace("_", " "))


def _named(model: str) -> str:
    """The model; a click shows its labels. A sample has none."""
    if model.startswith("sample:"):
        return f'<a href="./{addresses.passport(model)}">{html(model)}</a>'
    return f'<a href="{html(addresses.labels_of(model), 500)}" data-model="{html(model, 500)}">{html(model)}</a>'


def _result_link(identifier: str, text: str) -> str:
    return f'<a href="{html(addresses.stored(identifier), 100)}">{html(text)}</a>'
