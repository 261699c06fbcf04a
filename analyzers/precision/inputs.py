"""The tokens of the runs: equally long rows cut from a text, so that nothing is padded; and the other inputs of the loss."""

import hashlib
from dataclasses import dataclass

import torch

from analyzers.checkpoints import Access, LocalRepository, quoted, read_range
from analyzers.core import limits
from analyzers.core.errors import InvalidData, LimitExceeded
from analyzers.core.terminal import plural
from analyzers.language_models.ffn import text_config
from analyzers.language_models.instruction_data import instruction_pairs
from analyzers.language_models.load import OpenModel
from analyzers.language_models.tokenizer import Tokenizer
from analyzers.precision.engine.runs import token_rows
from analyzers.precision.request import PrecisionRequest

_MANY_PAIRS = 1_024
_CHOICES = "builtin, random, a FILE.jsonl or FILE.txt (command line)"


@dataclass(frozen=True, slots=True)
class Tokens:
    """rows: (sequences, length) token ids. source, commit: as in `report.Inputs`. readable: whether they are a text's."""

    rows: tuple[tuple[int, ...], ...]
    source: str
    commit: str | None
    readable: bool = False


def tokens(request: PrecisionRequest, access: Access, opened: OpenModel) -> Tokens:
    """The requested rows; fewer, or a single shorter one, if the text is too short.

    Random tokens need no tokenizer. Raises InvalidData for unreadable data or fewer than two tokens, LimitExceeded, and the errors of
    `OpenModel.tokenizer`.
    """
    if request.logprobs:
        return _of_engine(request, opened)
    if request.token_ids:
        given = request.instructions()
        return Tokens(tuple(sample.token_ids for sample in request.encoded(opened)), given.source, given.commit)
    if request.data == "random" and request.text is None:
        generator = torch.Generator().manual_seed(request.seed)
        drawn = torch.randint(
            int(text_config(opened.outline).vocab_size), (request.sequences, request.sequence_length), generator=generator
        )
        return Tokens(tuple(map(tuple, drawn.tolist())), "random", None)
    most = request.sequences * request.sequence_length
    token_ids, source, commit = _stream(request, access, opened.tokenizer, most)
    if len(token_ids) < 2:
        raise InvalidData(f"{quoted(source)} has {plural(len(token_ids), 'token')}: at least 2 are needed to predict one.")
    length = min(request.sequence_length, len(token_ids))
    rows = tuple(tuple(token_ids[first : first + length]) for first in range(0, len(token_ids) - length + 1, length))
    return Tokens(rows, source, commit, readable=True)


def _of_engine(request: PrecisionRequest, opened: OpenModel) -> Tokens:
    """The longest of the engine's sequences, cut to equal length: the passes by layer run on them."""
    rows = sorted(token_rows(request.logprobs, opened), key=lambda row: -len(row))[: request.sequences]
    length = min(len(rows[-1]), request.sequence_length)
    return Tokens(tuple(row[:length] for row in rows), "logprobs", _digest(repr(rows)))


def advantages(request: PrecisionRequest, sequences: int) -> tuple[float, ...]:
    """One per sequence, given or drawn from a normal distribution; none for cross-entropy."""
    if request.loss == "ce":
        return ()
    if request.advantages:
        if len(request.advantages) != sequences:
            raise InvalidData(
                f"There are {len(request.advantages)} advantages, but the text has only {sequences} sequences of that length."
            )
        return request.advantages
    generator = torch.Generator().manual_seed(request.seed)
    return tuple(torch.randn(sequences, generator=generator).tolist())


def read_text(path: str) -> str:
    """A local text file in UTF-8. Raises CheckpointNotFound, InvalidData, LimitExceeded."""
    repository = LocalRepository(path)
    if not repository.single_file:
        raise InvalidData(f"{quoted(path)} is a folder: name a file.")
    ((name, size),) = repository.files.items()
    if size > limits.PRECISION_CHARACTERS:
        raise LimitExceeded(f"{quoted(path)} has {size:,} bytes, more than {limits.PRECISION_CHARACTERS:,}.")
    file = repository.open(name)
    try:
        return read_range(file, 0, size).decode()
    except UnicodeDecodeError:
        raise InvalidData(f"{quoted(path)} is not text in UTF-8.") from None


def _stream(request: PrecisionRequest, access: Access, tokenizer: Tokenizer, most: int) -> tuple[list[int], str, str | None]:
    """The first tokens of the text, its source, and its commit or hash."""
    if request.text is not None:
        return tokenizer.encode([request.text], most)[0], "text", _digest(request.text)
    if request.data.endswith(".txt"):
        if not access.local:
            raise InvalidData(f"{quoted(request.data)} is a file, which works on the command line only: paste its text instead.")
        text = read_text(request.data)
        if not text.strip():
            raise InvalidData(f"{quoted(request.data)} is empty: give a file with text.")
        return tokenizer.encode([text], most)[0], request.data.rpartition("/")[2], _digest(text)
    data = instruction_pairs(request.data, access, _MANY_PAIRS, _CHOICES)
    encoded = tokenizer.samples(data.pairs, limits.PAIR_CHARACTERS).samples
    return [token for each in encoded for token in each.token_ids][:most], data.source, data.commit


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
