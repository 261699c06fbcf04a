"""Answers the requests of the "tokenizer" process: tokenizing with the tokenizer in a folder, and rendering its chat template."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from transformers import AutoTokenizer, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from analyzers.language_models.bounded_process import ProgramFailed


class _Generation(Extension):
    """``{% generation %}``, which marks the assistant's turn and does not change the text."""

    tags = {"generation"}  # noqa: RUF012 - declared like this in the base class

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Namespace(Namespace):
    """A namespace that refuses Python's special names."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace has no {name}")
        super().__setitem__(name, value)


def _namespace(*values: Any, **named: Any) -> Namespace:
    made = _Namespace()
    for name, value in dict(*values, **named).items():
        made[name] = value
    return made


def _dict(*values: Any, **named: Any) -> dict[Any, Any]:
    return dict(*values, **named)


def _json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: Any) -> NoReturn:
    raise TemplateError(str(message))


def _environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])
    made.filters["tojson"] = _json
    made.globals |= {"raise_exception": _raise, "strftime_now": lambda form: datetime.now().astimezone().strftime(form)}
    made.globals |= {"dict": _dict, "namespace": _namespace}
    return made


def rendered(template: str, named: Mapping[str, Any], conversations: Sequence[Sequence[Mapping[str, str]]]) -> Iterator[str]:
    """Render each conversation as text.

    named: additional template variables. Raises TemplateError and any error that the template causes.
    """
    compiled = _environment().from_string(template)
    for messages in conversations:
        yield compiled.render(messages=messages, tools=None, documents=None, add_generation_prompt=False, **named)


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
        named = {name: token if isinstance(token, list) else str(token) for name, token in self._tokenizer.special_tokens_map.items()}
        texts = []
        try:
            for messages, text in zip(conversations, rendered(template, named, conversations), strict=True):
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
