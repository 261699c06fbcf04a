"""Renders the three lists of the library as HTML tables: models, labels, results. Escapes all contributed text."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from analyzers.dtype_detection.report import ANALYSIS_VERSION
from analyzers.formatting import day
from components.library import Library, ModelRow, Query, Result, ResultRow
from components.library_page.label_details import PIECES, contributor, evidence, state
from components.site import addresses, stored_results
from components.text import numbers
from components.text.plain_text import html

MODELS, LABELS, RESULTS = "models", "labels", "results"
RISKS = {
    "fits": "weights fit",
    "caution": "with losses",
    "overflow": "weights overflow",
    "broken": "weights not finite",
    "unknown": "unknown",
}
_THROUGH = {"": numbers.NOTHING, "native": "nothing narrower", "undecided": "undecided"}


# The library's name of an order, and whether a first click on the column's title sorts in descending order.
Order = tuple[str, bool]


class Kind(NamedTuple):
    """A list of the library. columns: title -> order, or None; more: orders without a column; first: the title of the initial order.

    read: reads one page; cells: renders the cells of a row.
    """

    columns: dict[str, Order | None]
    first: str
    more: dict[str, Order]
    read: Callable[[Library, Query], Any]
    cells: Callable[[Any], Sequence[str]]

    @property
    def orders(self) -> dict[str, Order]:
        """Orders by title, the initial one first."""
        known = {title: order for title, order in self.columns.items() if order is not None} | self.more
        return {self.first: known[self.first]} | known


def _model(row: ModelRow) -> Sequence[str]:
    return (
        _named(row.model),
        str(PIECES.trained_in(row, numbers.plural(row.contributors, "label"), numbers.NOTHING)),
        str(PIECES.result_link(addresses.stored(row.result), row.storage)) if row.result else numbers.NOTHING,
        html(passed(row)),
        html(fp16(row)),
        numbers.count(row.labels),
        _results_of(row.model, row.results),
        html(day(row.updated)) if row.updated else numbers.NOTHING,
    )


def _results_of(model: str, results: int) -> str:
    """Render links to the results of a model, and to its family if a result of parents names it."""
    links = [str(PIECES.result_link(addresses.results_of(model), numbers.count(results)))] if results else ["0"]
    ours = stored_results.library()
    if ours is not None and ours.naming("parents", model, 1):
        links.append(str(PIECES.result_link(addresses.family(model), "family")))
    return " ".join(links)


def _label(row: Any) -> Sequence[str]:
    label = row.label
    precision = str(PIECES.label_precision(row, numbers.plural(row.flags, "flag") if row.flags else ""))
    return _named(label.model), precision, evidence(label, short=True), contributor(label), html(day(label.created)), state(row)


def _result(row: ResultRow) -> Sequence[str]:
    result = row.result
    about = f"from {result.models[-1]}" if len(result.models) > 1 else ""
    if result.analyzer == "parents":  # the first candidate is the most similar, and not always a parent
        others = len(result.models) - 2
        about = f"compared with {result.models[1]}" + (f" and {numbers.plural(others, 'other')}" if others else "")
    return (
        str(PIECES.subject(_named(result.models[0]), about)),
        str(PIECES.result_link(addresses.stored(result.id), result.analyzer)),
        html(result.storage) or numbers.NOTHING,
        html(passed(result)) if result.analyzer == "dtype" else numbers.NOTHING,
        html(result.trained_in if result.analysis_version >= ANALYSIS_VERSION else "") or numbers.NOTHING,
        html(fp16(result)),
        html(result.contributor) or numbers.NOTHING,
        html(day(result.created)),
        state(row),
    )


# Columns that lists of models and of results have in common.
_FACTS: dict[str, Order | None] = {"Stored as": ("storage", False), "Passed through": ("passed_through", False)}
KINDS = {
    MODELS: Kind(
        {"Model": ("model", False), "Trained in": ("precision", False), **_FACTS, "fp16": ("fp16_risk", False)}
        | {"Labels": ("labels", True), "Results": ("results", True), "Updated": ("updated", True)},
        "Updated",
        {},
        lambda library, query: library.models(query),
        _model,
    ),
    LABELS: Kind(
        {"Model": ("model", False), "Trained in": ("precision", False), "Evidence": None}
        | {"Contributor": ("contributor", False), "Added": ("created", True), "State": None},
        "Added",
        {"Most flags": ("flags", True)},
        lambda library, query: library.labels(query),
        _label,
    ),
    RESULTS: Kind(
        {"Model": ("model", False), "Analysis": ("analyzer", False), **_FACTS, "Trained in": ("trained_in", False)}
        | {"fp16": ("fp16_risk", False), "By": None, "Stored": ("created", True), "State": None},
        "Stored",
        {"Largest report": ("size", True)},
        lambda library, query: library.results(query),
        _result,
    ),
}


def listed(kind: str, page: Any, order: str = "", descending: bool = True) -> str:
    """Render a page of a list as a table, whose titles sort it, or a sentence if it is empty. order: the title of the current order."""
    parts = KINDS[kind]
    if not page.rows:
        return str(PIECES.nothing(kind))
    sorts = {title: ("descending" if descending else "ascending") if title == order else "none" for title in parts.orders}
    # Cells with the values "0" and NOTHING are hidden on a narrow screen.
    return str(PIECES.table(list(parts.columns), [parts.cells(row) for row in page.rows], kind, (numbers.NOTHING, "0"), sorts))


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
    return RISKS.get(row.fp16_risk, numbers.NOTHING) + (f", {row.reach}" if row.reach and row.fp16_risk in RISKS else "")


def passed(row: ModelRow | Result) -> str:
    """Return the formats that the values passed through, and how many values the answer covers if not all."""
    return through(row.passed_through) + (f", {row.reach}" if row.reach and row.passed_through not in ("", "undecided") else "")


def _named(model: str) -> str:
    """Render the model's name as a link to its labels, or to the passport of a sample, which has no labels."""
    address = f"./{addresses.passport(model)}" if model.startswith("sample:") else addresses.labels_of(model)
    return str(PIECES.model_link(model, address))
