"""Renders the three lists of the library as HTML tables: models, labels, results. Escapes all contributed text."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from analyzers.core.formatting import day, magnitude, size
from analyzers.dtype_detection.report import ANALYSIS_VERSION
from analyzers.dtype_detection.words import FP16, NOTHING_PROVEN
from components.library import Library, ModelRow, Query, Result, ResultRow
from components.library_page.label_details import PIECES, contributor, evidence, state
from components.site import addresses
from components.text import html, numbers

MODELS, LABELS, RESULTS = "models", "labels", "results"
_THROUGH = {"": numbers.NOTHING} | NOTHING_PROVEN


# The library's name of an order, and whether a first click on the column's title sorts in descending order.
Order = tuple[str, bool]


class Column(NamedTuple):
    """A column of a list. cell: the HTML of a row; order: None if it does not sort."""

    title: str
    cell: Callable[[Any], str]
    order: Order | None = None


class Kind(NamedTuple):
    """A list of the library. first: the title of the initial order; more: orders without a column, by title; read: reads one page."""

    columns: Sequence[Column]
    first: str
    more: dict[str, Order]
    read: Callable[[Library, Query], Any]

    @property
    def orders(self) -> dict[str, Order]:
        """Orders by title, the initial one first."""
        known = {column.title: column.order for column in self.columns if column.order is not None} | self.more
        return {self.first: known[self.first]} | known


def trained_in(row: ModelRow) -> str:
    """Render the training precision of a model: of its labels, else inferred; and what is only proposed."""
    return PIECES.trained_in(row, numbers.plural(row.contributors, "label"), numbers.NOTHING)


def _evidence(row: ModelRow) -> str:
    return PIECES.source(row.evidence, row.evidence.startswith(("http://", "https://"))) if row.evidence else numbers.NOTHING


def _largest(row: ModelRow) -> str:
    return numbers.NOTHING if row.abs_max is None else PIECES.figure(magnitude(row.abs_max), row.figures == "published")


def _norms(row: ModelRow) -> str:
    if row.norm_min is None or row.norm_max is None:
        return numbers.NOTHING
    return html(f"{magnitude(row.norm_min)} to {magnitude(row.norm_max)}")


def saved(value: int | None) -> str:
    """Say how many bytes of a model's files could be saved."""
    return numbers.NOTHING if value is None else size(value) if value else "nothing"


def _results_of(model: str, results: int) -> str:
    """Render the link to the results of a model."""
    return str(PIECES.result_link(addresses.results_of(model), numbers.count(results))) if results else "0"


def _labelled(row: Any) -> str:
    return PIECES.label_precision(row, numbers.plural(row.flags, "flag") if row.flags else "")


def _subject(row: ResultRow) -> str:
    result = row.result
    about = f"from {result.models[-1]}" if len(result.models) > 1 else ""
    if result.analyzer == "parents":  # the first candidate is the most similar, and not always a parent
        others = len(result.models) - 2
        about = f"compared with {result.models[1]}" + (f" and {numbers.plural(others, 'other')}" if others else "")
    return PIECES.subject(_named(result.models[0]), about)


def _text(text: str) -> str:
    return html(text) or numbers.NOTHING


def _stored_as(row: ModelRow) -> str:
    return PIECES.result_link(addresses.stored(row.result), row.storage) if row.result else numbers.NOTHING


def _passed_through(row: ResultRow) -> str:
    return html(passed(row.result)) if row.result.analyzer == "dtype" else numbers.NOTHING


def _inferred(row: ResultRow) -> str:
    return _text(row.result.trained_in if row.result.analysis_version >= ANALYSIS_VERSION else "")


