"""A checkpoint's tokenizer, from files alone: no code of the repository, nothing that names other files."""

import json
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedConfig

from analyzers import limits
from analyzers.checkpoints import Repository, quoted, read_range
from analyzers.errors import InvalidCheckpoint, LimitExceeded

_SETTINGS = "tokenizer_config.json"
_FILES = (
    "tokenizer.json", _SETTINGS, "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "vocab.txt",
    "chat_template.jinja",
)  # fmt: skip
# Keys of tokenizer_config.json that would have code run, or other files read.
_REMOVED = {"auto_map", "name_or_path", "tokenizer_file", "vocab_file", "merges_file", "chat_template_file", "fast_tokenizer_files"}


def load_tokenizer(repository: Repository, config: PreTrainedConfig, folder: Path) -> Any:
    """The tokenizer, its files copied into ``folder``.

    Raises InvalidCheckpoint where there is none, or none that can be used without code or sentencepiece models; LimitExceeded.
    """
    if "tokenizer.json" not in repository.files and not {"vocab.json", "merges.txt"} <= set(repository.files):
        found = "" if "tokenizer.model" not in repository.files else ", only a tokenizer.model, which is not read"
        raise InvalidCheckpoint(f"The checkpoint has no tokenizer (tokenizer.json){found}: name a model that has one.")
    for path in _FILES:
        if path in repository.files:
            (folder / path).write_bytes(_cleaned(_read(repository, path)) if path == _SETTINGS else _read(repository, path))
    try:
        return AutoTokenizer.from_pretrained(folder, config=config, local_files_only=True, trust_remote_code=False)
    except BaseException as error:  # what is said names our files
        _check_kind(error)
        raise InvalidCheckpoint("The tokenizer's files cannot be used: they are damaged, or need code of their repository.") from None


def tokenize(tokenizer: Any, text: str, **options: bool) -> Any:
    """The tokens of a text, of whatever length. Raises InvalidCheckpoint for a tokenizer that fails on it."""
    try:
        return tokenizer(text, truncation=False, verbose=False, **options)
    except BaseException as error:
        _check_kind(error)
        raise InvalidCheckpoint(f"The tokenizer fails on {quoted(text, 40)}: {quoted(str(error), 200)}.") from None


def _check_kind(error: BaseException) -> None:
    """Raise what does not come from tokenizers: it raises Exception itself, and where it panics what is none."""
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error


def _read(repository: Repository, path: str) -> bytes:
    size = repository.files[path]
    if size > limits.TOKENIZER_BYTES:
        raise LimitExceeded(f"{quoted(path)} has {size:,} bytes, more than {limits.TOKENIZER_BYTES:,} (MANTISSA_TOKENIZER_BYTES).")
    file = repository.open(path)
    try:
        return read_range(file, 0, size)
    finally:
        file.close()


def _cleaned(content: bytes) -> bytes:
    try:
        settings = json.loads(content)
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict):
        raise InvalidCheckpoint(f"{_SETTINGS} is no JSON object.")
    return json.dumps({name: value for name, value in settings.items() if name not in _REMOVED}).encode()
