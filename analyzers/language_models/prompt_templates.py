"""Formats an instruction and its answer as one text by a prompt template, with the position of the answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from analyzers.core.errors import InvalidCheckpoint, InvalidRequest
from analyzers.language_models.builtin_text import Pair
from analyzers.language_models.tokenizer import Tokenizer

Template = Literal["auto", "plain", "alpaca", "alpaca-input", "chat"]
"""plain: `Pair.prompt`, then the answer. alpaca: the format of Stanford Alpaca. alpaca-input: its variant with an input, used even if the
input is empty. chat: the tokenizer's own chat template. auto: chat if the tokenizer has a chat template, otherwise plain.
"""

_REQUEST = "Write a response that appropriately completes the request.\n\n### Instruction:\n"
_WITH_INPUT = "Below is an instruction that describes a task, paired with an input that provides further context. " + _REQUEST
_WITHOUT_INPUT = "Below is an instruction that describes a task. " + _REQUEST


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A sample as text. start, stop: character range of the answer.

    special: whether the tokenizer adds its special tokens and the end of text; a chat template writes them itself.
    by_prompt: whether the answer starts after as many tokens as the prompt alone has, the rule of Stanford Alpaca; otherwise it starts with
    the first token that has a character of the answer.
    """

    text: str
    start: int
    stop: int
    special: bool = True
    by_prompt: bool = False


def resolved(template: Template, tokenizer: Tokenizer) -> Template:
    """Resolve ``template`` for this tokenizer, never to "auto". Raises InvalidRequest for "chat" if there is no chat template."""
    if template == "auto":
        return "chat" if tokenizer.has_template else "plain"
    if template == "chat" and not tokenizer.has_template:
        raise InvalidRequest("This model's tokenizer has no chat template: choose the template plain or alpaca.")
    return template


def lay_out(template: Template, tokenizer: Tokenizer, pairs: Sequence[Pair]) -> list[LaidOut]:
    """Format each pair as text by a `resolved` template.

    Raises the errors of `Tokenizer.lay_out`, and InvalidCheckpoint for a chat template that omits the answer.
    """
    if template == "chat":
        return _chats(tokenizer, pairs)
    alpaca = template.startswith("alpaca")
    prompts = [_alpaca(pair, template == "alpaca-input") if alpaca else pair.prompt for pair in pairs]
    return [
        LaidOut(prompt + pair.output, len(prompt), len(prompt) + len(pair.output), by_prompt=alpaca)
        for prompt, pair in zip(prompts, pairs, strict=True)
    ]


def _alpaca(pair: Pair, always_input: bool) -> str:
    """Format the prompt of Stanford Alpaca (tatsu-lab/stanford_alpaca, ``PROMPT_DICT`` of train.py), verbatim: results depend on it.

    The answer follows "### Response:" immediately.
    """
    if pair.input or always_input:
        return f"{_WITH_INPUT}{pair.instruction}\n\n### Input:\n{pair.input}\n\n### Response:"
    return f"{_WITHOUT_INPUT}{pair.instruction}\n\n### Response:"


def _chats(tokenizer: Tokenizer, pairs: Sequence[Pair]) -> list[LaidOut]:
    """Format pairs by the chat template, and locate the answers.

    An answer is located by comparing the text with that for a different answer: the template may contain the same words, or strip the
    answer.
    """
    letters = ("\ue000", "\ue001", "\ue002")
    others = [next(letter for letter in letters if letter not in (pair.output[:1], pair.output[-1:])) for pair in pairs]
    answers = [_messages(pair, answer) for pair, other in zip(pairs, others, strict=True) for answer in (pair.output, other)]
    texts = tokenizer.lay_out(answers)
    return [_located(*each) for each in zip(texts[::2], texts[1::2], others, strict=True)]


def _messages(pair: Pair, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": pair.prompt.strip()}, {"role": "assistant", "content": answer}]


def _located(text: str, other_text: str, other: str) -> LaidOut:
    if other not in other_text:
        raise InvalidCheckpoint("The tokenizer's chat template leaves out the answer, so its tokens cannot be identified.")
    start = common_prefix(text, other_text)
    stop = len(text) - common_prefix(text[start:][::-1], other_text[start:][::-1])
    return LaidOut(text.rstrip(), start, stop, special=False)


def common_prefix(first: str, second: str) -> int:
    """Return the length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
