"""References: what is accepted, and what is refused."""

from pathlib import Path

import pytest
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from hypothesis import given
from hypothesis import strategies as st

from analyzers.checkpoints.reference import Reference, parse_reference
from analyzers.core.errors import InvalidReference

_COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Qwen/Qwen3-0.6B", Reference("hub", "Qwen/Qwen3-0.6B")),
        ("  gpt2\n", Reference("hub", "gpt2")),
        ("EleutherAI/pythia-70m@step-100", Reference("hub", "EleutherAI/pythia-70m", "step-100")),
        ("gpt2@refs/pr/1", Reference("hub", "gpt2", "refs/pr/1")),
        (f"org/name@{_COMMIT}", Reference("hub", "org/name", _COMMIT)),
        ("allenai/OLMo@step1000-tokens4B", Reference("hub", "allenai/OLMo", "step1000-tokens4B")),
        ("sample:tiny-bf16", Reference("sample", "tiny-bf16")),
        ("./runs/a@b c", Reference("local", "./runs/a@b c")),
        ("/data/model.safetensors", Reference("local", "/data/model.safetensors")),
        ("./../x", Reference("local", "./../x")),
        ("org/name/", Reference("hub", "org/name")),
    ],
)
def test_accepted(text: str, expected: Reference) -> None:
    assert parse_reference(text, local=True) == expected


def test_bare_names_of_folders_make_a_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("base", "adapter", "other", "a+b"):
        (tmp_path / name).mkdir()
    base, adapter, other = (Reference("local", name) for name in ("base", "adapter", "other"))
    assert parse_reference("base+adapter", local=True).parts == (base, adapter)
    assert parse_reference("base + 0.7*adapter+./other", local=True).parts == (base, adapter, Reference("local", "./other"))
    assert parse_reference("gpt2+adapter", local=True).parts == (Reference("hub", "gpt2"), adapter)
    assert parse_reference("a+b+other", local=True).parts == (Reference("local", "a+b"), other)
    assert parse_reference("a+b", local=True) == Reference("local", "a+b")
    assert parse_reference("org/name@main+base", local=True) == Reference("hub", "org/name", "main+base"), "a branch"
    with pytest.raises(InvalidReference):
        parse_reference("base+adapter", local=False)


def test_paths_are_refused_on_the_web() -> None:
    for text in ("./x", "/etc/passwd", "../x", "~/x", "."):
        with pytest.raises(InvalidReference, match="command line only"):
            parse_reference(text, local=False)


@given(
    st.one_of(
        st.text(max_size=30), st.from_regex(r"[A-Za-z0-9._/-]{1,12}", fullmatch=True), st.from_regex(r"[ab.-]{90,100}", fullmatch=True)
    )
)
def test_hub_ids_are_those_the_client_accepts(text: str) -> None:
    try:
        parsed = parse_reference(text, local=False)
    except InvalidReference:
        parsed = None
    if parsed is not None and parsed.kind == "hub":
        validate_repo_id(parsed.name)
    elif parsed is None and "@" not in text and text == text.strip() and not text.startswith(("sample:", "/", "./")):
        with pytest.raises(HFValidationError):
            validate_repo_id(text)
