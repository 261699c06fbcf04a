"""Prompts, where the answer begins, and batches."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, processors
from transformers import AutoTokenizer, CTRLTokenizer, PreTrainedTokenizerFast

from analyzers.core.errors import InvalidCheckpoint, InvalidData
from analyzers.language_models.batch import IGNORED, collate
from analyzers.language_models.builtin_text import Pair, builtin_pairs
from analyzers.language_models.prompts import Encoded, encode
from analyzers.language_models.samples import sample_folder
from tests.language_models.tokenizers import byte_tokenizer, fast

CHAT = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{% if message['role'] == 'assistant' %}<think></think>{% endif %}"
    "{{ message['content'] | trim }}<|end|>\n{% endfor %}"
)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    loaded: Any = AutoTokenizer.from_pretrained(sample_folder("tiny-fp32"))
    assert isinstance(loaded, PreTrainedTokenizerFast)
    return loaded


def decoded(tokenizer: PreTrainedTokenizerFast, token_ids: tuple[int, ...]) -> str:
    text = tokenizer.decode(list(token_ids))
    assert isinstance(text, str)
    return text


def test_the_answer_is_found_in_the_text_tokenized_once(tokenizer: PreTrainedTokenizerFast) -> None:
    pairs = builtin_pairs()
    for pair, sample in zip(pairs, encode(tokenizer, pairs, 512), strict=True):
        whole = tokenizer(pair.prompt + pair.output)["input_ids"]
        assert list(sample.token_ids) == [*whole, tokenizer.eos_token_id]
        answer = decoded(tokenizer, sample.token_ids[sample.answer_start : -1])
        assert answer.endswith(pair.output) and not answer[: -len(pair.output)].strip()  # a token may begin in the blank line before
        assert decoded(tokenizer, sample.token_ids[: sample.answer_start]).rstrip().endswith(pair.prompt.rstrip())
        assert sample.text == pair.prompt + pair.output and not sample.truncated


def test_a_token_across_the_boundary_is_the_answers() -> None:
    inner = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "\n": 2, "\nb": 3, "\nb\n": 4}, merges=[("\n", "b")]))
    found = encode(fast(inner), [Pair("a", "", "bb")], 16)[0]
    assert found.token_ids == (0, 2, 3, 1)  # a, new line, (new line and b), b
    assert found.answer_start == 2


def test_a_chat_template_lays_out_the_conversation(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = CHAT
    pair = Pair("What is it?", "cats", " What is it? ")
    sample = encode(tokenizer, [pair], 512)[0]
    assert sample.text == "<|user|>\nWhat is it?\ncats<|end|>\n<|assistant|>\n<think></think>What is it?<|end|>"
    assert decoded(tokenizer, sample.token_ids[sample.answer_start :]).lstrip(">") == "What is it?<|end|>"
    assert sample.token_ids.count(0) == 0  # the template says what stands first


@pytest.mark.parametrize("answer", ["end", "|", ">", "assistant", "user", "think></think>end", " end ", "\ue000", "<|end|>"])
def test_an_answer_that_the_template_says_too(answer: str) -> None:
    inner = byte_tokenizer()
    inner.chat_template = CHAT
    sample = encode(inner, [Pair("Say it.", "", answer)], 512)[0]
    assert decoded(inner, sample.token_ids[sample.answer_start :]) == answer.strip() + "<|end|>"


def test_what_special_tokens_a_tokenizer_adds_are_counted() -> None:
    inner = byte_tokenizer(bos_token="<s>", eos_token="</s>")
    first, last = inner.bos_token_id, inner.eos_token_id
    inner.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", first), ("</s>", last)]
    )
    sample = encode(inner, [Pair("ab", "", "c")], 16)[0]
    assert (sample.token_ids[0], sample.token_ids[-1], sample.answer_start, len(sample.token_ids)) == (first, last, 5, 7)


@pytest.mark.parametrize("answer", ["", "<gone>"])
def test_an_answer_without_tokens_is_named(answer: str) -> None:
    inner = byte_tokenizer()
    inner.backend_tokenizer.normalizer = normalizers.Replace("<gone>", "")
    with pytest.raises(InvalidData, match=r"The answer of sample 1 \(line 7 of x\) has no tokens: \"(<gone>)?\"\."):
        encode(inner, [Pair("a", "", "b"), Pair("a", "", answer, "line 7 of x")], 16)


def test_the_first_token_of_all_is_never_asked_for() -> None:
    inner = byte_tokenizer()
    inner.chat_template = "{{ messages[1]['content'] }}"
    assert encode(inner, [Pair("a", "", "bc")], 16)[0].answer_start == 1
    with pytest.raises(InvalidData, match="The answer of sample 0 has"):
        encode(inner, [Pair("a", "", "b")], 16)


@pytest.mark.parametrize(
    ("prompt", "answer", "kept"),
    [
        (4, 3, ("pppp", "aaa")),
        (4, 30, ("pppp", "aaaa")),  # the answer is cut off behind
        (7, 30, ("pppp", "aaaa")),  # and leaves the prompt half of the room at most
        (30, 2, ("pppppp", "aa")),  # what is too much of the prompt is cut off in front
        (30, 10_000, ("pppp", "aaaa")),
    ],
)
def test_what_is_too_long_is_cut_off(prompt: int, answer: int, kept: tuple[str, str]) -> None:
    inner = byte_tokenizer()
    inner.chat_template = "{{ messages[0]['content'] }}{{ messages[1]['content'] }}"
    sample = encode(inner, [Pair("p" * prompt, "", "a" * answer)], 8)[0]
    text = decoded(inner, sample.token_ids)
    assert (text[: sample.answer_start], text[sample.answer_start :]) == kept
    assert sample.truncated == (prompt + answer > 8)


def test_a_tokenizer_without_offsets(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({"a</w>": 0, "<unk>": 1}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    made: Any = CTRLTokenizer
    with pytest.raises(InvalidCheckpoint, match=r"tokenizer\.json"):
        encode(made(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt")), [Pair("a", "", "b")], 16)


def test_a_batch_is_padded_on_the_right() -> None:
    batch = collate([Encoded((5, 6, 7, 8), 2, "", False), Encoded((9, 4), 1, "", False)], "cpu")
    assert torch.equal(batch.token_ids, torch.tensor([[5, 6, 7, 8], [9, 4, 9, 9]]))
    assert torch.equal(batch.labels, torch.tensor([[IGNORED, IGNORED, 7, 8], [IGNORED, 4, IGNORED, IGNORED]]))
    assert batch.lengths == (4, 2)
