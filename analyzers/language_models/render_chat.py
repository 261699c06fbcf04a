"""Lays conversations out by a chat template, in a process of its own that is bounded in memory and time. Run as a script.

A template comes from outside and is a program: sandboxed it can do nothing but compute, and nothing bounds what it computes.
Standard input: a line with the ``template``, the ``tokens`` it may name, and the most ``bytes`` of memory, ``seconds`` of computing and
``characters`` that it may add; then a line for each conversation, a list of messages. Standard output: a line for each with its text, or,
as the last one, an object that says why there is none. All lines are JSON.
"""

import json
import resource
import sys
from contextlib import suppress
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class _Generation(Extension):
    """``{% generation %}``, which marks what the model says, and changes nothing of the text."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Namespace(Namespace):
    """Without names that Python itself looks up."""

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


def _bound(memory: int, seconds: int) -> None:
    with suppress(ValueError, OSError):  # macOS bounds no memory
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


def main() -> None:
    """Answer line by line; one that says why there is no text ends the process."""
    asked = json.loads(sys.stdin.readline())
    _bound(asked["bytes"], asked["seconds"])
    try:
        template = _environment().from_string(asked["template"])
        for line in sys.stdin:
            text = template.render(messages=json.loads(line), tools=None, documents=None, add_generation_prompt=False, **asked["tokens"])
            if len(text) > len(line) + asked["characters"]:
                answer: Any = {"failed": "characters"}
                break
            print(json.dumps(text))
        else:
            return
    except MemoryError:
        answer = {"failed": "bytes"}
    except TemplateError as error:
        answer = {"failed": "template", "said": str(error)[:1000]}
    except Exception as error:
        answer = {"failed": "template", "said": type(error).__name__}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
