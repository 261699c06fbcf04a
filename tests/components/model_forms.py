"""Shared checks of the forms of analyses that run a model."""

import shlex
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

from analyzers.core.command_line import Parser
from analyzers.core.errors import MantissaError
from analyzers.core.request import Request
from components.forms.form import Query
from components.running.page_events import Prefilled


def query_of(link: str) -> Query:
    """Return the keys and values of a permalink."""
    return parse_qsl(link.removeprefix("?"), keep_blank_values=True)


def asks_or_explains(form: Any, query: Query, kind: type[Request]) -> bool:
    """Return whether the module ``form`` makes a request of ``kind`` from a query, or refuses it in one line."""
    try:
        answer: Request | str = form.request(form.filled(query))
    except MantissaError as error:
        answer = str(error)
    return "\n" not in answer if isinstance(answer, str) else isinstance(answer, kind)


def parsed(command: str, analyzer: str, add_options: Callable[[Parser], None]) -> dict[str, Any]:
    """Parse ``command`` with the command line of ``analyzer``, and return the given options."""
    words = shlex.split(command)
    assert words[:2] == ["mantissa", analyzer]
    parser = Parser()
    add_options(parser)
    return {name: value for name, value in vars(parser.parse_args(words[2:])).items() if value is not None}


def skips_all_but_the_model(found: Prefilled, model: str, said: str) -> bool:
    """Return whether a refused address fills only the field of the model, with ``said`` in the status."""
    named = {name: value for name, value in found.form.items() if name in (found.only or found.form)}
    return named == {"model": model} and said in (found.status or "")
