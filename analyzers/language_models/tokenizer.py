"""Runs a checkpoint's tokenizer in a bounded process, built from its own files only, without repository code."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from analyzers.checkpoints import MemoryRepository, Repository, quoted, read_range
from analyzers.core import limits
from analyzers.core.errors import InvalidCheckpoint, InvalidRequest, LimitExceeded
from analyzers.core.untrusted_json import InvalidJson, JsonTooLarge, parse_json
from analyzers.language_models.bounded_process import Bounded, ProgramFailed

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

TOKENIZER_BYTES = 100_000_000  # Each tokenizer file is parsed in memory; the largest have 35 MB.
_TOKENS_PER_BYTE = 8  # A tokenizer may expand a text; real ones make less than one token per byte.
_TEMPLATE_CHARACTERS = 100_000  # What a chat template may add to a conversation.

Conversation = Sequence[Mapping[str, str]]

_SETTINGS = "tokenizer_config.json"
_FILES = (
    "tokenizer.json", _SETTINGS, "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "vocab.txt",
    "chat_template.jinja",
)  # fmt: skip
# Keys of tokenizer_config.json that would run code or read other files.
_REMOVED = {"auto_map", "name_or_path", "tokenizer_file", "vocab_file", "merges_file", "chat_template_file", "fast_tokenizer_files"}
# Keys of config.json by which transformers chooses the tokenizer class.
_CHOICE = ("model_type", "model_name", "tokenizer_class", "_name_or_path")
_TEMPLATE = "The tokenizer's chat template"


@dataclass(frozen=True, slots=True)
class Tokenized:
    """A tokenized text. starts, stops: the character range of each token, if requested."""

    token_ids: list[int]
    starts: list[int]
    stops: list[int]


class Tokenizer:
    """A tokenizer for the files in a folder. Close it after use.

    size: number of tokens in the vocabulary. end_of_text: id of the end-of-text token, or None. has_template: whether there is a chat
    template. tells_offsets: whether it reports character offsets. Methods raise InvalidCheckpoint if the tokenizer fails, and LimitExceeded
    if it exceeds the time or memory of `Bounded`, or produces more tokens than _TOKENS_PER_BYTE allows.
    """

    def __init__(self, folder: Path, config: "PreTrainedConfig") -> None:
        named = {name: value for name in _CHOICE if isinstance(value := getattr(config, name, None), str)}
        self._process = Bounded()
        try:
            described = self._process.ask("open", folder=str(folder), config=named)
        except BaseException as error:
            self._process.close()
            if not isinstance(error, ProgramFailed):
                raise
            if error.failed == "said":  # the message contains local paths
                raise InvalidCheckpoint(
                    "The tokenizer's files cannot be used: they are damaged, or need code from their repository."
                ) from None
            raise _error("The tokenizer", "", error) from None
        self.size: int = described["size"]
        self.end_of_text: int | None = described["end_of_text"]
        self.has_template: bool = described["has_template"]
        self.tells_offsets: bool = described["tells_offsets"]

    def encode(self, text: str, *, special: bool = True, offsets: bool = False) -> Tokenized:
        """Tokenize a text of any length. special: add the tokenizer's special tokens."""
        most = _TOKENS_PER_BYTE * (len(text) * 4 + 100)
        with _explained("The tokenizer", text):
            return Tokenized(*self._process.ask("encode", text=text, special=special, offsets=offsets, most=most))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode tokens to text."""
        with _explained("The tokenizer"):
            text: str = self._process.ask("decode", token_ids=list(token_ids))
        return text

    def lay_out(self, conversations: Sequence[Conversation]) -> list[str]:
        """Render each conversation (messages with ``role`` and ``content``) as text, with the chat template.

        Also raises LimitExceeded if the template adds more than _TEMPLATE_CHARACTERS to a conversation.
        """
        with _explained(_TEMPLATE):
            texts: list[str] = self._process.ask("lay_out", conversations=conversations, most=_TEMPLATE_CHARACTERS)
        return texts

    def close(self) -> None:
        """End the tokenizer's process. Idempotent."""
        self._process.close()


def load_tokenizer(repository: Repository, config: "PreTrainedConfig", folder: Path) -> Tokenizer:
    """Load the tokenizer; its files are copied into ``folder``.

    Raises InvalidCheckpoint if there is none, or if it needs code or a sentencepiece model; LimitExceeded.
    """
    if "tokenizer.json" not in repository.files and not {"vocab.json", "merges.txt"} <= set(repository.files):
        if isinstance(repository, MemoryRepository):
            raise InvalidRequest("The model in memory came without a tokenizer: pass tokenizer=, or the samples as token_ids=.")
        found = "" if "tokenizer.model" not in repository.files else ", only a tokenizer.model, which is not read"
        raise InvalidCheckpoint(f"The checkpoint has no tokenizer (tokenizer.json){found}: name a model that has one.")
    for path in _FILES:
        if path in repository.files:
            (folder / path).write_bytes(_cleaned(_read(repository, path)) if path == _SETTINGS else _read(repository, path))
    return Tokenizer(folder, config)


@contextmanager
def _explained(what: str, text: str = "") -> Iterator[None]:
    """Context manager that translates ProgramFailed into this package's errors. text: the input."""
    try:
        yield
    except ProgramFailed as failed:
        raise _error(what, text, failed) from None


def _error(what: str, text: str, failed: ProgramFailed) -> InvalidCheckpoint | LimitExceeded:
    most = {
        "seconds": f"takes more than {limits.TOKENIZER_SECONDS:,} seconds",
        "bytes": f"takes more than {limits.TOKENIZER_MEMORY:,} bytes of memory",
        "characters": f"adds more than {_TEMPLATE_CHARACTERS:,} characters to a sample",
        "tokens": f"produces more than {_TOKENS_PER_BYTE:,} tokens per byte",
    }
    if failed.failed in most:
        on = f"On {quoted(text, 40)} " if text else ""
        return LimitExceeded(f"{on}{what[0].lower() if on else what[0]}{what[1:]} {most[failed.failed]}.")
    on = f" on {quoted(text, 40)}" if text else ""
    if failed.failed == "no template":
        return InvalidCheckpoint("The tokenizer has no chat template for plain conversations.")
    if failed.failed == "broke off":
        return InvalidCheckpoint(f"{what} cannot be used: it ended unexpectedly{on}.")
    why = quoted(failed.why, 200)
    return InvalidCheckpoint(f"{what} cannot be used: {why}." if what == _TEMPLATE else f"{what} fails{on}: {why}.")


def _read(repository: Repository, path: str) -> bytes:
    size = repository.files[path]
    if size > TOKENIZER_BYTES:
        raise LimitExceeded(f"{quoted(path)} has {size:,} bytes, more than {TOKENIZER_BYTES:,}.")
    file = repository.open(path)
    return read_range(file, 0, size)


def _cleaned(content: bytes) -> bytes:
    try:
        settings = parse_json(content, lenient=True)
    except JsonTooLarge as error:
        raise LimitExceeded(f"{_SETTINGS} {error}.") from None
    except InvalidJson:
        settings = None
    if not isinstance(settings, dict):
        raise InvalidCheckpoint(f"{_SETTINGS} is not a JSON object.")
    return json.dumps({name: value for name, value in settings.items() if name not in _REMOVED}).encode()
