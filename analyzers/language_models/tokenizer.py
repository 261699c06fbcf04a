"""Runs a checkpoint's tokenizer in a limited process, built from its own files only, without repository code."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzers.checkpoints import MemoryRepository, Repository, quoted, read_range
from analyzers.core import limits
from analyzers.core.errors import InvalidCheckpoint, InvalidRequest, LimitExceeded
from analyzers.core.untrusted_json import InvalidJson, JsonTooLarge, parse_json
from analyzers.language_models.builtin_text import Pair
from analyzers.language_models.limited_call import Result, limited_call
from analyzers.language_models.prompts import Encoded, Template, encode, resolved

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
    """The tokenizer in a folder. Methods raise the errors of `limited_call`; InvalidCheckpoint if it cannot be loaded."""

    def __init__(self, folder: Path, config: "PreTrainedConfig") -> None:
        self._folder = folder
        self._config = {name: value for name in _CHOICE if isinstance(value := getattr(config, name, None), str)}

    def samples(self, pairs: Sequence[Pair], max_length: int, template: Template = "auto") -> Tokenized:
        """Encode pairs, see `prompts.encode`."""

        def samples(tokenizer: Any) -> Tokenized:
            encoded = encode(tokenizer, pairs, max_length, template)
            return Tokenized(encoded, resolved(template, tokenizer), resolved("auto", tokenizer), len(tokenizer))

        return self._limited(samples)

    def encode(self, texts: Sequence[str], most: int, special: bool = True) -> list[list[int]]:
        """Tokenize texts, of each at most the first ``most`` tokens. special: add the tokenizer's special tokens."""
        options = {"truncation": False, "verbose": False, "add_special_tokens": special}
        return self._limited(lambda tokenizer: [tokenizer(text, **options)["input_ids"][:most] for text in texts])

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Decode rows of tokens to text."""
        return self._limited(lambda tokenizer: [tokenizer.decode(row) for row in rows])

    def _limited(self, work: Callable[[Any], Result]) -> Result:
        """Load the tokenizer and return what ``work`` makes of it, in a process with limits."""
        return limited_call(
            "The tokenizer or chat template", lambda: work(self._loaded()), limits.TOKENIZER_MEMORY, limits.TOKENIZER_SECONDS, _libraries
        )

    def _loaded(self) -> Any:
        from transformers import AutoTokenizer, PreTrainedConfig
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        kind = self._config.get("model_type", "")
        made: PreTrainedConfig = CONFIG_MAPPING[kind]() if kind in CONFIG_MAPPING else PreTrainedConfig()
        for name, value in self._config.items():
            setattr(made, name, value)
        try:
            return AutoTokenizer.from_pretrained(self._folder, config=made, local_files_only=True, trust_remote_code=False)
        except MemoryError:
            raise
        except BaseException:  # a Rust panic is not an Exception; the message contains local paths
            raise InvalidCheckpoint("The tokenizer's files cannot be used: they are damaged, or need code from their repository.") from None


def _libraries() -> None:
    from transformers import AutoTokenizer  # noqa: F401


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
