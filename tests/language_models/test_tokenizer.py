"""Tokenizers and chat templates in a limited process: the same as in this one, and bounds that hold."""

import json
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedConfig

from analyzers.core import limits
from analyzers.core.errors import InvalidCheckpoint, InvalidData, LimitExceeded, MantissaError
from analyzers.language_models.builtin_text import Pair, builtin_pairs
from analyzers.language_models.limited_call import limited_call
from analyzers.language_models.prompts import encode
from analyzers.language_models.samples import sample_folder
from analyzers.language_models.tokenizer import Tokenizer
from tests.language_models.test_prompts import CHAT
from tests.language_models.tokenizers import byte_tokenizer

PAIRS = [Pair("What?", "", "That."), Pair(" caf\u00e9 \U0001f600\n", "", "<|end|>"), Pair("a & b <c>", "d", '"')]
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
EVERYTHING = """\
{%- macro turn(role, text) -%}<|{{ role }}|>{{ text }}{%- endmacro %}
{% set ns = namespace(count=0, found=false) %}
{% for message in messages %}
    {% if loop.index > 5 %}{% break %}{% endif %}
    {% set ns.count = ns.count + 1 %}
{{ turn(message.role, message["content"] | trim) }}
    {% generation %}{{ dict(a=message) | tojson(indent=2) }}{% endgeneration %}
    {%- for _ in range(2) %}{{ eos_token }}{% endfor %}
{% endfor %}
{{ bos_token }}{{ ns.count }}{{ messages | length }}{{ tools is none }}{{ documents }}{{ add_generation_prompt }}{{ strftime_now("%Y") }}
{{ messages[0].content.split("a") | join("-") }}{{ missing is defined }}
"""


def opened(folder: Path, tokenizer: Any = None, **parts: Any) -> Tokenizer:
    """Save a tokenizer, one of bytes by default, with other parts in its tokenizer.json; and open it."""
    folder.mkdir(exist_ok=True)
    (tokenizer or byte_tokenizer()).save_pretrained(str(folder))
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | parts))
    return Tokenizer(folder, PreTrainedConfig())


def test_the_tokens_are_those_of_transformers() -> None:
    theirs: Any = AutoTokenizer.from_pretrained(sample_folder("tiny-fp32"))
    ours = Tokenizer(sample_folder("tiny-fp32"), PreTrainedConfig())
    found = ours.samples(builtin_pairs(), 40)
    assert (found.samples, found.template, found.vocabulary) == (encode(theirs, builtin_pairs(), 40), "plain", len(theirs))
    texts = ["", "caf\u00e9 \U0001f600\n", *(pair.prompt for pair in builtin_pairs())]
    for special in (True, False):
        tokens = ours.encode(texts, 1 << 20, special)
        assert tokens == [theirs(text, add_special_tokens=special)["input_ids"] for text in texts]
    assert ours.encode(texts, 2) == [row[:2] for row in ours.encode(texts, 1 << 20)]
    assert ours.decode(tokens) == [theirs.decode(row) for row in tokens]


@pytest.mark.parametrize("template", [CHAT, EVERYTHING])
def test_the_text_is_that_of_transformers(template: str, tmp_path: Path) -> None:
    theirs: Any = byte_tokenizer(bos_token="<s>", eos_token="</s>", chat_template=template)
    found = opened(tmp_path, theirs).samples(PAIRS, 4_000)
    turns = [[{"role": "user", "content": each.prompt.strip()}, {"role": "assistant", "content": each.output}] for each in PAIRS]
    expected = [theirs.apply_chat_template(each, tokenize=False).rstrip() for each in turns]
    assert [each.text for each in found.samples] == expected and (found.template, found.automatic) == ("chat", "chat")
    assert opened(tmp_path, theirs).samples(PAIRS, 4_000, "plain").template == "plain"


