"""Renders HTML, SVG and sentences from templates in a ``templates`` folder next to the code that uses them. Escaped by default.

A value that is already HTML, rendered by another template, uses the filter ``safe``, the only way to bypass escaping.
"""

import re
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analyzers.core import formatting as numbers
from components.text.plain_text import LONGEST, LONGEST_SENTENCE, shown

_COMPONENTS = Path(__file__).parents[1]


def render(template: str, **values: Any) -> str:
    """Render a template, named by its path in ``components`` (``results/templates/page.html``), with these values."""
    return _environment().get_template(template).render(values)


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it: ``Safe in fp16?`` has ``safe-in-fp16``."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_COMPONENTS), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"shown": _shown, "prose": _prose, "powers": numbers.powers, "anchor": anchor, "breakable": _breakable}
    return environment


def _breakable(text: str) -> str:
    """Escape a text, with places between the parts of a name, such as that of a tensor, where a line may break. For ``safe``."""
    return re.sub(r"(?<=\w)([./])(?=[A-Za-z_])", r"\1<wbr>", escape(text))


def _shown(text: str, longest: int = LONGEST) -> str:
    """Return `shown`, which is still escaped even if the text is marked as HTML."""
    return shown(str(text), longest)


def _prose(text: str) -> str:
    """Return a sentence of an analyzer with normalized numbers and the length limit of a sentence."""
    return _shown(numbers.powers(str(text)), LONGEST_SENTENCE)
