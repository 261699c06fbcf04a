"""Writes values and fills templates: one template per code, in which a count brings its noun and a share its interval.

A template is a format string: ``"{tensors:#tensor}, all {dtype:dtype}"`` becomes ``38 tensors, all fp32``. It names what was counted ("all
22,842 values tested"), never the whole, so that it is true of a sample and of everything alike; `report.Report.suffix` says how far a
report reaches. What follows the colon is a name in `FORMATS`, or ``#noun``, or ``#noun|nouns`` where the plural is irregular (which may be
several words: ``#weight is|weights are``).
"""

import string
from collections.abc import Callable, Mapping
from typing import Any

from analyzers.core import formatting
from analyzers.core.formatting import NOTHING
from analyzers.core.notes import Advice, Note, Value
from analyzers.core.records import Interval
from analyzers.core.tensor_words import dtype_name, format_name
from analyzers.core.terminal import quoted, quoted_names

_NEARLY = 0.01


def _share(value: Any) -> str:
    """Write a share; that of a sample with its interval."""
    if isinstance(value, Interval):
        return f"{formatting.share(value.estimate)} ({formatting.share(value.low)} to {formatting.share(value.high)})"
    return formatting.share(value)


def _times(value: Any) -> str:
    """Write a factor; one that was estimated with its interval."""
    if isinstance(value, Interval):
        return f"{formatting.magnitude(value.estimate)} times ({formatting.magnitude(value.low)} to {formatting.magnitude(value.high)})"
    return f"{times(value)} times"


def times(value: float) -> str:
    """Write a factor; one that is nearly 1 with two decimals, so that it does not look exact."""
    return formatting.fixed(value, 2) if abs(value - 1) < _NEARLY else formatting.magnitude(value)


def _first(names: Any) -> str:
    """Quote names of which there may be more: two of them, or the first of several."""
    return quoted_names(names) if len(names) < 3 else f"{quoted_names(names[:1])} and others"


FORMATS: dict[str, Callable[[Any], str]] = {
    "": str,
    "text": str,
    "count": formatting.count,
    "share": _share,
    "between": formatting.between,
    "size": formatting.size,
    "magnitude": formatting.magnitude,
    "duration": formatting.duration,
    "shape": formatting.shape,
    "dtype": dtype_name,
    "format": format_name,
    "name": lambda value: quoted(value, 200),
    "names": quoted_names,
    "first": _first,
    "list": lambda values: formatting.listed(list(values)),
    "times": _times,
    "cosine": formatting.cosine,
    "ratio": lambda value: formatting.fixed(value, 2),
    "number": lambda value: f"{value:,g}",
    "yes": lambda value: "yes" if value else "no",
}
NUMBERS = frozenset({"count", "share", "size", "magnitude", "duration", "times", "cosine", "ratio", "number"})
"""Formats of numbers, which tables align on the right."""


def write(value: Any, form: str) -> str:
    """Write a value. form: a name in `FORMATS`, ``#noun`` or ``#noun|nouns``; a missing value is a dash."""
    if value is None:
        return NOTHING
    if form.startswith("#"):
        one, _, many = form[1:].partition("|")
        return formatting.plural(value, one, many)
    return FORMATS[form](value)


class _Template(string.Formatter):
    """Fills the fields of a template by `write`."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """Write one value."""
        return write(value, format_spec)


_TEMPLATE = _Template()


class Words:
    """The templates of an analyzer, by code."""

    def __init__(self, templates: Mapping[str, str]) -> None:
        self.templates = dict(templates)

    def text(self, code: str, values: Mapping[str, Any]) -> str:
        """Fill the template of a code. Raises KeyError if there is none, or if a value is missing."""
        return _TEMPLATE.vformat(self.templates[code], (), values)

    def note(self, code: str, /, **values: Value) -> Note:
        """Return the note of a code with its sentence."""
        return Note(code=code, values=values, text=self.text(code, values))

    def advice(self, code: str, analyzer: str, model: str, /, **values: Value) -> Advice:
        """Return the advice of a code. analyzer: answers the next question about ``model``."""
        return Advice(code=code, values=values, text=self.text(code, values), analyzer=analyzer, model=model)
