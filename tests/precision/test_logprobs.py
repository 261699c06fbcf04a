"""Forms in which engines write log-probabilities, and files that are none of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from analyzers.core.errors import InvalidData, LimitExceeded
from analyzers.precision.logprobs import EngineSequence, parse_logprobs, read_logprobs

IDS, VALUES = [5, 6, 7], [None, -0.5, -1.25]
CANDIDATES = [None, {"6": {"logprob": -0.5, "rank": 1, "decoded_token": "b"}}, {"7": {"logprob": -1.25, "rank": 3}, "9": {"logprob": -0.1}}]
CHAT = {"content": [{"token": "token_id:6", "logprob": -0.5, "bytes": None, "top_logprobs": []}, {"token": "token_id:7", "logprob": -1.25}]}
GENERATED = {"prompt_token_ids": [5], "prompt_logprobs": None, "outputs": [{"token_ids": [6, 7], "logprobs": CANDIDATES[1:]}]}
ECHO = {
    "tokens": ["a", " b", " c"],
    "token_logprobs": VALUES,
    "top_logprobs": [None, {" b": -0.5}, {" c": -1.25}],
    "text_offset": [0, 1, 3],
}


def parsed(answer: Any) -> EngineSequence:
    (sequence,) = parse_logprobs(json.dumps(answer))
    return sequence


@pytest.mark.parametrize(
    ("answer", "form"),
    [
        ({"token_ids": IDS, "logprobs": VALUES}, "plain"),
        ({"token_ids": IDS, "logprobs": VALUES[1:], "top_logprobs": []}, "plain"),
        ({"prompt_token_ids": IDS, "prompt_logprobs": CANDIDATES}, "vllm"),
        ({"choices": [{"prompt_token_ids": IDS, "prompt_logprobs": CANDIDATES, "token_ids": [], "logprobs": None}]}, "vllm"),
        (
            {
                "prompt_token_ids": IDS[:2],
                "prompt_logprobs": CANDIDATES[:2],
                "outputs": [{"token_ids": IDS[2:], "logprobs": [CANDIDATES[2]]}],
            },
            "vllm",
        ),
        ({"prompt_token_ids": [5], "choices": [{"logprobs": CHAT}]}, "openai"),
        ([{"prompt_token_ids": [5], "choices": [{"logprobs": CHAT}]}], "openai"),
        (GENERATED, "vllm"),
        ({key: value for key, value in GENERATED.items() if key != "prompt_logprobs"}, "vllm"),
        ({"prompt_token_ids": [5], "token_ids": [6, 7], "logprobs": VALUES[1:]}, "plain"),
        ({"prompt_token_ids": [5], "token_ids": IDS, "logprobs": VALUES}, "plain"),
        (
            {"choices": [{"logprobs": ECHO, "prompt_logprobs": CANDIDATES[:2], "prompt_token_ids": IDS[:2], "token_ids": IDS[2:]}]},
            "openai",
        ),
        (
            {
                "prompt_token_ids": IDS[:2],
                "prompt_logprobs": CANDIDATES[:2],
                "token_ids": [7],
                "logprobs": {"content": CHAT["content"][1:]},
            },
            "vllm",
        ),
    ],
)
def test_forms_are_recognised(answer: Any, form: str) -> None:
    sequence = parsed(answer)
    assert (sequence.form, sequence.token_ids, list(sequence.logprobs)) == (form, tuple(IDS), VALUES)


@pytest.mark.parametrize("outside", [{}, {"prompt_logprobs": CANDIDATES[:2], "prompt_token_ids": None, "token_ids": None}])
def test_texts_without_ids_are_left_to_the_tokenizer(outside: Any) -> None:
    """vLLM's server adds prompt_logprobs to every echo with log-probabilities."""
    sequence = parsed({"choices": [{"logprobs": ECHO} | outside]})
    assert (sequence.form, sequence.token_ids, sequence.tokens) == ("openai", (), ("a", " b", " c"))


def test_minus_infinity_is_a_forbidden_token() -> None:
    for written in ("-Infinity", "-9999.0", "-1e400"):
        (sequence,) = parse_logprobs(f'{{"token_ids": [1, 2, 3], "logprobs": [null, -0.5, {written}]}}')
        assert sequence.forbidden == (2,) and sequence.logprobs == (None, -0.5, None)


@pytest.mark.parametrize(
    "lines",
    [
        '{"token_ids": [1, 2], "logprobs": [null, NaN]}',
        '{"token_ids": [1, 2], "logprobs": [null, 0.5]}',
        '{"token_ids": [1, 2, 3], "logprobs": [-0.5]}',
        '{"token_ids": [1, -2], "logprobs": [-0.5]}',
        '{"token_ids": ["1", true], "logprobs": [-0.5]}',
        '{"token_ids": [1, 2], "logprobs": ["x"]}',
        '{"token_ids": [1], "logprobs": [null]}',
        '{"logprobs": [-0.5]}',
        "7",
        '{"error": {"message": "rate limit exceeded"}}',
        '{"choices": [{"logprobs": null}]}',
        json.dumps({"prompt_token_ids": [5, 6, 8], "prompt_logprobs": CANDIDATES}),
        json.dumps({"choices": [{"logprobs": CHAT}]}),
        '{"token_ids": ' + "[" * 5_000 + "]" * 5_000 + "}",
    ],
)
def test_one_sentence_names_the_line(lines: str) -> None:
    with pytest.raises(InvalidData) as caught:
        parse_logprobs(json.dumps({"token_ids": IDS, "logprobs": VALUES}) + "\n\n" + lines)
    assert "Line 3 of" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "lengths"),
    [
        ({"token_ids": IDS, "logprobs": VALUES[:1]}, "3 tokens and 1 log-probability"),
        ({"token_ids": IDS, "logprobs": [*VALUES, -1.0]}, "3 tokens and 4 log-probabilities"),
        ({"prompt_token_ids": IDS[:2], "prompt_logprobs": CANDIDATES}, "2 tokens and 3 log-probabilities"),
        ({"choices": [{"logprobs": ECHO | {"token_logprobs": VALUES[:2]}}]}, "3 tokens and 2 log-probabilities"),
    ],
)
def test_tokens_without_a_log_probability_each_are_counted(answer: Any, lengths: str) -> None:
    with pytest.raises(InvalidData, match=f"^Line 1 of the log-probabilities: It has {lengths}, and a sequence has 2 or more tokens with"):
        parsed(answer)


def test_a_large_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    with path.open("wb") as file:
        file.truncate(10**9)
    with pytest.raises(LimitExceeded, match="has 1,000,000,000 bytes, more than"):
        read_logprobs(str(path))


def test_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "engine.jsonl").write_text(json.dumps({"token_ids": IDS, "logprobs": VALUES}))
    with pytest.raises(InvalidData, match="is a folder: name a file"):
        read_logprobs(str(tmp_path))
