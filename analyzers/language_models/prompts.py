"""Turns instructions and answers into tokens: the start of the answer, and right-padded batches."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from analyzers.checkpoints import quoted
from analyzers.core.errors import InvalidCheckpoint, InvalidData
from analyzers.language_models.builtin_text import Pair
from analyzers.language_models.prompt_templates import LaidOut, Template, lay_out, resolved
from analyzers.language_models.tokenizer import Tokenizer

IGNORED = -100
"""Label of a token without a loss: prompt or padding."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A tokenized sample: tokens from ``answer_start`` on are the answer.

    truncated: the sample was shortened. text: the full text, even if truncated.
    """

    token_ids: tuple[int, ...]
    answer_start: int
    text: str
    truncated: bool


@dataclass(frozen=True, eq=False, slots=True)
class Batch:
    """A batch of right-padded samples. token_ids, labels: (S, L) int64; labels are the answer's tokens, otherwise IGNORED.

    lengths: tokens per sample. There is no attention mask: causal attention never reaches right padding.
    """

    token_ids: Tensor
    labels: Tensor
    lengths: tuple[int, ...]

    def part(self, samples: Sequence[int]) -> "Batch":
        """Return the batch of these samples only, padded to the longest of them."""
        lengths = tuple(self.lengths[sample] for sample in samples)
        rows = torch.tensor(samples, device=self.token_ids.device)
        return Batch(self.token_ids[rows, : max(lengths)], self.labels[rows, : max(lengths)], lengths)


def encode(tokenizer: Tokenizer, pairs: Sequence[Pair], max_length: int, template: Template = "auto") -> list[Encoded]:
    """Tokenize each pair, formatted by ``template`` (`prompt_templates.lay_out`); appends the end of text unless a chat template wrote the
    text.

    Prompt and answer are tokenized as one text. A token belongs to the answer if any of its characters does; with the Alpaca templates, as
    in their source, if its index is at least the number of tokens of the prompt alone. A sample of more than ``max_length`` tokens (at
    least 2) is truncated: the answer at its end, to what fits after the prompt or half of ``max_length``, whichever is more; the prompt at
    its start.
    Raises InvalidData for a sample whose answer has no tokens, with its index (from 0) and source location; InvalidCheckpoint for a
    tokenizer without offsets; and the errors of `prompt_templates.resolved`, `prompt_templates.lay_out` and the methods of `Tokenizer`.
    """
    if not tokenizer.tells_offsets:
        raise InvalidCheckpoint("The tokenizer does not report which characters a token covers: it has no readable tokenizer.json.")
    texts = lay_out(resolved(template, tokenizer), tokenizer, pairs)
    return [_encode(tokenizer, pair, number, text, max_length) for number, (pair, text) in enumerate(zip(pairs, texts, strict=True))]


def collate(encoded: Sequence[Encoded], device: str | torch.device) -> Batch:
    """Combine samples into a batch. Rows are padded with their own first token, which is certainly in the vocabulary."""
    length = max(len(sample.token_ids) for sample in encoded)
    token_ids = torch.tensor([[*each.token_ids, *[each.token_ids[0]] * (length - len(each.token_ids))] for each in encoded])
    lengths = torch.tensor([len(each.token_ids) for each in encoded])
    starts = torch.tensor([each.answer_start for each in encoded])
    positions = torch.arange(length)
    labels = torch.where((positions < lengths[:, None]) & (positions >= starts[:, None]), token_ids, IGNORED)
    return Batch(token_ids.to(device), labels.to(device), tuple(lengths.tolist()))


def _encode(tokenizer: Tokenizer, pair: Pair, number: int, laid_out: LaidOut, max_length: int) -> Encoded:
    tokens = tokenizer.encode(laid_out.text, special=laid_out.special, offsets=True)
    token_ids, end_of_text = tokens.token_ids, tokenizer.end_of_text
    inside = [
        index
        for index, (first, last) in enumerate(zip(tokens.starts, tokens.stops, strict=True))
        if first < laid_out.stop and last > max(laid_out.start, first)
    ]
    if laid_out.special and end_of_text is not None and token_ids[-1] != end_of_text:
        token_ids.append(end_of_text)
    if not inside or inside[-1] == 0:  # the first token has no predecessor to predict it
        raise _no_answer(pair, number)
    answer_start = _prompt_tokens(tokenizer, laid_out) if laid_out.by_prompt else max(1, inside[0])
    if answer_start >= len(token_ids):
        raise _no_answer(pair, number)
    whole = len(token_ids)
    if whole > max_length:
        answer = token_ids[answer_start:][: max(max_length - answer_start, max_length // 2)]
        prompt = token_ids[:answer_start][-(max_length - len(answer)) :]
        token_ids, answer_start = prompt + answer, len(prompt)
    return Encoded(tuple(token_ids), answer_start, laid_out.text, whole > max_length)


def _prompt_tokens(tokenizer: Tokenizer, laid_out: LaidOut) -> int:
    """Count the tokens of the prompt alone, without the end of text that some tokenizers append."""
    token_ids = tokenizer.encode(laid_out.text[: laid_out.start]).token_ids
    return len(token_ids) - (token_ids[-1] == tokenizer.end_of_text)


def _no_answer(pair: Pair, number: int) -> InvalidData:
    named = f"sample {number} ({pair.where})" if pair.where else f"sample {number}"
    return InvalidData(f"The answer of {named} has no tokens: {quoted(pair.output)}.")
