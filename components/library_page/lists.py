"""The three lists of the library as HTML tables: models, labels, results. All contributed text is escaped here."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from analyzers.formatting import day
from components.library import Library, ModelRow, Query, ResultRow
from components.library_page.labels import PIECES, contributor, evidence, state
from components.site import addresses
from components.text import numbers
from components.text.plain_text import html

MODELS, LABELS, RESULTS = "models", "labels", "results"
RISKS = {"fits": "weights fit", "caution": "with losses", "overflow": "weights overflow", "unknown": "unknown"}
_THROUGH = {"": numbers.NOTHING, "native": "nothing narrower", "undecided": "undecided"}


class Kind(NamedTuple):
    """A list. titles: column titles; orders: sort option -> the library's name for it, and whether it is descending; read: reads one page;
    cells: the HTML cells of a row.
    """

    titles: Sequence[str]
    orders: dict[str, tuple[str, bool]]
    read: Callable[[Library, Query], Any]
    cells: Callable[[Any], Sequence[str]]


def _model(row: ModelRow) -> Sequence[str]:
    return (
        _named(row.model),
        str(PIECES.trained_in(row, numbers.plural(row.contributors, "label"), numbers.NOTHING)),
        html(row.storage) or numbers.NOTHING,
        html(_through(row.passed_through)),
        html(RISKS.get(row.fp16_risk, numbers.NOTHING)),
        numbers.count(row.labels),
        _result_link(row.result, numbers.count(row.results)) if row.result else numbers.count(row.results),
        html(day(row.updated)) if row.updated else numbers.NOTHING,
    )


def _label(row: Any) -> Sequence[str]:
    label = row.label
    said = str(PIECES.label_precision(row, numbers.plural(row.flags, "flag") if row.flags else ""))
    return _named(label.model), said, evidence(label, short=True), contributor(label), html(day(label.created)), state(row)


def _result(row: ResultRow) -> Sequence[str]:
    result = row.result
    return (
        str(PIECES.subject(_named(result.models[0]), result.models[-1] if len(result.models) > 1 else "")),
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
    ),
}


def listed(kind: str, page: Any) -> str:
    """A page of a list as a table, or a sentence if it is empty."""
    parts = KINDS[kind]
    if not page.rows:
        return str(PIECES.nothing(kind))
    # On a narrow screen, cells with these values are hidden.
    return str(PIECES.table(parts.titles, [parts.cells(row) for row in page.rows], kind, (numbers.NOTHING, "0")))


def extent(page: Any, per_page: int) -> str:
    """The range of rows shown and the total, as a sentence."""
    if not page.total:
        return "Nothing found."
    first = (page.page - 1) * per_page + 1
    return f"{first:,} to {first + len(page.rows) - 1:,} of {page.total:,}"


def _through(text: str) -> str:
    return _THROUGH.get(text, text.replace("_", " "))


def _named(model: str) -> str:
    """The model's name; clicking it shows its labels. Samples have none."""
    address = f"./{addresses.passport(model)}" if model.startswith("sample:") else addresses.labels_of(model)
    return str(PIECES.model_link(model, address))


def _result_link(identifier: str, text: str) -> str:
    return str(PIECES.result_link(addresses.stored(identifier), text))
