"""Defines the analyzers' endpoints for programs: the same analyses as on the pages, within the same limits, as plain data.

Each analyzer has an endpoint with its name and one that returns a summary. Their parameters are fields of the request, which validates
the JSON.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gradio as gr

from analyzers import ANALYZERS, Analyzer
from analyzers.core import limits
from analyzers.core.errors import InvalidRequest
from analyzers.core.options import describe, offered
from analyzers.core.pasted_text import plain_or_same
from analyzers.core.report import Report
from analyzers.core.request import Progress
from components.api.parameters import REQUIRED, Parameters, named_arguments, parameters, with_parameters
from components.api.registration import Endpoint, one_sentence, register
from components.forms.form import validated_json
from components.running.jobs import job, kind_of, sentence
from components.site import addresses

_SUMMARY = (
    "The short form, enough for most questions: the answer in a few sentences (headline), its numbers (facts), caveats (notes), the id of "
    "the report, and the page of the app that shows it."
)
_MANY = (
    f"The same for up to {limits.MODELS} models, one after the other. The answer is a list in the order of the ids, without duplicates: a "
    'report, or {"model", "error"} with the reason why there is none.'
)
_READ_AS = (
    "Gated and private models need your own Hub token, as the header Authorization: Bearer hf_...; it is used for this call only, and the "
    "result is not stored."
)
# More than a few progress items a second are of no use to a program.
_EVERY_SECONDS = 0.25


def endpoints() -> Iterator[Endpoint]:
    """Yield ``NAME`` and ``NAME_summary`` of each analyzer and ``NAME_many`` if it takes several models."""
    for analyzer in ANALYZERS.values():
        form = analyzer.component("form")
        described = {"models": f"A list of at most {limits.MODELS} checkpoints, such as org/name, org/name@revision or sample:tiny-bf16."}
        described |= {name: describe(analyzer.request_model(), name) for name in offered(analyzer.request_model(), "site")}
        about, queue = f"{form.ABOUT} {_READ_AS}", kind_of(analyzer.name)
        long = f"{about} The full report is long: agents, call {analyzer.name}_summary first."
        yield Endpoint(endpoint(analyzer, f"{analyzer.name}_summary", in_short), f"{about} {_SUMMARY}", described, "summary", queue)
        yield Endpoint(endpoint(analyzer), long, described, "report", queue)
        if analyzer.many:
            yield Endpoint(many(analyzer), f"{long} {_MANY}", described, "reports", queue)


def add_endpoints(app: gr.Blocks) -> None:
    """Register the endpoints. Call inside the Blocks."""
    for each in endpoints():
        register(app, each)


def in_full(report: Report) -> dict[str, Any]:
    """Return the whole report as JSON."""
    return report.model_dump(mode="json")


def endpoint(analyzer: Analyzer, name: str = "", written: Callable[[Any], dict[str, Any]] = in_full) -> Callable[..., Iterator[Any]]:
    """Make the endpoint ``name`` of an analyzer, which answers one request with progress, then the report as returned by ``written``."""

    def answer(*values: Any, **named: Any) -> Iterator[dict[str, Any]]:
        with one_sentence():
            for item in paced(job(_request(analyzer, named_arguments(answer, values, named)))):
                yield item.model_dump(mode="json") if isinstance(item, Progress) else written(item)

    made: Callable[..., Iterator[Any]] = with_parameters(answer, name or analyzer.name, _parameters(analyzer), Iterator[Any])
    return made


def in_short(report: Report) -> dict[str, Any]:
    """Summarize a report: its headline, summary table, notes, id, and the page that shows it."""
    table = report.tables()["summary"].astype(object)
    (facts,) = table.where(table.notna(), None).to_dict("records")
    facts.pop("statement", None)  # repeated by the headline
    return {
        "analyzer": report.analyzer,
        "id": report.id,
        "headline": addresses.layout(report.analyzer).summary(report),
        "facts": facts,
        "notes": [str(note) for note in getattr(report, "notes", ())],
        "page": addresses.recompute(report),
    }


def many(analyzer: Analyzer) -> Callable[..., Iterator[Any]]:
    """Make the endpoint of an analyzer for several models with the same options."""

    def answer(*values: Any, **named: Any) -> Iterator[Any]:
        started = time.monotonic()
        with one_sentence():
            given = named_arguments(answer, values, named)
            requests = [_request(analyzer, given | {"model": model}) for model in _models(given.pop("models", None))]
        answers: list[dict[str, Any]] = []
        for number, request in enumerate(requests, 1):
            try:
                for item in paced(job(request, started)):
                    content = item.model_dump(mode="json")
                    if isinstance(item, Progress):
                        yield content | {"note": f"{number} of {len(requests)}, {request.model}: {item.note}"}
                    else:
                        answers.append(content)
            except Exception as error:
                answers.append({"model": request.model, "error": sentence(error)})
        yield answers

    types: Parameters = {"models": (list[str], REQUIRED)} | _parameters(analyzer)
    del types["model"]
    named: Callable[..., Iterator[Any]] = with_parameters(answer, f"{analyzer.name}_many", types, Iterator[Any])
    return named


def paced(items: Iterable[Any]) -> Iterator[Any]:
    """Yield ``items`` without progress that follows other progress within a quarter of a second."""
    last = float("-inf")
    for item in items:
        now = time.monotonic()
        if isinstance(item, Progress):
            if now - last < _EVERY_SECONDS:
                continue
            last = now
        yield item


def _parameters(analyzer: Analyzer) -> Parameters:
    return parameters(analyzer.request_model(), offered(analyzer.request_model(), "site"))


def _request(analyzer: Analyzer, given: dict[str, Any]) -> Any:
    """Validate the arguments of a call as a request. Raises InvalidRequest."""
    kind = analyzer.request_model()
    if missing := next((name for name, field in kind.model_fields.items() if field.is_required() and not given.get(name)), None):
        raise InvalidRequest(f"{missing} is missing: name a checkpoint, such as org/name, org/name@revision or sample:tiny-bf16.")
    return validated_json(kind, given)


def _models(given: Any) -> list[str]:
    """Return the models of a call without duplicates. Raises InvalidRequest."""
    if not isinstance(given, list) or not given or not all(isinstance(each, str) and each.strip() for each in given):
        raise InvalidRequest("models must be a list of model ids, each a text such as org/name.")
    models = list(dict.fromkeys(map(plain_or_same, given)))
    if len(models) > limits.MODELS:
        raise InvalidRequest(f"One call takes at most {limits.MODELS} models, not {len(models):,}: use the command line.")
    return models
