"""JSON from outside: what is refused before it is parsed, what is read as other programs read it, and that nothing goes around it."""

import ast
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from analyzers.core.untrusted_json import InvalidJson, JsonTooLarge, parse_json, parse_model

ROOT = Path(__file__).parents[1]
# Places that parse JSON which this program wrote a moment ago, or ships.
OURS = {
    "mantissa/models_in_memory.py": "a configuration in memory",
    "analyzers/core/command_line.py": "the answer that is being printed",
    "analyzers/core/untrusted_json.py": "the function itself",
    "analyzers/dtype/classifier.py": "the built-in fit",
    "analyzers/language_models/builtin_text.py": "the built-in text",
    "components/theme.py": "a built-in table of colours",
    "components/worker.py": "the report of our process",
    "components/api.py": "arguments of a call, which Gradio has parsed",
}
PARSERS = {"loads", "load", "model_validate_json", "validate_json", "raw_decode", "JSONDecoder", "from_json", "read_json"}


def parsers(source: str) -> Iterator[int]:
    """Lines in which JSON is parsed with something other than `parse_json`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in PARSERS:
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if node.attr not in ("load", "loads") or owner in ("json", "orjson"):
                yield node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module in ("json", "orjson", "pydantic_core"):
            yield from (node.lineno for alias in node.names if alias.name in PARSERS)


def test_nothing_else_parses_json_from_outside() -> None:
    files = [*ROOT.glob("*.py"), *(path for name in ("analyzers", "components", "mantissa") for path in (ROOT / name).rglob("*.py"))]
    sources = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}
    found = {path for path, source in sources.items() if any(name in source for name in PARSERS) and any(parsers(source))}
    assert found == set(OURS)


@pytest.mark.parametrize(
    "source", ["json.loads(a)", "json.load(a)", "Kind.model_validate_json(a)", "from json import loads", "orjson.loads(a)"]
)
def test_a_parser_is_noticed(source: str) -> None:
    assert list(parsers(f"import json\n{source}\n")) == [2]


_REFUSED = {
    "cut": (b'{"a": [1', "is not JSON ("),
    "UTF-16": ("{}".encode("utf-16"), "is not UTF-8 at byte 0"),
    "Latin-1": (b'["\xe9"]', "is not UTF-8 at byte 2"),
    "surrogate in UTF-8": (b'["\xed\xa0\x80"]', "is not UTF-8 at byte 2"),
    "half a surrogate pair": (rb'["\ud83e"]', "holds half a surrogate pair"),
    "NaN": (b"[NaN]", "holds NaN, which JSON does not have"),
    "beyond float64": (b"[1e999]", "holds a number beyond the range of float64"),
    "a million digits": (b"[" + b"9" * 1_000_000 + b"]", "holds a number of 1,000,000 digits"),
    "lists in lists": (b"[" * 200 + b"]" * 200, "is nested more than 100 levels deep"),
    "brackets of both kinds, in text too": (b'[{"]}\\"]":' * 51 + b"1" + b"}]" * 51, "is nested more than 100 levels"),
    "never closed": (b"[" * 1_000_000, "is nested more than 100 levels"),
    "a flood of lists": (b"[" + b"[]," * 2_600_000 + b"[]]", "holds more than 2,000,000 values"),
    "a flood of names": (b"{" + b'"":{},' * 1_300_000 + b'"":{}}', "holds more than 2,000,000 values"),
    "a flood of escaped quotes": (b'["' + b'\\"' * 4_000_000, "is not JSON ("),
}


@pytest.mark.parametrize(("text", "clause"), _REFUSED.values(), ids=_REFUSED)
def test_what_is_refused_is_refused_in_little_memory(text: bytes, clause: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InvalidJson) as caught:
            parse_json(text)
        used = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert str(caught.value).startswith(clause)
    assert used < 10_000_000 + 20 * len(text)


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbf{}",
        b' {"a": 1, "a": [2]} ',
        rb'{"\ud83e\udd17": "\\ud83e"}',
        b"[1000000000000000019884624838656, -0, -0.0, 1e308]",
        b'["' + b"[{,]}" * 100_000 + b'"]',
        b"[" + b'"a,b",' * 400_000 + b'"[[["]',
        b"[" * 100 + b"]" * 100,
        b"[" + b"[[]]," * 1000 + b"[[]]]",
    ],
)
def test_regular_json_is_read_as_python_reads_it(text: bytes) -> None:
    assert repr(parse_json(text)) == repr(json.loads(text))


@pytest.mark.parametrize("text", [b"[NaN, Infinity, -Infinity, 1e999]", b"[" + b"9" * 4000 + b"]", rb'["\ud800"]'])
def test_what_transformers_takes_is_read_if_asked_for(text: bytes) -> None:
    assert repr(parse_json(text, lenient=True)) == repr(json.loads(text))


_VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(derandomize=True)
@given(_VALUES, st.integers(1, 6))
def test_depth_and_values_are_counted_as_a_walk_counts_them(value: Any, most: int) -> None:
    def count(node: Any) -> tuple[int, int]:
        inner = [count(each) for each in (node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())]
        return 1 + max((depth for depth, _ in inner), default=0) if isinstance(node, dict | list) else 0, 1 + sum(n for _, n in inner)

    try:
        assert parse_json(text := json.dumps(value), values=4 * most) == value
        assert count(value)[1] <= 4 * most
    except JsonTooLarge:
        assert sum(map(text.count, ",[{")) >= 4 * most


class _Report(BaseModel):
    name: str


def test_a_model_is_validated_within_the_same_limits() -> None:
    assert parse_model(_Report, '{"name": "a"}').name == "a"
    with pytest.raises(JsonTooLarge):
        parse_model(_Report, b'{"name": "a", "x": [' + b"[]," * 2_600_000 + b"[]]}")
    with pytest.raises(ValueError, match="Invalid JSON"):
        parse_model(_Report, rb'{"name": "\ud800"}')