KINDS = {
    MODELS: Kind(
        (
            Column("Model", lambda row: _named(row.model), ("model", False)),
            Column("Trained in", trained_in, ("precision", False)),
            Column("Evidence", _evidence),
            Column("Stored as", _stored_as, ("storage", False)),
            Column("Passed through", lambda row: html(passed(row)), ("passed_through", False)),
            Column("fp16", lambda row: html(fp16(row)), ("fp16_risk", False)),
            Column("Largest weight", _largest),
            Column("Norms", _norms),
            Column("Could be saved", lambda row: saved(row.wasted), ("wasted", True)),
            Column("Results", lambda row: _results_of(row.model, row.results), ("results", True)),
        ),
        "Could be saved",
        {"Updated": ("updated", True), "Most labels": ("labels", True)},
        lambda library, query: library.models(query),
    ),
    LABELS: Kind(
        (
            Column("Model", lambda row: _named(row.label.model), ("model", False)),
            Column("Trained in", _labelled, ("precision", False)),
            Column("Evidence", lambda row: evidence(row.label, short=True)),
            Column("Contributor", lambda row: contributor(row.label), ("contributor", False)),
            Column("Added", lambda row: html(day(row.label.created)), ("created", True)),
            Column("State", state),
        ),
        "Added",
        {"Most flags": ("flags", True)},
        lambda library, query: library.labels(query),
    ),
    RESULTS: Kind(
        (
            Column("Model", _subject, ("model", False)),
            Column("Analysis", lambda row: PIECES.result_link(addresses.stored(row.result.id), row.result.analyzer), ("analyzer", False)),
            Column("Stored as", lambda row: _text(row.result.storage), ("storage", False)),
            Column("Passed through", _passed_through, ("passed_through", False)),
            Column("Trained in", _inferred, ("trained_in", False)),
            Column("fp16", lambda row: html(fp16(row.result)), ("fp16_risk", False)),
            Column("By", lambda row: _text(row.result.contributor)),
            Column("Stored", lambda row: html(day(row.result.created)), ("created", True)),
            Column("State", state),
        ),
        "Stored",
        {"Largest report": ("size", True)},
        lambda library, query: library.results(query),
    ),
}


def listed(kind: str, page: Any, order: str = "", descending: bool = True) -> str:
    """Render a page of a list as a table, whose titles sort it, or a sentence if it is empty. order: the title of the current order."""
    parts = KINDS[kind]
    if not page.rows:
        return PIECES.nothing(kind)
    sorts = {title: ("descending" if descending else "ascending") if title == order else "none" for title in parts.orders}
    # Cells with the values "0" and NOTHING are hidden on a narrow screen.
    cells = [[column.cell(row) for column in parts.columns] for row in page.rows]
    return PIECES.table([column.title for column in parts.columns], cells, kind, (numbers.NOTHING, "0"), sorts)


def extent(page: Any, per_page: int) -> str:
    """Return the range of rows shown and the total, as a sentence."""
    if not page.total:
        return "Nothing found."
    first = (page.page - 1) * per_page + 1
    return f"{first:,} to {first + len(page.rows) - 1:,} of {page.total:,}"


def through(text: str) -> str:
    """Format the library's text of the formats that a checkpoint's values passed through."""
    return _THROUGH.get(text, text.replace("_", " "))


def fp16(row: ModelRow | Result) -> str:
    """Return whether the weights fit fp16, and how many weights the answer covers if not all."""
    return ", ".join(filter(None, (FP16.get(row.fp16_risk, FP16["unknown"]), row.reach))) if row.fp16_risk else numbers.NOTHING


def passed(row: ModelRow | Result) -> str:
    """Return the formats that the values passed through, and how many values the answer covers if not all."""
    return through(row.passed_through) + (f", {row.reach}" if row.reach and row.passed_through not in ("", "undecided") else "")


def _named(model: str) -> str:
    """Render the model's name as a link to its labels, or to the passport of a sample, which has no labels."""
    address = f"./{addresses.passport(model)}" if model.startswith("sample:") else addresses.labels_of(model)
    return PIECES.model_link(model, address)
