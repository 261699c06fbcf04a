"""Runs a checkpoint's tokenizer in a limited process, built from its own files only, without repository code."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzers.checkpoints import MemoryRepository, Repository, quoted, read_range
from analyzers.core.errors import InvalidCheckpoint, InvalidRequest, LimitExceeded
from analyzers.core.untrusted_json import InvalidJson, JsonTooLarge, parse_json
from analyzers.language_models.builtin_text import Pair
from analyzers.language_models.limited_process import limited_process
from analyzers.language_models.prompts import Encoded, Template

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

TOKENIZER_BYTES = 100_000_000  # Each tokenizer file is parsed in memory; the largest have 35 MB.
_SETTINGS = "tokenizer_config.json"
_FILES = (
    "tokenizer.json", _SETTINGS, "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "vocab.txt",
    "chat_template.jinja",
)  # fmt: skip
# Keys of tokenizer_config.json that would run code or read other files.
_REMOVED = {"auto_map", "name_or_path", "tokenizer_file", "vocab_file", "merges_file", "chat_template_file", "fast_tokenizer_files"}
# Keys of config.json by which transformers chooses the tokenizer class.
_CHOICE = ("model_type", "model_name", "tokenizer_class", "_name_or_path")


@dataclass(frozen=True, slots=True)
class Tokenized:
    """Samples, the template that was used, the one that "auto" chooses, and the number of tokens in the vocabulary."""

    samples: list[Encoded]
    template: Template
    automatic: Template
    vocabulary: int


class Tokenizer:
    """The tokenizer in a folder. Methods raise the errors of `LimitedProcess.ask`; InvalidCheckpoint if it cannot be loaded."""

    def __init__(self, folder: Path, config: "PreTrainedConfig") -> None:
        named = {name: value for name in _CHOICE if isinstance(value := getattr(config, name, None), str)}
        self._known = {"folder": str(folder), "config": named}

    def samples(self, pairs: Sequence[Pair], max_length: int, template: Template = "auto") -> Tokenized:
        """Encode pairs, see `prompts.encode`."""
        found = self._ask("samples", pairs=list(map(asdict, pairs)), max_length=max_length, template=template)
        samples = [Encoded(**each | {"token_ids": tuple(each["token_ids"])}) for each in found.pop("samples")]
        return Tokenized(samples, **found)

    def encode(self, texts: Sequence[str], most: int, special: bool = True) -> list[list[int]]:
        """Tokenize texts, of each at most the first ``most`` tokens. special: add the tokenizer's special tokens."""
        tokens: list[list[int]] = self._ask("encode", texts=texts, special=special, most=most)
        return tokens

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Decode rows of tokens to text."""
        texts: list[str] = self._ask("decode", rows=rows)
        return texts

    def _ask(self, question: str, **options: Any) -> Any:
        with limited_process("tokenizing") as process:
            return process.ask("The tokenizer", question, **self._known, **options)


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
            content = _read(repository, path)
            (folder / path).write_bytes(_cleaned(content) if path == _SETTINGS else content)
    return Tokenizer(folder, config)


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
