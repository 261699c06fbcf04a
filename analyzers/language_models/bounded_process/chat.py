"""Rendering of conversations with a chat template: an untrusted program in a sandbox without side effects."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class _Generation(Extension):
    """``{% generation %}``, which marks the assistant's turn and does not change the text."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Namespace(Namespace):
    """A namespace without Python's special names."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace has no {name}")
        super().__setitem__(name, value)


def _namespace(*values: Any, **named: Any) -> Namespace:
    made = _Namespace()
    for name, value in dict(*values, **named).items():
        made[name] = value
    return made


def _dict(*values: Any, **named: Any) -> dict[Any, Any]:
    return dict(*values, **named)


def _json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: Any) -> NoReturn:
    raise TemplateError(str(message))


def _environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])
    made.filters["tojson"] = _json
    made.globals |= {"raise_exception": _raise, "strftime_now": lambda form: datetime.now().astimezone().strftime(form)}
    made.globals |= {"dict": _dict, "namespace": _namespace}
    return made


def rendered(template: str, named: Mapping[str, Any], conversations: Sequence[Sequence[Mapping[str, str]]]) -> Iterator[str]:
    """Render each conversation as text. named: additional template variables. Raises TemplateError, and any error the template causes."""
    compiled = _environment().from_string(template)
    for messages in conversations:
        yield compiled.render(messages=messages, tools=None, documents=None, add_generation_prompt=False, **named)