@pytest.mark.parametrize(
    ("template", "error", "sentence"),
    [
        ("{{ 'x' * 10**10 }}", LimitExceeded, "of memory"),
        ("{{ [0] * 10**10 }}", LimitExceeded, "of memory"),
        ("{{ 'x' * 200000 }}", LimitExceeded, "adds more than 100,000 characters to a sample"),
        (ENDLESS, LimitExceeded, "takes more than 1 seconds"),
        ("{{ raise_exception('roles must alternate') }}", InvalidCheckpoint, 'cannot be used: "roles must alternate".'),
        ("{{ ''.__class__.__mro__ }}", InvalidCheckpoint, "unsafe"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", InvalidCheckpoint, '"RecursionError"'),
        ({"tool_use": "x"}, InvalidCheckpoint, "cannot be used"),
    ],
)
def test_templates_that_cannot_be_used(
    template: Any, error: type[MantissaError], sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(limits, "TOKENIZER_SECONDS", 1 if "range" in template else 60)
    tokenizer = opened(tmp_path, byte_tokenizer(chat_template=template))
    with pytest.raises(error) as caught:
        tokenizer.samples(PAIRS, 512)
    assert sentence in str(caught.value)


def replace(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


# A letter becomes a terabyte.
GROWTH = [replace("a", "a" * 10)] * 12
TOO_MUCH = r"^The tokenizer or chat template takes more than (1,073,741,824 bytes of memory|1 seconds)\.$"
ADDED = {"id": 300, "content": "aaaa", "single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
WORDS = {"type": "WordPiece", "vocab": {}, "unk_token": "?", "continuing_subword_prefix": "", "max_input_chars_per_word": 9}


def _tokens(tokenizer: Tokenizer) -> Any:
    return tokenizer.encode(["baaaa"], 9)


def _decoded(tokenizer: Tokenizer) -> Any:
    return tokenizer.decode(tokenizer.encode(["aaaa"], 9))


@pytest.mark.parametrize(
    ("parts", "question", "error", "sentence"),
    [
        ({"normalizer": {"type": "Sequence", "normalizers": GROWTH}}, _tokens, LimitExceeded, TOO_MUCH),
        ({"normalizer": {"type": "Sequence", "normalizers": GROWTH}, "added_tokens": [ADDED]}, _tokens, LimitExceeded, TOO_MUCH),
        (
            {"decoder": {"type": "Sequence", "decoders": GROWTH}},
            _decoded,
            LimitExceeded,
            TOO_MUCH,
        ),
        (
            {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
            _tokens,
            InvalidCheckpoint,
            "The tokenizer or chat template fails: .*must be non-zero",
        ),
        ({"model": WORDS}, _tokens, InvalidCheckpoint, "The tokenizer or chat template fails: .*Missing .* token from the vocabulary"),
        ({"model": {"type": "Nothing"}}, _tokens, InvalidCheckpoint, r"^The tokenizer's files cannot be used: they are damaged"),
    ],
)
def test_tokenizers_that_cannot_be_used(
    parts: Any, question: Callable[[Tokenizer], Any], error: type[MantissaError], sentence: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(limits, "TOKENIZER_SECONDS", 1)
    monkeypatch.setattr(limits, "TOKENIZER_MEMORY", 1 << 30)
    with pytest.raises(error, match=sentence):
        question(opened(tmp_path, **parts))
    assert opened(tmp_path / "other").encode(["ab"], 9)  # another process, or the same, goes on


def test_an_error_of_the_program_keeps_its_kind(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match="The answer of sample 0 has no tokens"):
        opened(tmp_path).samples([Pair("a", "", "")], 16)


def test_a_process_that_ends_or_hangs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidCheckpoint, match=r"^It cannot be used: its process ended unexpectedly\.$"):
        limited_call("It", lambda: os.kill(os.getpid(), signal.SIGSEGV), 1 << 30, 9, int)
    with pytest.raises(LimitExceeded, match="It takes more than 1 seconds"):
        limited_call("It", lambda: [None for _ in iter(int, 1)], 1 << 30, 1, int)
    assert limited_call("It", lambda: (os.getpid(), "x" * 3_000_000), 1 << 30, 9, int)[0] != os.getpid()


def test_several_at_once() -> None:
    tokenizer, theirs = Tokenizer(sample_folder("tiny-fp32"), PreTrainedConfig()), AutoTokenizer.from_pretrained(sample_folder("tiny-fp32"))
    texts = ["\u00e9", "\u00e9\u00e9"] * 8
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda text: tokenizer.encode([text], 9)[0], texts))
    assert found == [theirs(text)["input_ids"] for text in texts]
