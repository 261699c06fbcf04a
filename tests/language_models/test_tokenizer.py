"""Tokenizers and chat templates in a process of their own: the same as in this one, and bounds that hold."""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedConfig

from analyzers.core import limits
from analyzers.core.errors import InvalidCheckpoint, LimitExceeded, MantissaError
from analyzers.language_models.builtin_text import builtin_pairs
from analyzers.language_models.samples import sample_folder
from analyzers.language_models.tokenizer import Tokenizer
from tests.cases import few
from tests.language_models.test_prompts import CHAT
from tests.language_models.tokenizers import Run, byte_tokenizer
from tests.tokenizer_processes import open_kept

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
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


@pytest.mark.parametrize("special", few([True, False], {0}))
def test_the_tokens_are_those_of_transformers(special: bool) -> None:
    theirs: Any = AutoTokenizer.from_pretrained(sample_folder("tiny-fp32"))
    ours = Tokenizer(sample_folder("tiny-fp32"), PreTrainedConfig())
    assert (ours.size, ours.end_of_text, ours.has_template, ours.tells_offsets) == (len(theirs), theirs.eos_token_id, False, True)
    for text in ("", "caf\u00e9 \U0001f600\n", *(pair.prompt for pair in builtin_pairs())):
        expected = theirs(text, add_special_tokens=special, return_offsets_mapping=True)
        found = ours.encode(text, special=special, offsets=True)
        assert found.token_ids == expected["input_ids"] == ours.encode(text, special=special).token_ids
        assert list(zip(found.starts, found.stops, strict=True)) == expected["offset_mapping"]
        assert ours.decode(found.token_ids) == theirs.decode(found.token_ids)
    ours.close()
    ours.close()


