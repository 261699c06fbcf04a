"""Addresses on the site, relative to its root: the page that computes a report again, the stored report, its badge."""

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from analyzers.base import Report

if TYPE_CHECKING:
    from components.results.result_tabs import Layout


def layout(analyzer: str) -> "tuple[str, Layout[Any]]":
    """The page of an analyzer, and the layout of its results. Raises KeyError if it has none."""
    from components.conflict.result import RESULT as CONFLICT
    from components.exit.result import RESULT as EXIT
    from components.passport.result import RESULT as PASSPORT
    from components.precision.result import RESULT as PRECISION
    from components.sparsity.result import RESULT as SPARSITY

    pages: dict[str, tuple[str, Layout[Any]]] = {
        "dtype": ("", PASSPORT),
        "sparsity": ("sparsity", SPARSITY),
        "conflict": ("conflict", CONFLICT),
        "precision": ("precision", PRECISION),
        "exit": ("exit", EXIT),
    }
    return pages[analyzer]


def again(report: Report) -> str:
    """The page that computes this report again, filled in: ``sparsity?base=...``; of the passport, ``?model=...``."""
    page, parts = layout(report.analyzer)
    return page + parts.permalink(report)


def passport(model: str) -> str:
    """The page with the current passport of a model."""
    return f"?model={quote(model, safe='')}"


def stored(identifier: str) -> str:
    """The page with a stored report."""
    return f"result/{identifier}"


def badge(model: str) -> str:
    """The badge of a model."""
    return f"badge/{quote(model, safe='/:')}.svg"


def results_of(model: str) -> str:
    """The library, open at the results of a model."""
    return f"library?show=results&q={quote(model, safe='')}"


def labels_of(model: str) -> str:
    """The library, open at the labels of a model."""
    return f"library?model={quote(model, safe='')}"
