"""Writes a request as an address of the app and as a command, and the addresses that a result names, relative to the first page."""

import shlex
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

from analyzers import ANALYZERS, analyzer_of
from analyzers.checkpoints.reference import with_commits
from analyzers.core.options import is_list, is_subject, offered, option_of
from analyzers.core.report import Report

# Longer texts are left out of an address: browsers and proxies truncate long ones.
_LONGEST = 4_000
_OUR_TEXT = ("builtin", "random")


def query(request: Any) -> str:
    """Return the query that makes the same request: its checkpoints, and the options that are not at their default.

    A text that is too long is left out, and its key kept, so that the page can say so.
    """
    return "?" + urlencode(list(_pairs(request)))


def _pairs(request: Any) -> Iterator[tuple[str, str]]:
    kind = type(request)
    for name in offered(kind, "site"):
        value, option = getattr(request, name), option_of(kind, name)
        if value == kind.model_fields[name].default:
            continue
        if option.write is not None:
            text = option.write(value)
            yield name, text if len(text) <= _LONGEST else ""
        elif isinstance(value, tuple) and (option.one or any("," in str(each) for each in value)):
            yield from ((option.one or name, str(each)) for each in value)
        else:
            text = written(value)
            yield name, text if len(text) <= _LONGEST else ""


def command(request: Any) -> str:
    """Return the shell command of the same analysis. A pasted text stands in it as the file in which it has to be saved first."""
    kind, line = type(request), ["mantissa", analyzer_of(request).name]
    for name in offered(kind, "site"):
        value, option, flag = getattr(request, name), option_of(kind, name), name.replace("_", "-")
        if value == kind.model_fields[name].default:
            continue
        if option.word:
            line.append(option.word)
        elif is_subject(kind, name):
            line += value if is_list(kind, name) else [value]
        elif name == "mode":
            line.append(f"--{value}")
        elif isinstance(value, bool):
            line.append(f"--{flag}" if value else f"--no-{flag}")
        elif option.each and isinstance(value, tuple):
            line += [f"--{option.each}={each}" for each in value]
        elif option.command:  # a single word, so that a value may begin with a dash
            line.append(f"--{flag}={written(value)}")
    return shlex.join(line)


def written(value: Any) -> str:
    """Write the value of an option as it is typed."""
    if isinstance(value, bool):
        return str(int(value))
    return ",".join(map(str, value)) if isinstance(value, tuple) else f"{value:.12g}" if isinstance(value, float) else str(value)


def as_read(report: Any) -> Any:
    """Return the request of a report with the commits that were read."""
    request = report.request
    names: dict[str, Any] = {}
    for field, facts in (("model", "checkpoint"), ("base", "base")):
        if getattr(report, facts, None) is not None:
            names[field] = with_commits(getattr(report, facts).ref, getattr(report, facts).commit)
    for field in ("models", "tuned", "candidates"):
        if getattr(request, field, None):
            names[field] = tuple(with_commits(each.ref, each.commit) for each in getattr(report, field, ()))
    if getattr(request, "data", _OUR_TEXT[0]) not in _OUR_TEXT:
        text = getattr(report, "data", None) or report.inputs
        names["data"] = text.source if text.commit is None else f"{text.source}@{text.commit}"
    return request.model_copy(update={field: value for field, value in names.items() if hasattr(request, field)})


def page_of(report: Report) -> str:
    """Return the page that asks for a report again, with its form filled in."""
    return page_of_request(as_read(report))


def page_of_request(request: Any) -> str:
    """Return the page of a request, with its form filled in."""
    analyzer = analyzer_of(request)
    if analyzer.shown_by:
        names = [getattr(request, "base", None), *getattr(request, "candidates", ()), getattr(request, "model", None)]
        models = [("model", name) for name in (*names, *getattr(request, "tuned", ())) if name]
        return f"{analyzer.shown_by}?{urlencode(models)}"
    return f"{analyzer.address}{query(request)}"


def command_of(report: Report) -> str:
    """Return the command that computes a report again."""
    return command(as_read(report))


def next_page(report: Report) -> str:
    """Return the page of the question that the advice names, about the same model."""
    advice = report.advice
    return page(advice.analyzer, advice.model)


def page(analyzer: str, model: str) -> str:
    """Return the page of an analyzer with the model filled in."""
    found = ANALYZERS[analyzer]
    return f"{found.shown_by or found.address}?model={quote(model, safe='')}"


def stored(identifier: str) -> str:
    """Return the address of a stored result."""
    return f"result/{identifier}"


def badge(model: str) -> str:
    """Return the address of the badge of a model."""
    return f"badge/{quote(model, safe='/:')}.svg"


def labels(model: str) -> str:
    """Return the page of the library with the labels and results of a model."""
    return f"library?model={quote(model, safe='')}"
