"""Formats instructions and answers by a prompt template, tokenizes them, and finds the tokens of the answer.

Runs in a limited process, without torch: tokenizer and chat template are a repository's. ``tokenizer``: one of transformers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

from analyzers.core.errors import InvalidCheckpoint, InvalidData, InvalidRequest, LimitExceeded
from analyzers.core.terminal import quoted
from analyzers.language_models.builtin_text import Pair

Template = Literal["auto", "plain", "alpaca", "alpaca-input", "chat"]
"""plain: `Pair.prompt`, then the answer. alpaca: the format of Stanford Alpaca. alpaca-input: its variant with an input, used even if the
input is empty. chat: the tokenizer's own chat template. auto: chat if the tokenizer has a chat template, otherwise plain.
"""

_REQUEST = "Write a response that appropriately completes the request.\n\n### Instruction:\n"
_WITH_INPUT = "Below is an instruction that describes a task, paired with an input that provides further context. " + _REQUEST
_WITHOUT_INPUT = "Below is an instruction that describes a task. " + _REQUEST
_TEMPLATE_CHARACTERS = 100_000  # What a chat template may add to a conversation.


@dataclass(frozen=True, slots=True)
class Encoded:
    """A tokenized sample: tokens from ``answer_start`` on are the answer.

    truncated: the sample was shortened. text: the full text, even if truncated.
    """

    token_ids: tuple[int, ...]
    answer_start: int
    text: str
    truncated: bool


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


def resolved(template: Template, tokenizer: Any) -> Template:
    """Resolve ``template`` for this tokenizer, never to "auto". Raises InvalidRequest for "chat" if there is no chat template."""
    if template == "auto":
        return "chat" if tokenizer.chat_template else "plain"
    if template == "chat" and not tokenizer.chat_template:
        raise InvalidRequest("This model's tokenizer has no chat template: choose the template plain or alpaca.")
    return template


def encode(tokenizer: Any, pairs: Sequence[Pair], max_length: int, template: Template = "auto") -> list[Encoded]:
    """Tokenize each pair, formatted by ``template``; appends the end of text unless a chat template wrote the text.

    Prompt and answer are tokenized as one text. A token belongs to the answer if any of its characters does; with the Alpaca templates, as
    in their source, if its index is at least the number of tokens of the prompt alone. A sample of more than ``max_length`` tokens (at
    least 2) is truncated: the answer at its end, to what fits after the prompt or half of ``max_length``, whichever is more; the prompt at
    its start.
    Raises InvalidData for a sample whose answer has no tokens, with its index (from 0) and source location; InvalidCheckpoint for a
    tokenizer without offsets, and a chat template that fails or omits the answer; LimitExceeded for one that writes too much.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise InvalidCheckpoint("The tokenizer does not report which characters a token covers: it has no readable tokenizer.json.")
    texts = _laid_out(resolved(template, tokenizer), tokenizer, pairs)
    return [_encode(tokenizer, pair, number, text, max_length) for number, (pair, text) in enumerate(zip(pairs, texts, strict=True))]


def _encode(tokenizer: Any, pair: Pair, number: int, laid_out: LaidOut, max_length: int) -> Encoded:
    found = tokenizer(laid_out.text, truncation=False, verbose=False, add_special_tokens=laid_out.special, return_offsets_mapping=True)
    token_ids, end_of_text = list(found["input_ids"]), tokenizer.eos_token_id
    inside = [
        index for index, (first, last) in enumerate(found["offset_mapping"]) if first < laid_out.stop and last > max(laid_out.start, first)
    ]
    if laid_out.special and isinstance(end_of_text, int) and token_ids[-1] != end_of_text:
        token_ids.append(end_of_text)
    if not inside or inside[-1] == 0:  # the first token has no predecessor to predict it
        raise _no_answer(pair, number)
    answer_start = max(1, inside[0])
    if laid_out.by_prompt:  # without the end of text that some tokenizers append
        prompt = tokenizer(laid_out.text[: laid_out.start], truncation=False, verbose=False)["input_ids"]
        answer_start = len(prompt) - (prompt[-1] == end_of_text)
    if answer_start >= len(token_ids):
        raise _no_answer(pair, number)
    whole = len(token_ids)
    if whole > max_length:
        answer = token_ids[answer_start:][: max(max_length - answer_start, max_length // 2)]
        before = token_ids[:answer_start][-(max_length - len(answer)) :]
        token_ids, answer_start = before + answer, len(before)
    return Encoded(tuple(token_ids), answer_start, laid_out.text, whole > max_length)


def _no_answer(pair: Pair, number: int) -> InvalidData:
    named = f"sample {number} ({pair.where})" if pair.where else f"sample {number}"
    return InvalidData(f"The answer of {named} has no tokens: {quoted(pair.output)}.")


def _laid_out(template: Template, tokenizer: Any, pairs: Sequence[Pair]) -> list[LaidOut]:
    """Format each pair as text by a `resolved` template."""
    if template == "chat":
        return [_chat(tokenizer, pair) for pair in pairs]
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


def _chat(tokenizer: Any, pair: Pair) -> LaidOut:
    """Format a pair by the chat template, and locate the answer.

    It is located by comparing the text with that for a different answer: the template may contain the same words, or strip the answer.
    """
    other = next(letter for letter in ("\ue000", "\ue001", "\ue002") if letter not in (pair.output[:1], pair.output[-1:]))
    text, other_text = (_conversation(tokenizer, pair, answer) for answer in (pair.output, other))
    if other not in other_text:
        raise InvalidCheckpoint("The tokenizer's chat template leaves out the answer, so its tokens cannot be identified.")
    start = common_prefix(text, other_text)
    stop = len(text) - common_prefix(text[start:][::-1], other_text[start:][::-1])
    return LaidOut(text.rstrip(), start, stop, special=False)


def _conversation(tokenizer: Any, pair: Pair, answer: str) -> str:
    from jinja2 import TemplateError

    messages = [{"role": "user", "content": pair.prompt.strip()}, {"role": "assistant", "content": answer}]
    try:
        text: str = tokenizer.apply_chat_template(messages, tokenize=False)
    except MemoryError:
        raise
    except Exception as error:
        why = str(error) if isinstance(error, TemplateError) else type(error).__name__
        raise InvalidCheckpoint(f"The tokenizer's chat template cannot be used: {quoted(why, 200)}.") from None
    if len(text) > _TEMPLATE_CHARACTERS + sum(len(message["content"]) for message in messages):
        raise LimitExceeded(f"The tokenizer's chat template adds more than {_TEMPLATE_CHARACTERS:,} characters to a sample.")
    return text


def common_prefix(first: str, second: str) -> int:
    """Return the length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
