"""Builds addresses on the site, relative to its root: the page that computes a report again, the stored report, its badge."""

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from analyzers import ANALYZERS, analyzer_of
from analyzers.core.notes import Advice
from analyzers.core.report import Report
from components.forms.form import as_read
from components.site import stored_results

if TYPE_CHECKING:
    from components.results.layout import Layout


def layout(analyzer: str) -> "Layout[Any]":
    """Return the layout of an analyzer's results. Raises KeyError if there is none."""
    found: Layout[Any] = ANALYZERS[analyzer].component("result").RESULT
    return found


def recompute(report: Report) -> str:
    """Return the page that computes this report again, filled in: ``sparsity?base=...``, or ``?model=...`` for a passport."""
    return as_requested(as_read(report))


def as_requested(request: Any) -> str:
    """Return the page that computes this request, filled in."""
    analyzer = analyzer_of(request)
    return analyzer.address + layout(analyzer.name).permalink(request)


def command(request: Any) -> str:
    """Return the command that computes this request."""
    return layout(analyzer_of(request).name).command(request)


def passport(model: str) -> str:
    """Return the page with the current passport of a model."""
    return f"?model={quote(model, safe='')}"


def page(analyzer: str, model: str) -> str:
    """Return the page of an analyzer with the current answer about a model."""
    return f"{ANALYZERS[analyzer].address}?model={quote(model, safe='')}"


def fp16_run(model: str) -> str:
    """Return the page that runs a model in fp16 and tests its activations."""
    return f"{page('precision', model)}&variants=fp16"


def next_page(advice: Advice) -> str:
    """Return the page of the next question about the same model, which it computes."""
    return f"{'' if ANALYZERS[advice.analyzer].address else './'}{page(advice.analyzer, advice.model)}"


def stored(identifier: str) -> str:
    """Return the page with a stored report."""
    return f"result/{identifier}"


def short(identifier: str) -> str:
    """Return the short link to a stored report."""
    return f"r/{stored_results.our_library().short_code(identifier)}"


def badge(model: str) -> str:
    """Return the badge of a model."""
    return f"badge/{quote(model, safe='/:')}.svg"


def organisation(name: str) -> str:
    """Return the page with the models of an organisation."""
    return f"org/{quote(name, safe='')}"


def results_of(model: str) -> str:
    """Return the library page, open at the results of a model."""
    return f"library?show=results&q={quote(model, safe='')}"


def labels_of(model: str) -> str:
    """Return the library page, open at the labels of a model."""
    return f"library?model={quote(model, safe='')}"
