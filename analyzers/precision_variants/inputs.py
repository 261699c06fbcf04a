"""What the model is run on: rows of tokens, all of the same length, cut from a text one after the other, so that nothing is padded."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch

from analyzers import limits
from analyzers.checkpoints import Access, LocalRepository, quoted, read_range
from analyzers.errors import InvalidData, LimitExceeded
from analyzers.language_models.builtin_text import Pair
from analyzers.language_models.data import instruction_pairs
from analyzers.language_models.ffn import text_config
from analyzers.language_models.load import OpenModel
from analyzers.language_models.prompts import encode
from analyzers.language_models.tokenizer import Tokenizer
from analyzers.precision_variants.report import PrecisionRequest
from analyzers.terminal import plural

_PREVIEW_TOKENS, _PREVIEW_CHARACTERS = 60, 240
_MANY_PAIRS = 1_024
_CHOICES = "builtin, random, a FILE.jsonl or FILE.txt (command line)"


@dataclass(frozen=True, slots=True)
class Tokens:
    """rows: (sequences, length) token ids. source, commit: as of `report.Inputs`. preview: how the first row begins."""

    rows: tuple[tuple[int, ...], ...]
    source: str
    commit: str | None
    preview: str


def tokens(request: PrecisionRequest, access: Access, opened: OpenModel) -> Tokens:
    """The rows that the request asks for; fewer, or one that is shorter, where the text is.

    Random tokens need no tokenizer. Raises InvalidData for what is no data or has fewer than two tokens, LimitExceeded, and what
    `OpenModel.tokenizer` does.
    """
    if request.data == "random" and request.text is None:
        generator = torch.Generator().manual_seed(request.seed)
        drawn = torch.randint(
            int(text_config(opened.outline).vocab_size), (request.sequences, request.sequence_length), generator=generator
        )
        return Tokens(tuple(map(tuple, drawn.tolist())), "random", None, "")
    tokenizer = opened.tokenizer
    stream, source, commit = _stream(request, access, tokenizer)
    every = list(islice(stream, request.sequences * request.sequence_length))
    if len(every) < 2:
        are = "is" if len(every) == 1 else "are"
        raise InvalidData(f"There {are} {plural(len(every), 'token')} in {quoted(source)}, and at least 2 are needed to predict one.")
    length = min(request.sequence_length, len(every))
    rows = tuple(tuple(every[first : first + length]) for first in range(0, len(every) - length + 1, length))
    return Tokens(rows, source, commit, tokenizer.decode(rows[0][:_PREVIEW_TOKENS])[:_PREVIEW_CHARACTERS])


def advantages(request: PrecisionRequest, sequences: int) -> tuple[float, ...]:
    """One for each sequence: those given, or drawn from a normal distribution; none for cross-entropy."""
    if request.loss == "ce":
        return ()
    if request.advantages:
        if len(request.advantages) != sequences:
            raise InvalidData(f"{len(request.advantages)} advantages were given, but the text has {sequences} sequences of that length.")
        return request.advantages
    generator = torch.Generator().manual_seed(request.seed)
    return tuple(torch.randn(sequences, generator=generator).tolist())


def _stream(request: PrecisionRequest, access: Access, tokenizer: Tokenizer) -> tuple[Iterator[int], str, str | None]:
    """Token by token, where it is from, and at which commit or hash."""
    if request.text is not None:
        return _of_text(request.text, tokenizer), "text", _digest(request.text)
    if request.data.endswith(".txt"):
        if not access.local:
            raise InvalidData(f"{quoted(request.data)} is a file, which works on the command line only: paste its text instead.")
        text = _read(request.data)
        if not text.strip():
            raise InvalidData(f"There is no text in {quoted(request.data)}: give a file with some.")
        return _of_text(text, tokenizer), request.data.rpartition("/")[2], _digest(text)
    found = instruction_pairs(request.data, access, _MANY_PAIRS, _CHOICES)
    return _of_pairs(found.pairs, tokenizer), found.source, found.commit


def _of_text(text: str, tokenizer: Tokenizer) -> Iterator[int]:
    yield from tokenizer.encode(text).token_ids


def _of_pairs(pairs: tuple[Pair, ...], tokenizer: Tokenizer) -> Iterator[int]:
    for encoded in encode(tokenizer, pairs, limits.PAIR_CHARACTERS):
        yield from encoded.token_ids


def _read(path: str) -> str:
    repository = LocalRepository(path)
    (name, size), *_ = repository.files.items()
    if size > limits.PRECISION_CHARACTERS:
        raise LimitExceeded(f"The text has {size:,} bytes, more than {limits.PRECISION_CHARACTERS:,} (MANTISSA_PRECISION_CHARACTERS).")
    file = repository.open(name)
    try:
        return read_range(file, 0, size).decode()
    except UnicodeDecodeError:
        raise InvalidData(f"{quoted(path)} is no text in UTF-8.") from None
    finally:
        file.close()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
