"""Answers, in a limited process, questions about the tokenizer in a folder: a program of `limited_process`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from transformers import AutoTokenizer, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from analyzers.core.errors import InvalidCheckpoint
from analyzers.language_models import prompts
from analyzers.language_models.builtin_text import Pair


def samples(
    folder: str, config: Mapping[str, str], pairs: Sequence[Mapping[str, str]], max_length: int, template: prompts.Template
) -> dict[str, Any]:
    """Encode pairs (`prompts.encode`), and describe the tokenizer: the fields of a `tokenizer.Tokenized`."""
    tokenizer = _loaded(folder, config)
    encoded = prompts.encode(tokenizer, [Pair(**pair) for pair in pairs], max_length, template)
    return {
        "samples": list(map(asdict, encoded)),
        "template": prompts.resolved(template, tokenizer),
        "automatic": prompts.resolved("auto", tokenizer),
        "vocabulary": len(tokenizer),
    }


def encode(folder: str, config: Mapping[str, str], texts: Sequence[str], special: bool, most: int) -> list[list[int]]:
    """Tokenize texts, of each at most the first ``most`` tokens. special: add the tokenizer's special tokens."""
    tokenizer = _loaded(folder, config)
    return [tokenizer(text, truncation=False, verbose=False, add_special_tokens=special)["input_ids"][:most] for text in texts]


def decode(folder: str, config: Mapping[str, str], rows: Sequence[Sequence[int]]) -> list[str]:
    """Decode rows of tokens to text."""
    tokenizer = _loaded(folder, config)
    return [tokenizer.decode(row) for row in rows]


def _loaded(folder: str, config: Mapping[str, str]) -> Any:
    """Load the tokenizer. config: the keys of config.json that determine its class."""
    made: PreTrainedConfig = CONFIG_MAPPING[config["model_type"]]() if config["model_type"] in CONFIG_MAPPING else PreTrainedConfig()
    for name, value in config.items():
        setattr(made, name, value)
    try:
        return AutoTokenizer.from_pretrained(folder, config=made, local_files_only=True, trust_remote_code=False)
    except MemoryError:
        raise
    except BaseException:  # a Rust panic is not an Exception; the message contains local paths
        raise InvalidCheckpoint("The tokenizer's files cannot be used: they are damaged, or need code from their repository.") from None
