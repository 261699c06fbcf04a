"""From instruction and answer to tokens: prompts, where the answer begins, batches padded on the right."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

from analyzers.checkpoints import quoted
from analyzers.errors import InvalidCheckpoint, InvalidData
from analyzers.language_models.builtin_text import Pair
from analyzers.language_models.tokenizer import Tokenizer

IGNORED = -100
"""Label of a token that is not asked for."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A sample as tokens: those from ``answer_start`` on are the answer. truncated: it was longer. text: all of it, cut off or not."""

    token_ids: tuple[int, ...]
    answer_start: int
    text: str
    truncated: bool


@dataclass(frozen=True, eq=False, slots=True)
class Batch:
    """Samples padded on the right. token_ids, labels: (S, L) int64; labels are the tokens of the answers, else IGNORED.

    lengths: tokens of each sample. There is no attention mask: what is causal never looks at padding on the right.
    """

    token_ids: Tensor
    labels: Tensor
    lengths: tuple[int, ...]

    def part(self, samples: Sequence[int]) -> "Batch":
        """Some of its samples, padded to the longest of them."""
        lengths = tuple(self.lengths[sample] for sample in samples)
        rows = torch.tensor(samples, device=self.token_ids.device)
        return Batch(self.token_ids[rows, : max(lengths)], self.labels[rows, : max(lengths)], lengths)


def encode(tokenizer: Tokenizer, pairs: Sequence[Pair], max_length: int) -> list[Encoded]:
    """Each pair as tokens: laid out by the tokenizer's chat template where it has one, else `Pair.prompt`, the answer, end of text.

    Prompt and answer are one text, tokenized once; a token belongs to the answer if any of its characters does. Where there are more than
    ``max_length`` tokens (at least 2), the answer is cut off behind what fits after the prompt, or half of them if that is more, and what
    is too much of the prompt is cut off in front.
    Raises InvalidData for a sample whose answer has no tokens, with its number (from 0) and where it stands; InvalidCheckpoint for a
    tokenizer that tells no offsets; what the methods of `Tokenizer` raise.
    """
    if not tokenizer.tells_offsets:
        raise InvalidCheckpoint(
            "The tokenizer does not tell which characters a token stands for: it has no tokenizer.json that can be read."
        )
    laid_out = _chats(tokenizer, pairs) if tokenizer.has_template else [_plain(pair) for pair in pairs]
    return [_encode(tokenizer, pair, number, *laid_out[number], max_length) for number, pair in enumerate(pairs)]


def collate(encoded: Sequence[Encoded], device: str | torch.device) -> Batch:
    """Samples as one batch. A row is filled up with its own first token: any would do, and that one the model certainly knows."""
    length = max(len(sample.token_ids) for sample in encoded)
    token_ids = torch.tensor([[*each.token_ids, *[each.token_ids[0]] * (length - len(each.token_ids))] for each in encoded])
    lengths = torch.tensor([len(each.token_ids) for each in encoded])
    starts = torch.tensor([each.answer_start for each in encoded])
    places = torch.arange(length)
    labels = torch.where((places < lengths[:, None]) & (places >= starts[:, None]), token_ids, IGNORED)
    return Batch(token_ids.to(device), labels.to(device), tuple(lengths.tolist()))


def _encode(tokenizer: Tokenizer, pair: Pair, number: int, text: str, start: int, stop: int, max_length: int) -> Encoded:
    tokens = tokenizer.encode(text, special=not tokenizer.has_template, offsets=True)
    token_ids = tokens.token_ids
    inside = [
        place
        for place, (first, last) in enumerate(zip(tokens.starts, tokens.stops, strict=True))
        if first < stop and last > max(start, first)
    ]
    if not inside or inside[-1] == 0:  # nothing comes before a first token, so that nothing predicts it
        named = f"sample {number} ({pair.where})" if pair.where else f"sample {number}"
        raise InvalidData(f"The answer of {named} has no tokens: {quoted(pair.output)}.")
    end_of_text = tokenizer.end_of_text
    if not tokenizer.has_template and end_of_text is not None and token_ids[-1] != end_of_text:
        token_ids.append(end_of_text)
    answer_start = max(1, inside[0])
    whole = len(token_ids)
    if whole > max_length:
        answer = token_ids[answer_start:][: max(max_length - answer_start, max_length // 2)]
        prompt = token_ids[:answer_start][-(max_length - len(answer)) :]
        token_ids, answer_start = prompt + answer, len(prompt)
    return Encoded(tuple(token_ids), answer_start, text, whole > max_length)


def _plain(pair: Pair) -> tuple[str, int, int]:
    text = pair.prompt + pair.output
    return text, len(pair.prompt), len(text)


def _chats(tokenizer: Tokenizer, pairs: Sequence[Pair]) -> list[tuple[str, int, int]]:
    """Each conversation as text, and where in it the answer begins and ends: where it differs from one with another answer.

    The answer itself may be found in what the template puts around it, and the template may strip it.
    """
    letters = ("\ue000", "\ue001", "\ue002")
    others = [next(letter for letter in letters if letter not in (pair.output[:1], pair.output[-1:])) for pair in pairs]
    answers = [_messages(pair, answer) for pair, other in zip(pairs, others, strict=True) for answer in (pair.output, other)]
    texts = tokenizer.lay_out(answers)
    return [_found(*each) for each in zip(texts[::2], texts[1::2], others, strict=True)]


def _messages(pair: Pair, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": pair.prompt.strip()}, {"role": "assistant", "content": answer}]


def _found(text: str, beside: str, other: str) -> tuple[str, int, int]:
    if other not in beside:
        raise InvalidCheckpoint("The tokenizer's chat template leaves out the answer, so that its tokens cannot be told.")
    start = _in_common(text, beside)
    stop = len(text) - _in_common(text[start:][::-1], beside[start:][::-1])
    return text.rstrip(), start, stop


def _in_common(first: str, second: str) -> int:
    """How many characters both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
