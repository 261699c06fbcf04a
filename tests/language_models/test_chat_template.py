"""Chat templates in a process of their own: the same text as in this one, and bounds that hold."""

import shutil
import sys
from typing import Any

import pytest

from analyzers import limits
from analyzers.errors import InvalidCheckpoint, LimitExceeded, MantissaError
from analyzers.language_models.chat_template import lay_out
from tests.language_models.test_prompts import CHAT, byte_tokenizer

CONVERSATIONS = [
    [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
    for said, answer in (("What?", "That."), (" caf\u00e9 \U0001f600\n", "<|end|>"), ("a & b <c>", '"'))
]
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


@pytest.mark.parametrize("template", [CHAT, EVERYTHING])
def test_the_text_is_that_of_transformers(template: str) -> None:
    tokenizer: Any = byte_tokenizer(bos_token="<s>", eos_token="</s>", chat_template=template)
    expected = [tokenizer.apply_chat_template(each, tokenize=False) for each in CONVERSATIONS]
    assert lay_out(tokenizer, CONVERSATIONS) == expected


@pytest.mark.parametrize(
    ("template", "error", "sentence"),
    [
        ("{{ 'x' * 10**10 }}", LimitExceeded, "of memory (MANTISSA_TEMPLATE_BYTES)"),
        ("{{ [0] * 10**10 }}", LimitExceeded, "of memory (MANTISSA_TEMPLATE_BYTES)"),
        ("{{ 'x' * 200000 }}", LimitExceeded, "adds more than 100,000 characters to a sample (MANTISSA_TEMPLATE_CHARACTERS)"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", LimitExceeded, "1 seconds (MANTISSA_TEMPLATE_S"),
        ("{{ raise_exception('roles must alternate') }}", InvalidCheckpoint, 'cannot be used: "roles must alternate".'),
        ("{{ ''.__class__.__mro__ }}", InvalidCheckpoint, "unsafe"),
        ("{% set ns = namespace(__class__=1) %}", InvalidCheckpoint, "a namespace has no __class__"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", InvalidCheckpoint, '"RecursionError"'),
        ({"tool_use": "x"}, InvalidCheckpoint, "no chat template for plain conversations"),
    ],
)
def test_templates_that_cannot_be_used(template: Any, error: type[MantissaError], sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TEMPLATE_SECONDS", 1 if "range" in template else 60)
    tokenizer = byte_tokenizer(chat_template=template)
    with pytest.raises(error) as caught:
        lay_out(tokenizer, CONVERSATIONS)
    assert sentence in str(caught.value)


def test_a_process_that_ends_at_once_gives_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("true"))
    with pytest.raises(InvalidCheckpoint, match="running it broke off"):
        lay_out(byte_tokenizer(chat_template=CHAT), CONVERSATIONS)
