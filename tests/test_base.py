"""What analyzers share: plain frozen data, content addresses, and one sentence for what does not validate."""

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from analyzers.core.options import describe
from analyzers.core.records import Record
from analyzers.core.report import Timing, content_id
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
        switch: bool = Field(default=False, description="Do it.")

    found = [describe(Described, name) for name in Described.model_fields]
    assert found == ["A name.", "A word (default auto).", "A share (default 0.001).", "Do it."]


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


class _Nested(Record):
    inner: tuple[_Asked, ...]


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (WeightsRequest, {"mode": "fast"}, "mode must be quick or exact, not 'fast'."),
        (WeightsRequest, {"device": "tpu\x1b[2J" * 99}, "device must be auto, cpu or cuda, not 'tpu\\x1b[2Jtpu"),
        (WeightsRequest, {"seed": 10**5000}, "seed must be less than 9,223,372,036,854,775,808."),
        (WeightsRequest, {"budget": 0}, "budget must be at least 1, not 0."),
        (WeightsRequest, {"include": "x" * 9999}, "include: a filter may have at most "),
        (WeightsRequest, {"inclde": "x"}, "inclde is not known here."),
        (_Nested, {"inner": [{"count": 0}]}, "count of entry 1 of inner must be at least 1, not 0."),
    ],
)
def test_what_does_not_validate_is_one_sentence(kind: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        kind(**options)
    sentence = str(request_error(caught.value))
    assert sentence.startswith(said) and sentence.endswith(".") and sentence.isprintable() and len(sentence) < 200
