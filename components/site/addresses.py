"""Addresses on the site, relative to its root: the page that computes a report again, the stored report, its badge."""

import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from analyzers import ANALYZERS, analyzer_of
from analyzers.base import NextStep, Report

if TYPE_CHECKING:
    from components.results.layout import Layout


# What a permalink or a command has in place of a commit that is not known yet.
_NO_COMMIT = re.compile(r"%40(?=&|$)|&revision=(?=&|$)|@(?=\s|$)")


def layout(analyzer: str) -> "Layout[Any]":
    """The layout of an analyzer's results. Raises KeyError if there is none."""
    found: Layout[Any] = ANALYZERS[analyzer].component("result").RESULT
    return found


def again(report: Report) -> str:
    """The page that computes this report again, filled in: ``sparsity?base=...``; of the passport, ``?model=...``."""
    return ANALYZERS[report.analyzer].address + layout(report.analyzer).permalink(report)


def asked(request: Any) -> str:
    """The page that computes this request, filled in: `again` before there is a report, with commits only where the request names them."""
    analyzer = analyzer_of(request)
    return analyzer.address + _NO_COMMIT.sub("", layout(analyzer.name).permalink(_before(request)))


def command(request: Any) -> str:
    """The command that computes this request, with commits only where the request names them."""
    return _NO_COMMIT.sub("", layout(analyzer_of(request).name).command(_before(request)))


def _before(request: Any) -> Any:
    """What links and commands need of the report on ``request``, before there is one."""

    def named(reference: str) -> SimpleNamespace:
        name, _, commit = reference.partition("@")
        return SimpleNamespace(ref=name, source=name, commit=commit)

    data = named(getattr(request, "data", ""))
    several = {field: tuple(map(named, getattr(request, field, ()))) for field in ("tuned", "candidates")}
    base, checkpoint = (named(name) if (name := getattr(request, field, "")) is not None else None for field in ("base", "model"))
    return SimpleNamespace(request=request, checkpoint=checkpoint, base=base, data=data, inputs=data, **several)


def passport(model: str) -> str:
    """The page with the current passport of a model."""
    return f"?model={quote(model, safe='')}"


def page(analyzer: str, model: str) -> str:
    """The page of an analyzer with the current answer about a model."""
    return f"{ANALYZERS[analyzer].address}?model={quote(model, safe='')}"


def next_page(step: NextStep) -> str:
    """The page of the next question about the same model, which it computes."""
    return f"{'' if ANALYZERS[step.analyzer].address else './'}{page(step.analyzer, step.model)}"


def stored(identifier: str) -> str:
    """The page with a stored report."""
    return f"result/{identifier}"


def badge(model: str) -> str:
    """The badge of a model."""
    return f"badge/{quote(model, safe='/:')}.svg"


def organisation(name: str) -> str:
    """The page with the models of an organisation."""
    return f"org/{quote(name, safe='')}"


def family(model: str) -> str:
    """The page with a model's ancestors and descendants."""
    return f"library/family/{quote(model, safe='/')}"


def results_of(model: str) -> str:
    """The library, open at the results of a model."""
    return f"library?show=results&q={quote(model, safe='')}"


def labels_of(model: str) -> str:
    """The library, open at the labels of a model."""
    return f"library?model={quote(model, safe='')}"