@pytest.fixture
def reused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no process where another test left one: for tests with another subject."""
    monkeypatch.setattr("analyzers.language_models.tokenizer.Bounded", open_kept)


@pytest.mark.usefixtures("reused")
@pytest.mark.parametrize("template", [CHAT, EVERYTHING])
def test_the_text_is_that_of_transformers(template: str, run: Run) -> None:
    tokenizer: Any = byte_tokenizer(bos_token="<s>", eos_token="</s>", chat_template=template)
    expected = [tokenizer.apply_chat_template(each, tokenize=False) for each in CONVERSATIONS]
    assert run(tokenizer).lay_out(CONVERSATIONS) == expected


@pytest.mark.usefixtures("reused")
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
        ({"tool_use": "x"}, InvalidCheckpoint, "no chat template for plain conversations"),
    ],
)
def test_templates_that_cannot_be_used(
    template: Any, error: type[MantissaError], sentence: str, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setattr(limits, "TOKENIZER_SECONDS", 1 if "range" in template else 60)
    tokenizer = run(byte_tokenizer(chat_template=template))
    with pytest.raises(error) as caught:
        tokenizer.lay_out(CONVERSATIONS)
    assert sentence in str(caught.value)


def replace(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


# A letter becomes a terabyte.
GROWTH = [replace("a", "a" * 10)] * 12
TOO_MUCH = r"takes more than (1,073,741,824 bytes of memory|1 seconds)\.$"


def damaged(folder: Path, **parts: Any) -> Tokenizer:
    """One of bytes, with other parts in its tokenizer.json."""
    byte_tokenizer().save_pretrained(str(folder))
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | parts))
    return Tokenizer(folder, PreTrainedConfig())


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOKENIZER_SECONDS", 1)
    monkeypatch.setattr(limits, "TOKENIZER_MEMORY", 1 << 30)


@pytest.mark.usefixtures("narrow", "reused")
@pytest.mark.parametrize(
    ("part", "error", "sentence"),
    [
        ({"normalizer": {"type": "Sequence", "normalizers": GROWTH}}, LimitExceeded, f'On "baaaa" the tokenizer {TOO_MUCH}'),
        ({"normalizer": replace("a", "a" * 999)}, LimitExceeded, r"produces more than 8 tokens per byte\."),
        ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, InvalidCheckpoint, 'fails on "baaaa": "chunk size must be non-zero"'),
        ({"model": {"type": "WordPiece", "vocab": {}, "unk_token": "?", "continuing_subword_prefix": "", "max_input_chars_per_word": 9}},
         InvalidCheckpoint, r'The tokenizer fails on "baaaa": ".*Missing .* token from the vocabulary"'),
    ],
)  # fmt: skip
def test_tokenizers_that_cannot_be_used(part: dict[str, Any], error: type[MantissaError], sentence: str, tmp_path: Path) -> None:
    tokenizer = damaged(tmp_path, **part)
    with pytest.raises(error, match=sentence):
        tokenizer.encode("baaaa", offsets=True)
    tokenizer.close()


@pytest.mark.usefixtures("narrow", "reused")
def test_a_tokenizer_that_grows_what_it_decodes(tmp_path: Path) -> None:
    tokenizer = damaged(tmp_path, decoder={"type": "Sequence", "decoders": GROWTH})
    tokens = tokenizer.encode("aaaa").token_ids
    with pytest.raises(LimitExceeded, match=f"^The tokenizer {TOO_MUCH}"):
        tokenizer.decode(tokens)
    with pytest.raises(InvalidCheckpoint, match="it ended unexpectedly"):  # its process has ended
        tokenizer.decode(tokens)
    tokenizer.close()


@pytest.mark.usefixtures("narrow", "reused")
def test_a_tokenizer_that_cannot_be_loaded(tmp_path: Path) -> None:
    added = {"id": 300, "content": "aaaa", "single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    with pytest.raises(LimitExceeded, match=f"^The tokenizer {TOO_MUCH}"):
        damaged(tmp_path, normalizer={"type": "Sequence", "normalizers": GROWTH}, added_tokens=[added])
    with pytest.raises(InvalidCheckpoint, match=r"^The tokenizer's files cannot be used: they are damaged, or need code from .*\.$"):
        damaged(tmp_path, model={"type": "Nothing"})


def test_a_process_that_is_killed_is_told_and_replaced(run: Run) -> None:
    tokenizer = run(byte_tokenizer())
    tokenizer._process._process.send_signal(signal.SIGSEGV)
    with pytest.raises(InvalidCheckpoint, match='The tokenizer cannot be used: it ended unexpectedly on "a"'):
        tokenizer.encode("a")
    assert run(byte_tokenizer()).encode("abc").token_ids


def test_a_process_that_never_starts_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("true"))
    with pytest.raises(InvalidCheckpoint, match=r"^The tokenizer cannot be used: it ended unexpectedly\.$"):
        Tokenizer(sample_folder("tiny-fp32"), PreTrainedConfig())


def test_it_sees_no_secrets_and_ends_when_closed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    tokenizer = run(byte_tokenizer())
    process = tokenizer._process._process.pid
    environment = Path(f"/proc/{process}/environ").read_bytes()
    assert b"PATH=" in environment and b"hf_secret" not in environment
    tokenizer.close()
    assert not Path(f"/proc/{process}").exists()


def test_closing_ends_what_computes(run: Run) -> None:
    tokenizer = run(byte_tokenizer(chat_template=ENDLESS))
    with ThreadPoolExecutor(1) as thread:
        laid_out = thread.submit(tokenizer.lay_out, CONVERSATIONS)
        time.sleep(0.5)
        assert not laid_out.done()
        tokenizer.close()
        with pytest.raises((InvalidCheckpoint, LimitExceeded)):
            laid_out.result()
    assert not Path(f"/proc/{tokenizer._process._process.pid}").exists()


@pytest.mark.exhaustive
def test_what_computes_for_nobody_ends() -> None:
    """A program whose user was killed is stopped by its own limit of CPU time, and a process that waits ends at once."""
    code = (
        "import os, sys, threading, time\n"
        "from transformers import PreTrainedConfig\n"
        "from analyzers.core import limits\n"
        "from analyzers.language_models.tokenizer import Tokenizer\n"
        "limits.TOKENIZER_SECONDS = 2\n"
        "tokenizers = [Tokenizer(sys.argv[1], PreTrainedConfig()) for _ in range(2)]\n"
        "threading.Thread(target=tokenizers[0].encode, args=('baaaa',), daemon=True).start()\n"
        "print(*(each._process._process.pid for each in tokenizers), flush=True)\n"
        "time.sleep(60)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        damaged(Path(folder), normalizer={"type": "Sequence", "normalizers": GROWTH[:8]}).close()
        with subprocess.Popen([sys.executable, "-c", code, folder], stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdout is not None
            started = [int(each) for each in parent.stdout.readline().split()]
            assert len(started) == 2
            parent.kill()
        until = time.monotonic() + 60
        while any(Path(f"/proc/{each}").exists() for each in started):
            assert time.monotonic() < until
            time.sleep(0.01)


def test_several_at_once() -> None:
    def tokens(length: int) -> list[int]:
        tokenizer = Tokenizer(sample_folder("tiny-fp32"), PreTrainedConfig())
        try:
            return tokenizer.encode("\u00e9" * length, special=False).token_ids
        finally:
            tokenizer.close()

    theirs: Any = AutoTokenizer.from_pretrained(sample_folder("tiny-fp32"))
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(tokens, (1, 2)))
    assert found == [theirs("\u00e9" * length, add_special_tokens=False)["input_ids"] for length in (1, 2)]
