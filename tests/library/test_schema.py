"""What the library takes: hostile texts stay text or are refused, nobody passes for somebody else."""

from typing import Any

import pytest
from pydantic import ValidationError

from analyzers.core import limits
from analyzers.core.errors import InvalidRequest, MantissaError
from components.library import PRECISIONS, Identity, Label
from components.library.initial_labels import SEED
from components.library.item_checks import after, checked_link, evidence_of, now, one_line
from components.library.schema import Flag, Result

ANN = Identity.login("ann", ("google",))
CREATED = "2026-11-21T23:58:43.123456Z"
SECRET = "hf_" + "canary" * 5


def label(**changes: Any) -> Label:
    asked: dict[str, Any] = {"who": ANN, "model": "org/name", "precision": "bf16", "link": "https://example.org/p", "quote": ""}
    return Label.of(**(asked | {"created": CREATED} | changes))


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", "[x](javascript:alert(1))", "=HYPERLINK(1)", "'; DROP TABLE labels; --", "مرحبا", "🙂"]
)
def test_a_text_that_can_be_seen_is_kept_as_it_is(text: str) -> None:
    assert label(quote=one_line(text, 100, "quote")).evidence_quote == text


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a\u202eb", "a<U+202E>b"),
        ("a\x00b", "a<U+0000>b"),
        ("a\x1b[2Jb", "a<U+001B>[2Jb"),
        ("a\n\t b\u2028c", "a b c"),
        ("a\u200bb", "a<U+200B>b"),
    ],
)
def test_what_cannot_be_seen_is_written_out(text: str, kept: str) -> None:
    assert label(quote=one_line(text, 100, "quote")).evidence_quote == kept


