"""Renders labels: their evidence, their contributors, and all labels of one model, so that disputes can be judged by the evidence."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from analyzers.core.formatting import day
from components.library import Label, LabelRow, Library
from components.site import addresses
from components.site.identity import has_login
from components.text import cited, html, macros, numbers

PIECES = macros("library_page/templates/library.html")
_QUOTE = 2_000
_SHORT = 90


def evidence(label: Label, short: bool = False) -> str:
    """Render the evidence for a label: a link that shows its host, a quote, or both."""
    link = cited(label.evidence_link, "") if label.evidence_link else ""
    return PIECES.evidence(label, link, _SHORT if short else _QUOTE)


def contributor(label: Label) -> str:
    """Render the contributor of a label, and how their identity is known."""
    return PIECES.contributor(label)


def state(row: Any) -> str:
    """Render the status of a contribution."""
    return PIECES.state(row)


def model_labels(library: Library, model: str) -> str:
    """Render the labels of ``model``: the consensus, whether it is disputed, each label with its evidence, and replaced labels."""
    consensus = library.consensus(model)
    row = library.model(model)
    name = row.model if row is not None else consensus.model
    stored = addresses.stored(row.result) if row is not None and row.result else ""
    agreed = {vote.precision for vote in consensus.votes}
    replaced = [each for each in library.history(model) if not each.current]
    return PIECES.model(
        name,
        consensus,
        f"./{addresses.passport(name)}",
        addresses.organisation(name.partition("/")[0]) if "/" in name else "",
        stored,
        addresses.badge(name),
        [(adapter, addresses.results_of(adapter)) for adapter in library.adapters(name)],
        _rows(consensus.labels, agreed) if consensus.labels else "",
        _rows(replaced) if replaced else "",
        f"{numbers.plural(len(replaced), 'label')} replaced or hidden",
    )


def flag(row: LabelRow, agreed: Collection[str]) -> str:
    """Render the flags of a label, the button that flags it, and for a proposal that a login can confirm, the button for that.

    agreed: the precisions of labels that count.
    """
    confirmable = row.proposal and row.current and has_login() and row.label.precision not in agreed
    return PIECES.flag(row.label, numbers.plural(row.flags, "flag") if row.flags else "", confirmable)


def precision(row: LabelRow) -> str:
    """Render what a label says, and whether it counts."""
    return PIECES.label_precision(row, "")


# Title -> the HTML of a row.
_COLUMNS: dict[str, Callable[[LabelRow], str]] = {
    "Trained in": precision,
    "Evidence": lambda row: evidence(row.label),
    "Contributor": lambda row: contributor(row.label),
    "Added": lambda row: html(day(row.label.created)),
    "State": state,
}


def _rows(rows: Sequence[LabelRow], agreed: Collection[str] = ()) -> str:
    cells = [[*(cell(row) for cell in _COLUMNS.values()), flag(row, agreed)] for row in rows]
    return PIECES.table([*_COLUMNS, "Flags"], cells)
