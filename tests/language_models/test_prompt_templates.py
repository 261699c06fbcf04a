"""Prompt templates: the text to the letter, and which tokens are the answer's, by each template's own rule."""

from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from analyzers.core.errors import InvalidData, InvalidRequest
from analyzers.language_models.builtin_text import Pair, builtin_pairs
from analyzers.language_models.prompts import Template, encode, resolved
from analyzers.language_models.samples import sample_folder
from tests.language_models.tokenizers import byte_tokenizer, fast

WITH = (
    "Below is an instruction that describes a task, paired with an input that provides further context. Write a response that "
    "appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### Input:\n2 and 2\n\n### Response:"
)
WITHOUT = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\nSay yes.\n\n### Response:"
)
EMPTY = (
    "Below is an instruction that describes a task, paired with an input that provides further context. Write a response that "
    "appropriately completes the request.\n\n### Instruction:\nSay yes.\n\n### Input:\n\n\n### Response:"
)
SUM, YES = Pair("Add.", "2 and 2", "4"), Pair("Say yes.", "", "yes")


@pytest.mark.parametrize(
    ("template", "pair", "prompt"),
    [
        ("alpaca", SUM, WITH),
        ("alpaca", YES, WITHOUT),
        ("alpaca-input", SUM, WITH),
        ("alpaca-input", YES, EMPTY),
        ("plain", SUM, "Add.\n2 and 2\n\n"),
        ("plain", YES, "Say yes.\n\n"),
    ],
)
def test_the_text_of_each_template(template: Template, pair: Pair, prompt: str) -> None:
    inner = byte_tokenizer(eos_token="</s>")
    sample = encode(inner, [pair], 1_000, template)[0]
    assert sample.text == prompt + pair.output
    assert inner.decode(list(sample.token_ids)) == prompt + pair.output + "</s>"
    assert inner.decode(list(sample.token_ids[sample.answer_start :])) == pair.output + "</s>"


def test_alpaca_answers_begin_after_as_many_tokens_as_the_prompt_has() -> None:
    """As in the training code of Stanford Alpaca: the labels of the first len(prompt) tokens are ignored."""
    tokenizer: Any = AutoTokenizer.from_pretrained(sample_folder("tiny-fp32"))
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    pairs = builtin_pairs()[::5]
    for pair, sample in zip(pairs, encode(tokenizer, pairs, 2_000, "alpaca"), strict=True):
        prompt = sample.text[: len(sample.text) - len(pair.output)]
        assert prompt.endswith("### Response:") and ("### Input:" in prompt) == bool(pair.input)
        token_ids = tokenizer(prompt + pair.output + tokenizer.eos_token)["input_ids"]
        assert list(sample.token_ids) == token_ids
        assert sample.answer_start == len(tokenizer(prompt)["input_ids"])


def test_a_token_across_the_boundary_is_the_prompts_by_alpacas_rule() -> None:
    letters = sorted(set(EMPTY) | set("b"))
    vocabulary = {letter: number for number, letter in enumerate([*letters, ":b"])}
    inner = fast(Tokenizer(models.BPE(vocab=vocabulary, merges=[(":", "b")])))
    tokenizer = inner
    sample = encode(tokenizer, [Pair("Say yes.", "", "bb")], 1_000, "alpaca")[0]
    assert sample.token_ids[-2:] == (vocabulary[":b"], vocabulary["b"])
    assert sample.answer_start == len(sample.token_ids) - 1 == len(WITHOUT)
    with pytest.raises(InvalidData, match="The answer of sample 0 has no tokens"):
        encode(tokenizer, [Pair("Say yes.", "", "b")], 1_000, "alpaca")


def test_without_a_chat_template_auto_is_plain_and_chat_is_refused() -> None:
    tokenizer = byte_tokenizer(eos_token="</s>")
    assert resolved("auto", tokenizer) == "plain"
    assert encode(tokenizer, [SUM], 100) == encode(tokenizer, [SUM], 100, "plain")
    with pytest.raises(InvalidRequest, match="has no chat template: choose the template plain or alpaca"):
        encode(tokenizer, [SUM], 100, "chat")
