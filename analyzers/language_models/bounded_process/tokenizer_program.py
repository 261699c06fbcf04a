"""Answers the requests of the "tokenizer" process: tokenizing with the tokenizer in a folder, and rendering its chat template."""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import AutoTokenizer, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from analyzers.language_models.bounded_process import ProgramFailed


class Programs:
    """Requests of the "tokenizer" process, one per method; arguments and results are JSON."""

    _tokenizer: Any

    def open(self, folder: str, config: Mapping[str, str]) -> dict[str, Any]:
        """Load the tokenizer and describe it. config: the keys of config.json that determine the tokenizer class."""
        self._tokenizer = AutoTokenizer.from_pretrained(folder, config=_config(config), local_files_only=True, trust_remote_code=False)
        end = self._tokenizer.eos_token_id
        return {
            "size": len(self._tokenizer),
            "tells_offsets": bool(getattr(self._tokenizer, "is_fast", False)),
            "end_of_text": end if isinstance(end, int) else None,
            "has_template": bool(self._tokenizer.chat_template),
        }

    def encode(self, text: str, special: bool, offsets: bool, most: int) -> list[list[int]]:
        """Return token ids and, with ``offsets``, the start and stop of each token in the text.

        special: add the tokenizer's special tokens.
        """
        found = self._tokenizer(text, truncation=False, verbose=False, add_special_tokens=special, return_offsets_mapping=offsets)
        if len(found["input_ids"]) > most:
            raise ProgramFailed("tokens")
        spans = found["offset_mapping"] if offsets else []
        return [found["input_ids"], [start for start, _ in spans], [stop for _, stop in spans]]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode tokens to text."""
        text: str = self._tokenizer.decode(token_ids)
        return text

    def lay_out(self, conversations: Sequence[Sequence[Mapping[str, str]]], most: int) -> list[str]:
        """Render each conversation as text, at most ``most`` characters longer than its messages."""
        try:
            template = self._tokenizer.get_chat_template()
        except Exception:  # there are several templates, none of them the default
            template = None
        if not isinstance(template, str):
            raise ProgramFailed("no template")
        texts = []
        try:
            for messages in conversations:
                text = self._tokenizer.apply_chat_template(list(messages), tokenize=False)
                if len(text) > most + sum(len(message["content"]) for message in messages):
                    raise ProgramFailed("characters")
                texts.append(text)
        except (ProgramFailed, MemoryError):
            raise
        except TemplateError as error:
            raise ProgramFailed("said", str(error)) from None
        except Exception as error:
            raise ProgramFailed("said", type(error).__name__) from None
        return texts


def _config(named: Mapping[str, str]) -> PreTrainedConfig:
    made: PreTrainedConfig = CONFIG_MAPPING[named["model_type"]]() if named["model_type"] in CONFIG_MAPPING else PreTrainedConfig()
    for name, value in named.items():
        setattr(made, name, value)
    return made
