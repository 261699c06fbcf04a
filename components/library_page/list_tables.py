"""The three lists of the library as HTML tables: models, labels, results. All contributed text is escaped here."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from analyzers.dtype_detection.report import ANALYSIS_VERSION
from analyzers.dtype_detection.sentences import fp16_answer
from analyzers.formatting import day
from components.library import Library, ModelRow, Query, Result, ResultRow
from components.library_page.label_details import PIECES, contributor, evidence, state
from components.site import addresses, stored_results
from components.text import numbers
from components.text.plain_text import html

MODELS, LABELS, RESULTS = "models", "labels", "results"
_THROUGH = {"": numbers.NOTHING, "native": "nothing narrower", "undecided": "undecided"}


# How a click on a column's title sorts: the library's name of the order, and whether it is descending at first.
Order = tuple[str, bool]


class Kind(NamedTuple):
    """A list. columns: title -> its order, None for none; more: orders without a column; first: the title of the order at first.

    read: reads one page; cells: the HTML cells of a row.
    """

    columns: dict[str, Order | None]
    first: str
    more: dict[str, Order]
    read: Callable[[Library, Query], Any]
    cells: Callable[[Any], Sequence[str]]

    @property
    def orders(self) -> dict[str, Order]:
        """Title -> order, the first one first."""
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
    """Links to the results of a model, and to its family if a result of parents names it."""
    links = [str(PIECES.result_link(addresses.results_of(model), numbers.count(results)))] if results else ["0"]
    ours = stored_results.library()
    if ours is not None and ours.naming("parents", model, 1):
        links.append(str(PIECES.result_link(addresses.family(model), "family")))
    return " ".join(links)


def _label(row: Any) -> Sequence[str]:
    label = row.label
    said = str(PIECES.label_precision(row, numbers.plural(row.flags, "flag") if row.flags else ""))
    return _named(label.model), said, evidence(label, short=True), contributor(label), html(day(label.created)), state(row)


def _result(row: ResultRow) -> Sequence[str]:
    result = row.result
    about = f"from {result.models[-1]}" if len(result.models) > 1 else ""
    if result.analyzer == "parents":  # the most similar candidate first, and not always a parent
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


# Facts that lists of models and of results have in common.
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
    """A page of a list as a table, whose titles sort it, or a sentence if it is empty. order: the title of the current order."""
    parts = KINDS[kind]
    if not page.rows:
        return str(PIECES.nothing(kind))
    sorts = {title: ("descending" if descending else "ascending") if title == order else "none" for title in parts.orders}
    # On a narrow screen, cells with these values are hidden.
    return str(PIECES.table(list(parts.columns), [parts.cells(row) for row in page.rows], kind, (numbers.NOTHING, "0"), sorts))


def extent(page: Any, per_page: int) -> str:
    """The range of rows shown and the total, as a sentence."""
    if not page.total:
        return "Nothing found."
    first = (page.page - 1) * per_page + 1
    return f"{first:,} to {first + len(page.rows) - 1:,} of {page.total:,}"


def through(text: str) -> str:
    """The formats that the values of a checkpoint passed through, as lists show them. text: as the library has it."""
    return _THROUGH.get(text, text.replace("_", " "))


def fp16(row: ModelRow | Result) -> str:
    """Whether the weights fit fp16, and of how many that is said, if not of all."""
    return ", ".join(filter(None, (fp16_answer(row.fp16_risk, True), row.reach))) if row.fp16_risk else numbers.NOTHING


def passed(row: ModelRow | Result) -> str:
    """The formats that the values passed through, and of how many that is said, if not of all."""
    return through(row.passed_through) + (f", {row.reach}" if row.reach and row.passed_through not in ("", "undecided") else "")


def _named(model: str) -> str:
    """The model's name; clicking it shows its labels, or the passport of a sample, which has none."""
    address = f"./{addresses.passport(model)}" if model.startswith("sample:") else addresses.labels_of(model)
    return str(PIECES.model_link(model, address))
