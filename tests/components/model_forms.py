"""What the tests of all forms of analyses that run a model ask of them."""

import shlex
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

from analyzers.base import Request
from analyzers.command_line import Parser
from analyzers.errors import MantissaError
from components.forms.form import Query


def query_of(link: str) -> Query:
    """The keys and values of a permalink."""
    return parse_qsl(link.removeprefix("?"), keep_blank_values=True)


def asks_or_explains(form: Callable[[Query], Any], query: Query, kind: type[Request]) -> bool:
    """Whether ``form`` makes a request of ``kind`` of a query, or says in one line why not."""
    try:
        answer: Request | str = form(query).request()
    except MantissaError as error:
        answer = str(error)
    return "\n" not in answer if isinstance(answer, str) else isinstance(answer, kind)


def parsed(command: str, analyzer: str, add_options: Callable[[Parser], None]) -> dict[str, Any]:
    """What the command line of ``analyzer`` makes of ``command``: its options that were given."""
    words = shlex.split(command)
    assert words[:2] == ["mantissa", analyzer]
    parser = Parser()
    add_options(parser)
    return {name: value for name, value in vars(parser.parse_args(words[2:])).items() if value is not None}


def skips_all_but_the_model(filled: list[Any], model: str, said: str, skip: Any) -> bool:
    """Whether an address that was refused left the fields as they are, with the model in its field and ``said`` in the status."""
    first, *rest, status = filled
    return first == model and said in status and all(each == skip for each in rest)
