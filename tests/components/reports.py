"""Reports of every analyzer: the finished examples, the same with hostile text in every field, and the same of a part of the weights."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel

from analyzers import ANALYZERS
from analyzers.core.coverage import LeftOut, NotRead
from analyzers.core.report import Report
from components import store
from components.result.layout import Figure, Table, layout_of

HOSTILE = "<img src=x onerror=alert(1)>\"'&\u202e"
# Fields of text that hold one of a few words, by which a report of the library that has others is refused.
_CODES = {"test"}
NAMES = list(ANALYZERS)
PAGES = [analyzer.name for analyzer in ANALYZERS.values() if not analyzer.shown_by]


@cache
def example(name: str) -> Any:
    """Return the finished example, of parents and sparsity the one within that of compare."""
    report: Any = store.example(name if name in PAGES else "compare")
    assert report is not None
    return report if name in PAGES else getattr(report, name)


@cache
def hostile(name: str) -> Any:
    """Return the example with hostile text within every text that is not one of a few words."""
    report = example(name)
    attacked = _attacked(report, str)
    kept = {"id": report.id, "advice": attacked.advice.model_copy(update={"analyzer": report.advice.analyzer})}
    return attacked.model_copy(update=kept)


@cache
def partial(name: str) -> Any:
    """Return the example as if half of the weights, and a file, had not been read."""
    report = example(name)
    found = [_half(each) for each in report.coverage]
    inner = {each.analyzer: partial(each.analyzer) for each in report.parts()}
    return report.model_copy(update={"coverage": tuple(found), **inner})


VARIANTS = (example, hostile, partial)


def _half(coverage: Any) -> Any:
    tower = LeftOut(what="the vision tower", tensors=12, parameters=coverage.parameters // 2, code="unmatched")
    unread = NotRead(path="model.gguf", code="format")
    changed = {"covered": coverage.covered // 2, "share": 0.5, "left_out": (tower,), "files_not_read": (unread,)}
    return coverage.model_copy(update=changed)


def _attacked(value: Any, kind: Any) -> Any:
    if isinstance(value, str):
        return f"{value[:1]}{HOSTILE}{value[1:]}" if str in _kinds(kind) else value
    if isinstance(value, tuple | list):
        return type(value)(_attacked(each, kind) for each in value)
    if isinstance(value, dict):
        return {_attacked(key, kind): _attacked(each, kind) for key, each in value.items()}
    if isinstance(value, BaseModel):
        kinds = {name: field.annotation for name, field in type(value).model_fields.items()}
        return value.model_copy(update={name: _attacked(getattr(value, name), kinds[name]) for name in kinds if name not in _CODES})
    if is_dataclass(value) and not isinstance(value, type):
        kinds = get_type_hints(type(value))
        return replace(
            value,
            **{field.name: _attacked(getattr(value, field.name), kinds[field.name]) for field in fields(value) if field.name not in _CODES},
        )
    return value


def _kinds(annotation: Any) -> set[Any]:
    return {annotation} | {kind for inner in get_args(annotation) for kind in _kinds(inner)}


def placed(report: Report) -> Iterator[tuple[str, Table | Figure, Any]]:
    """Yield the parts of a layout that have content: their place, the part, and the report that it is about."""
    for number, tab in enumerate(layout_of(report).tabs):
        if (inner := tab.part(report)) is not None:
            for index, part in enumerate(tab.parts):
                content = part.draw(inner) if isinstance(part, Figure) else list(part.declared(inner).rows(inner))
                if content:
                    yield f"{number}.{index}", part, inner
