"""What analyzers share: plain frozen data, content addresses, and one sentence for what does not validate."""

import hashlib
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from analyzers.core.options import describe
from analyzers.core.records import Record
from analyzers.core.report import Timing, content_id, environment
from analyzers.core.request import Progress, Request, WeightsRequest, request_error

plain = st.dictionaries(st.text(max_size=8), st.none() | st.booleans() | st.integers() | st.text(max_size=8), max_size=5)


@given(plain, plain)
def test_content_ids_are_equal_when_contents_are(a: dict[str, object], b: dict[str, object]) -> None:
    same = {key: a[key] for key in reversed(list(a))}
    assert content_id("dtype", 1, a) == content_id("dtype", 1, same)
    # True equals 1 in Python and not in JSON: representations tell them apart.
    if repr(sorted(a.items())) != repr(sorted(b.items())):
        assert content_id("dtype", 1, a) != content_id("dtype", 1, b)
    assert len({content_id("dtype", 1, a), content_id("dtype", 2, a), content_id("sparsity", 1, a)}) == 3


def test_content_id_is_sha256_of_canonical_json() -> None:
    text = '{"analysis_version":1,"analyzer":"dtype","request":{"a":"\\u00e9","b":1}}'
    assert content_id("dtype", 1, {"b": 1, "a": "é"}) == hashlib.sha256(text.encode()).hexdigest()
    with pytest.raises(ValueError, match="JSON"):
        content_id("dtype", 1, {"a": float("nan")})


def test_a_description_ends_with_the_default_where_that_is_a_text_or_a_number() -> None:
    class Described(Request):
        required: str = Field(description="A name.")
        text: str = Field(default="auto", description="A word.")
        small: float = Field(default=1e-3, description="A share.")
        large: int = Field(default=64_000_000, description="A number.")
        none: int | None = Field(default=None, description="A rank (default 8).")
        switch: bool = Field(default=False, description="Do it.")

    assert [describe(Described, name) for name in Described.model_fields] == [
        "A name.", "A word (default auto).", "A share (default 0.001).", "A number (default 64000000).", "A rank (default 8).", "Do it.",
    ]  # fmt: skip


def test_data_is_frozen_and_strict() -> None:
    step = Progress(done=1, total=2, unit="bytes")
    with pytest.raises(ValidationError):
        step.done = 5
    with pytest.raises(ValidationError):
        Progress(done=1, total=2, unit="bytes", more=3)  # type: ignore[call-arg]
    for number in (float("nan"), float("inf"), -float("inf")):
        with pytest.raises(ValidationError):
            Timing(seconds=number, reading_seconds=number, bytes_per_second=None)
    assert Progress.model_validate_json(step.model_dump_json()) == step


class _Asked(Request):
    count: int = Field(default=1, ge=1)
    name: str = ""


class _Nested(Record):
    inner: tuple[_Asked, ...]


def test_validation_errors_become_one_sentence() -> None:
    for values in ({"count": 0}, {"count": "many"}, {"nmae": "x"}, {"name": 3, "count": 0}):
        with pytest.raises(ValidationError) as caught:
            _Asked.model_validate(values)
        said = str(request_error(caught.value))
        assert said.endswith(".") and "\n" not in said and "pydantic" not in said
        assert re.split("[: ]", said)[0] in ("count", "nmae", "name")
    with pytest.raises(ValidationError) as caught:
        _Nested.model_validate({"inner": [{"count": 0}]})
    assert str(request_error(caught.value)) == "count of entry 1 of inner must be at least 1, not 0."


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "fast"}, "mode must be 'quick' or 'exact', not \"fast\"."),
        ({"device": "tpu\x1b[2J" * 99}, "device must be 'auto', 'cpu' or 'cuda', not \"tpu\\u001b[2Jtpu"),
        ({"seed": -1}, "seed must be at least 0, not -1."),
        ({"seed": 2**63}, "seed must be less than 9,223,372,036,854,775,808, not 9223372036854775808."),
        ({"seed": "many"}, 'seed must be a whole number, not "many".'),
        ({"seed": 10**5000}, "seed must be "),
        ({"budget": 0}, "The budget must be from 1 byte to "),
        ({"include": "x" * 9999}, "include: a filter may have at most "),
        ({"include": 3}, "include must be text, not 3."),
        ({"include": ["x"] * 99}, "include must be text."),
    ],
)
def test_what_an_option_must_be(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        WeightsRequest(**options)
    assert str(request_error(caught.value)).startswith(said)


class _Bounded(Request):
    share: float = Field(default=0.5, gt=0)
    data: str = Field(default="x", min_length=1, max_length=3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"share": 0}, "share must be more than 0.0, not 0."),
        ({"data": ""}, "data is empty: give it a value, or omit it."),
        ({"data": "abcd"}, 'data must be at most 3 characters long, not "abcd".'),
    ],
)
def test_bounds_that_are_said_in_words(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        _Bounded(**options)
    assert str(request_error(caught.value)) == said


def test_environment_lists_what_is_installed() -> None:
    found = environment("cpu", ("pydantic", "no-such-library"))
    assert set(found.libraries) == {"pydantic"} and found.device == "cpu"
    assert found.python == ".".join(map(str, sys.version_info[:3])) and found.machine


def test_importing_the_base_is_light() -> None:
    code = "import sys, analyzers.core.report; sys.exit(bool({'torch', 'pandas', 'numba', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=110).returncode == 0
