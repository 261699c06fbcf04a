"""Makes the form of a page of the fields of a request, reads a request from it, and fills it in from an address.

What is typed, and what an address says, is untrusted: it is parsed here, and the request validates it.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr
from pydantic import BaseModel, ValidationError

from analyzers.core import limits
from analyzers.core.errors import InvalidRequest
from analyzers.core.options import choices, is_list, is_subject, offered, option_of, parse, title
from analyzers.core.pasted_text import plain_or_same, split, with_plus
from analyzers.core.request import request_error
from components.result.links import written

Typed = Mapping[str, Any]
Query = Sequence[tuple[str, str]]
# One value and one character more than any request takes, so that what is too much is refused, not truncated.
_MOST, _LONGEST = max(limits.TRAJECTORY, limits.CANDIDATES) + 1, limits.FILTER_LENGTH + 1
_LONGEST_TEXT = limits.REQUEST_BYTES
# Keys of addresses that are no fields: a commit, and the result alone.
_OTHER_KEYS = ("revision", "embed", "id")
_MODEL, _MODELS = "Model: org/name or org/name@revision, or a sample", "Models: org/name or org/name@revision, one a line"
_MISSING = "Type or paste a model id, such as org/name or org/name@revision, or pick one of the examples."


@dataclass(frozen=True, slots=True)
class Form:
    """The widgets of a request's fields, by name, in the order of the page."""

    request: type[BaseModel]
    widgets: dict[str, gr.components.Component]

    def read(self, values: Sequence[Any]) -> Any:
        """Return the request of the widgets' values. Raises InvalidRequest with the sentence to show."""
        return request_of(self.request, dict(zip(self.widgets, values, strict=True)))

    def values(self, typed: Typed) -> dict[Any, Any]:
        """Return updates that set the widgets to what is typed, or to a request's values, or else to their initial value."""
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in typed.items()}
        listed = {name: "\n".join(value) for name, value in values.items() if isinstance(value, list) and is_subject(self.request, name)}
        return {widget: (values | listed).get(name, widget.value) for name, widget in self.widgets.items()}


def build_form(request: type[BaseModel], front: Sequence[str], buttons: Any) -> tuple[Form, Any]:
    """Lay out the widgets of a request: its subjects beside what ``buttons()`` builds, then the options in view, the others folded.

    Returns the form, and what ``buttons`` returned. Call inside a page.
    """
    names = offered(request, "site")
    subjects = [name for name in names if is_subject(request, name)]
    rest = [name for name in names if name not in subjects and name not in front]
    with gr.Row(elem_classes="ask"):
        widgets = {name: _widget(request, name) for name in subjects}
        built = buttons()
    with gr.Row(elem_classes="front"):
        widgets |= {name: _widget(request, name, explained=False) for name in front}
    if rest:
        with gr.Accordion("More options", open=False, elem_classes="options"):
            for first in range(0, len(rest), 2):
                with gr.Row():
                    widgets |= {name: _widget(request, name) for name in rest[first : first + 2]}
    return Form(request, widgets), built


def _widget(request: type[BaseModel], name: str, explained: bool = True) -> Any:
    """Make the widget of a field: a switch, a choice of one or several values, or a text that shows its default.

    explained: with the description of the field.
    """
    field, option = request.model_fields[name], option_of(request, name)
    default, values = field.default, choices(request, name)
    said: dict[str, Any] = {"label": option.label or title(request, name), "elem_id": f"field-{name.replace('_', '-')}"}
    if is_subject(request, name):
        several = is_list(request, name)
        said |= {"lines": 2, "max_lines": 8} if several else {"max_lines": 1}
        said |= {"label": option.label or (_MODELS if several else _MODEL), "placeholder": "org/name"}
        return gr.Textbox(elem_classes="reference", scale=4, max_length=limits.REQUEST_BYTES, **said)
    said["info"] = (field.description if option.info is None else option.info) or None if explained else None
    if isinstance(default, bool):
        return gr.Checkbox(default, **said)
    labelled = list(zip(option.names or values, values, strict=True))
    if is_list(request, name) and (values or option.suggested):
        offers: list[Any] = labelled or list(option.suggested)
        return gr.Dropdown(offers, value=list(default), multiselect=True, allow_custom_value=not values, scale=5 if default else 2, **said)
    if values:
        return (gr.Dropdown if option.dropdown else gr.Radio)(labelled, value=default, **said)
    shown = "" if default in (None, ()) else written(default)
    if option.parse is not None or option.lines:
        said |= {"lines": 4, "max_lines": 12, "max_length": _LONGEST_TEXT}
    return gr.Textbox(placeholder=shown if option.example is None else option.example, **said)


