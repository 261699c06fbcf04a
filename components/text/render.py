"""Renders HTML, SVG and sentences from templates in a ``templates`` folder next to the code that uses them. Escaped by default.

A value that is already HTML, rendered by another template, uses the filter ``safe``, the only way to bypass escaping.
"""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analyzers.core import formatting as numbers
from components.text.plain_text import LONGEST, LONGEST_SENTENCE, shown

_COMPONENTS = Path(__file__).parents[1]


def render(template: str, **values: Any) -> str:
    """Render a template, named by its path in ``components`` (``results/templates/page.html``), with these values."""
    return _environment().get_template(template).render(values)


def macros(template: str) -> "Macros":
    """Return the macros of a template, as functions that return HTML."""
    return Macros(_environment().get_template(template).module)


def anchor(title: str) -> str:
    """Return the anchor of a heading: its letters and digits in lower case, joined by dashes."""
    return "-".join(re.findall(r"[a-z0-9]+", title.lower()))


class Macros:
    """The macros of a template's module, as functions that return text."""

    def __init__(self, module: Any) -> None:
        self._macros = module

    def __getattr__(self, name: str) -> Callable[..., str]:
        macro = getattr(self._macros, name)
        return lambda *values: str(macro(*values))


class Sentences(Macros):
    """The macros of a template as functions that return plain text, for example the captions of a result. names: what the macros may use.

    White space of any kind and length becomes one space.
    """

    def __init__(self, template: str, **names: Any) -> None:
        # plain text, which is escaped where it is shown
        environment = Environment(loader=FileSystemLoader(_COMPONENTS), undefined=StrictUndefined)  # noqa: S701
        super().__init__(environment.get_template(template, globals={"numbers": numbers} | names).module)

    def __getattr__(self, name: str) -> Callable[..., str]:
        macro = super().__getattr__(name)
        return lambda *values: " ".join(macro(*values).split())


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_COMPONENTS), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"shown": _shown, "prose": _prose, "powers": numbers.powers, "anchor": anchor}
    return environment


def _shown(text: str, longest: int = LONGEST) -> str:
    """Return `shown`, which is still escaped even if the text is marked as HTML."""
    return shown(str(text), longest)


def _prose(text: str) -> str:
    """Return a sentence of an analyzer with normalized numbers and the length limit of a sentence."""
    return _shown(numbers.powers(str(text)), LONGEST_SENTENCE)