@pytest.mark.parametrize("text", ["x" * 1_000_000, "\u202e" * 1_900])
def test_a_text_that_is_too_long_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="the limit is 2,000") as caught:
        one_line(text, limits.EVIDENCE_QUOTE_LENGTH, "quote")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "link",
    [
        *("javascript:alert(1)", "data:text/html,x", "ftp://example.org/", "file:///etc/passwd", "https:/example.org", "//example.org"),
        *("https://", "https://user:pw@example.org/", "https://user@example.org", "https://exa mple.org", 'https://example.org/"onload="x'),
        *(
            "https://example.org/<b>",
            "https://example.org/\u202egpj.exe",
            "https://ex\u0430mple.org/",
            "https://example.org:99999/",
            "http://[::1",
        ),
        "https://example.org/" + "x" * 500,
        f"https://example.org/?token={SECRET}",
    ],
)
def test_what_is_no_harmless_link_is_refused(link: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        checked_link(link)
    assert SECRET not in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize("link", ["https://arxiv.org/abs/2205.01068", "http://example.org:8080/a?b=c&d=%20#e", "https://[2001:db8::1]/x"])
def test_links_are_kept_as_they_are(link: str) -> None:
    assert checked_link(link) == link


SENTENCE = "All models were trained in bf16."


@pytest.mark.parametrize(
    ("evidence", "quote"),
    [
        *(("", ""), ("  \n", ""), ("x", ""), ("", "x"), ("x" * 1_000_000, ""), ("\u200b" * 30, "\u3164" * 30), ("section 3", "")),
        *(("🙂🙂🙂🙂🙂", SENTENCE), ("section 3", "🙂" * 20), ("section 3", "."), ("section 3", "bf16"), ("3", SENTENCE)),
        *(('"x" (section 3)', ""), ("", SENTENCE), (f'"{SENTENCE}"', ""), ("=HYPERLINK(1)", ""), ("x" * 1_000, "x" * 1_500)),
        *(("javascript:alert(1)", SENTENCE), ("JavaScript:alert(1)", ""), ("data:text/html,x", ""), ("file:///etc/passwd", "")),
        *(("http://example.org/paper", ""), ("https://example.org", ""), ("https://example.org/", ""), ("https://example.org/?q=a", "")),
        *(("https://example.org/#bf16", ""), ("https://example.org/%20/%2E/", ""), ("https://localhost/paper", ""), ("https:paper", "")),
        *(("https://127.0.0.1/paper", ""), ("https://[2001:db8::1]/paper", ""), ("https://u:p@example.org/paper", "")),
        *(("https://org./paper", ""), ("https://", ""), ("https://[", "")),
    ],
)
def test_what_is_no_evidence_is_refused(evidence: str, quote: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        evidence_of(evidence, quote)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("evidence", "quote", "kept"),
    [
        ("https://huggingface.co/org/model", "", ("https://huggingface.co/org/model", "")),
        (" HTTPS://arxiv.org/abs/2205.01068 ", "bf16", ("https://arxiv.org/abs/2205.01068", "bf16")),
        ("arXiv:2205.01068, p. 3", SENTENCE, ("", f"“{SENTENCE}” (arXiv:2205.01068, p. 3)")),
        (f'"{SENTENCE}" (section 3)', "", ("", f'"{SENTENCE}" (section 3)')),
        ("", f"„{SENTENCE}“, section 3", ("", f"„{SENTENCE}“, section 3")),
        ("论文第三节", "所有模型均使用bf16混合精度训练", ("", "“所有模型均使用bf16混合精度训练” (论文第三节)")),
    ],
)
def test_a_page_or_a_quoted_sentence_is_evidence(evidence: str, quote: str, kept: tuple[str, str]) -> None:
    assert evidence_of(evidence, quote) == kept == evidence_of(*kept)  # also when a proposal is confirmed with the same evidence


def test_a_label_needs_evidence_and_a_known_precision() -> None:
    with pytest.raises(ValidationError, match="needs evidence"):
        label(link="")
    with pytest.raises(ValidationError, match="precision must be one of"):
        label(precision="int3")
    assert {label(precision=precision).precision for precision in PRECISIONS} == set(PRECISIONS)


@pytest.mark.parametrize("model", ["sample:tiny-bf16", "./x", "/etc/passwd", "org/name@main", "a/b/c", " org/name", "", "org/na\u200bme"])
def test_a_label_is_of_a_repository_of_the_hub(model: str) -> None:
    with pytest.raises(MantissaError):
        label(model=model)


def test_an_access_token_is_never_kept() -> None:
    for changes in ({"quote": f"see {SECRET}"}, {"link": f"https://example.org/{SECRET}"}):
        with pytest.raises(InvalidRequest, match="access token") as caught:
            label(**changes)
        assert SECRET not in str(caught.value)


def test_the_id_says_what_the_label_says() -> None:
    one = label()
    assert one.id == label(created=now()).id
    assert len({one.id, label(precision="fp16").id, label(quote="x").id, label(replaces="0" * 64).id, label(model="org/other").id}) == 5
    for changed in ({"precision": "fp16"}, {"contributor": "bob"}, {"evidence_link": "https://example.org/q"}, {"model": "org/other"}):
        with pytest.raises(ValidationError, match="id does not match the content"):
            Label.model_validate(one.model_dump() | changed)
    flag = Flag.of(ANN, one.id, "wrong precision", "", created=CREATED)
    with pytest.raises(ValidationError, match="id does not match the content"):
        Flag.model_validate(flag.model_dump() | {"contributor": "bob"})


@pytest.mark.parametrize(
    ("name", "provenance"),
    [
        *(
            ("ann", "local"),
            ("local:xyz", "local"),
            ("local:0123456789ab0", "local"),
            ("", "login"),
            ("ann b", "login"),
            ("ann\n", "login"),
        ),
        *(("<b>ann</b>", "login"), ("ann\u202e", "login"), ("\u0430nn", "login"), ("a" * 97, "login"), ("ann", "owner")),
    ],
)
def test_names_cannot_be_forged(name: str, provenance: str) -> None:
    with pytest.raises(ValidationError):
        Label.model_validate(label().model_dump() | {"contributor": name, "provenance": provenance})


def test_the_mark_of_an_author_comes_from_a_login() -> None:
    assert label(model="google/t5").author and label(model="Ann/mine").author and not label().author
    assert not label(model="gpt2").author
    visitor = Identity.local("secret")
    assert visitor.name.startswith("local:") and "secret" not in visitor.name and visitor.shown.endswith("(no login)")
    assert not label(who=visitor, model=f"{visitor.name.partition(':')[2]}/mine").author
    with pytest.raises(ValidationError, match="an author needs a login"):
        Label.model_validate(label(who=visitor).model_dump() | {"author": True})
    with pytest.raises(InvalidRequest):
        Identity.login("no body")


@pytest.mark.parametrize("created", ["2026-11-21", "9999-01-01T00:00:00.000000Z", "2026-13-01T00:00:00.000000Z", "yesterday", ""])
def test_a_time_is_one_and_not_to_come(created: str) -> None:
    with pytest.raises(ValidationError):
        label(created=created)


def test_a_label_is_never_older_than_the_one_it_replaces() -> None:
    assert after("2026-11-21T23:58:43.123456Z", "2026-11-21T23:58:43.999999Z") == "2026-11-21T23:58:44.000000Z"
    assert after("2026-11-22T00:00:00.000000Z", "2026-11-21T23:58:43.999999Z") == "2026-11-22T00:00:00.000000Z"


@pytest.mark.parametrize("quote", ["\u200b", "\u2060\ufeff\u200d", "\u3164", "\u115f\uffa0", "\u2800", "\u0301", "<U+200B>"])
def test_evidence_that_shows_nothing_is_refused(quote: str) -> None:
    with pytest.raises(InvalidRequest, match="evidence is blank"):
        label(link="", quote=one_line(quote, 100, "evidence"))
    assert label(link="", quote="\u8868 3").evidence_quote == "\u8868 3"


def test_a_name_of_the_hub_is_nobody_elses() -> None:
    visitor = Identity.local("secret")
    for name in (visitor.name, SEED.name):
        with pytest.raises(InvalidRequest, match="not a valid user name"):
            Identity.login(name)
    looks_like = visitor.name.replace(":", "-")
    assert Identity.login(looks_like).name != visitor.name


@pytest.mark.parametrize(
    "changed",
    [
        {"id": "../" + "a" * 64},
        {"id": "a" * 65},
        {"id": "a" * 64 + "\n"},
        {"key": "b" * 63},
        {"analyzer": "dtype/../x"},
        {"commits": ("a" * 40 + "?",)},
        {"contributor": "<b>"},
    ],
)
def test_a_result_with_anything_around_an_id_is_refused(changed: dict[str, Any]) -> None:
    facts: dict[str, Any] = {"id": "a" * 64, "key": "b" * 64, "analyzer": "dtype", "analysis_version": 1, "models": ("org/name",)}
    facts |= {"commits": ("a" * 40,), "created": CREATED, "contributor": "ann", "size": 10}
    assert Result(**facts).id == "a" * 64 and Result(**facts | {"key": "", "contributor": ""}).key == ""
    with pytest.raises(ValidationError):
        Result(**facts | changed)