def request_of(kind: type[BaseModel], typed: Typed) -> Any:
    """Validate what is typed as a request. Raises InvalidRequest with the sentence to show, which names fields in words."""
    given = {name: _value(kind, name, typed.get(name)) for name in offered(kind, "site")}
    if given.get("mode") == "exact":  # an exact run reads everything, so the page ignores the budget
        given["budget"] = None
    try:
        return kind(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        names = "|".join(name for name in kind.model_fields if "_" in name)
        message = str(request_error(error, partial(_quoted, kind)))
        message = re.sub(rf"\b({names or '_'})\b", lambda found: found[0].replace("_", " "), message)
        raise InvalidRequest(message[:1].upper() + message[1:]) from None


def _quoted(kind: type[BaseModel], name: str) -> str:
    return f'"{title(kind, name)}"'


def _value(kind: type[BaseModel], name: str, value: Any) -> Any:
    """Return the value of a field from what is typed, of any type; None if it is empty. Raises InvalidRequest."""
    if is_subject(kind, name):
        return _subject(kind, name, str(value or ""))
    default = kind.model_fields[name].default
    if isinstance(default, bool):
        return value if isinstance(value, bool) else None
    if isinstance(value, list | tuple):
        return tuple(str(each) for each in value[:_MOST]) or None
    text = "" if value is None else str(value).strip()
    if not text:
        return None
    option = option_of(kind, name)
    longest = _LONGEST_TEXT if option.parse is not None or option.lines else limits.FILTER_LENGTH
    if len(text) > longest:
        raise InvalidRequest(f"{_quoted(kind, name)} must have at most {longest:,} characters, not {len(text):,}.")
    return option.parse(text) if option.parse is not None else parse(kind, name, text, _quoted(kind, name))


def _subject(kind: type[BaseModel], name: str, text: str) -> Any:
    """Return the reference or the references in a text. Raises InvalidRequest."""
    several = is_list(kind, name)
    most = _MOST if several else 1
    if len(text) > most * (limits.REFERENCE_LENGTH + 2):
        raise InvalidRequest(f"{len(text):,} characters are more than a model id has: paste the id only.")
    named = list(dict.fromkeys(split(text))) or [text.strip()] * bool(text.strip())  # the request says what is wrong with it
    if not named and kind.model_fields[name].is_required():
        raise InvalidRequest(_MISSING)
    if several:
        return tuple(named)
    if len(named) > 1:
        raise InvalidRequest("One model at a time: name one. Compare, and the command line, take several.")
    return named[0] if named else None


def filled(kind: type[BaseModel], query: Query) -> tuple[dict[str, Any], str]:
    """Return what an address fills in, and a sentence on what is wrong with it, or ""."""
    query = _revised(query)
    last, typed, said = dict(query), dict[str, Any](), []
    for name in offered(kind, "site"):
        option, values = option_of(kind, name), choices(kind, name)
        key = option.one or name
        if key not in last and name not in last:
            continue
        texts = [text[: _LONGEST_TEXT if option.parse or option.lines else _LONGEST] for at, text in query if at in (key, name)][:_MOST]
        if is_subject(kind, name):
            typed[name] = "\n".join(text for text in texts if text.strip()) if is_list(kind, name) else texts[-1]
        elif isinstance(kind.model_fields[name].default, bool):
            typed[name] = texts[-1] in ("1", "true")
        elif is_list(kind, name) and (values or option.suggested):
            typed[name] = [part.strip() for text in texts for part in ([text] if ":" in text else text.split(",")) if part.strip()]
            if values and not set(typed[name]) <= set(values):
                said.append(f"{_quoted(kind, name)} in the address has an unknown value.")
                del typed[name]
        elif values and texts[-1] not in values:
            said.append(f"{_quoted(kind, name)} in the address must be one of {', '.join(values)}.")
        else:
            typed[name] = texts[-1]
            if (option.parse is not None or option.lines) and not texts[-1]:
                said.append(f"{_quoted(kind, name)} of this analysis was too long for a link: paste it again.")
    return typed, " ".join([*said, *_misspelt(query, kind)])


def _misspelt(query: Query, kind: type[BaseModel]) -> list[str]:
    """Say which keys of an address resemble a field; others are ignored, since sites add their own, such as utm_source."""
    names = [*offered(kind, "site"), *filter(None, (option_of(kind, name).one for name in kind.model_fields)), *_OTHER_KEYS]
    near = {key[:40]: difflib.get_close_matches(key[:40], names, 1) for key, _ in query[:_MOST] if key not in names}
    hints = ", ".join(f"{key} (did you mean {found[0]}?)" for key, found in sorted(near.items()) if found)
    return [f"Unknown in the address: {hints}."] if hints else []


def _revised(query: Query) -> Query:
    """Merge ``revision`` into ``model`` as org/name@revision. A "+" that was typed into an address has become a space, which no id has."""
    references = ("model", "base", "tuned", "candidate")
    query = [(key, with_plus(text) if key in references else text) for key, text in query]
    revision = dict(query).get("revision", "")[: limits.REFERENCE_LENGTH]
    models = [plain_or_same(text) for key, text in query if key == "model"]
    if not revision or len(models) != 1 or not models[0] or "@" in models[0]:
        return query
    return [(key, f"{models[0]}@{revision}" if key == "model" else text) for key, text in query if key != "revision"]
