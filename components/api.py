"""The endpoints for programs: the same analysis, within the same limits, as plain data."""

import json
import time
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import gradio as gr
from gradio.events import api

from analyzers import limits
from analyzers.base import Progress
from analyzers.errors import InvalidRequest
from components.jobs import job, sentence
from components.links import Form, models

ONE = (
    "The precision passport of a checkpoint as JSON: how it is stored, which formats its values provably passed through, in which "
    "precision it was probably trained, and whether its weights fit fp16. "
    'Yields progress ({"done", "total", "unit", "note"}); the last item is the report.'
)
MANY = (
    f"The passports of up to {limits.MODELS} checkpoints, read one after the other. Yields progress; the last item is a list in the order "
    'of the ids, each of them once: a report, or {"model", "error"} with the sentence that says why there is none.'
)
# A few progress items a second are plenty for a program too.
_EVERY_SECONDS = 0.25


def inspect(
    model: str = "",
    mode: Literal["quick", "exact"] = "quick",
    budget: str = "",
    include: str = "",
    exclude: str = "",
    subfolder: str = "",
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """Inspect a Hub model (org/name, optionally @revision) or a sample (sample:NAME); see `ONE`."""
    try:
        request = _form(model=model, mode=mode, budget=budget, include=include, exclude=exclude, subfolder=subfolder, seed=seed).request()
        for item in paced(job(request)):
            yield item.model_dump(mode="json")
    except Exception as error:
        raise gr.Error(sentence(error), print_exception=False) from None


def inspect_many(
    models: list[str] | None = None,
    mode: Literal["quick", "exact"] = "quick",
    budget: str = "",
    include: str = "",
    exclude: str = "",
    subfolder: str = "",
    seed: int = 0,
) -> Iterator[Any]:
    """Inspect several models with the same options; see `MANY`."""
    started = time.monotonic()
    try:
        asked = _form(
            model=_listed(models), mode=mode, budget=budget, include=include, exclude=exclude, subfolder=subfolder, seed=seed
        ).requests()
    except Exception as error:
        raise gr.Error(sentence(error), print_exception=False) from None
    found: list[dict[str, Any]] = []
    for number, request in enumerate(asked, 1):
        try:
            for item in paced(job(request, started)):
                said = item.model_dump(mode="json")
                if isinstance(item, Progress):
                    yield said | {"note": f"{number} of {len(asked)}, {request.model}: {item.note}"}
                else:
                    found.append(said)
        except Exception as error:
            found.append({"model": request.model, "error": sentence(error)})
    yield found


def paced(items: Iterable[Any]) -> Iterator[Any]:
    """``items`` without the progress that comes within a quarter of a second of the last; everything else passes."""
    last = float("-inf")
    for item in items:
        now = time.monotonic()
        if isinstance(item, Progress):
            if now - last < _EVERY_SECONDS:
                continue
            last = now
        yield item


def add_endpoint() -> None:
    """Register ``/inspect`` and ``/inspect_many``. Call inside the Blocks."""
    for function, description in ((inspect, ONE), (inspect_many, MANY)):
        api(
            function,
            api_name=function.__name__,
            api_description=description,
            concurrency_limit=limits.JOBS,
            concurrency_id="analysis",
            api_visibility="public",
        )


def _listed(given: Any) -> str:
    """The ids as the page's box has them. Raises InvalidRequest."""
    if isinstance(given, str):
        return given
    if given is None:
        return ""
    if not isinstance(given, list) or not all(isinstance(model, str) for model in given):
        raise InvalidRequest("models must be a list of model ids, each a text.")
    if (bad := next((model for model in given if len(models(model)) != 1), None)) is not None:
        raise InvalidRequest(f"models must hold one id in each text, not {json.dumps(bad[:60])}.")
    return ", ".join(given)


def _form(**fields: Any) -> Form:
    """The fields as text, as the page's form has them; None is the default. Raises InvalidRequest for what can be no such field."""
    given = {}
    for name, value in fields.items():
        if value is None:
            continue
        numeric = name in ("seed", "budget")
        if numeric and isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, str) and not (numeric and isinstance(value, int) and not isinstance(value, bool)):
            raise InvalidRequest(f"{name} must be a text{' or a whole number' if numeric else ''}, not {_kind(value)}.")
        given[name] = str(value)
    return Form(**given)


def _kind(value: Any) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a fraction", list: "a list", dict: "an object"}
    return kinds.get(type(value), "this")
