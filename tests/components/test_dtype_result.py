"""The tiles: their answers, their tags, and that text from outside stays text."""

import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from urllib.parse import parse_qsl

import pytest

from analyzers.dtype_detection import DtypeReport
from analyzers.dtype_detection.rule_of_thumb import rule
from analyzers.dtype_detection.text import one, several
from analyzers.terminal import joined
from components.appearance.theme import DARK, LIGHT
from components.dtype.result import passport
from components.dtype.tables import Outcome, comparison, evidence
from components.dtype.text import captions, summary
from components.library import Identity, Library
from components.precision import form as precision_form
from components.results.html_documents import document
from components.text.markup import table
from tests.components.dtype_reports import HOSTILE, hostile_report, report


class _Elements(HTMLParser):
    """The names of all elements and attributes that a browser would see."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes.update(name for name, _ in attrs)


def _lineage(**changes: object) -> dict[str, object]:
    return report().lineage.model_dump() | changes


def test_an_upcast_is_a_proof() -> None:
    html = passport(report())
    assert "bf16 → fp32" in html
    assert '<span class="m-tag m-proof">proof</span>' in html
    assert "39 tensors, all F32." in html
    assert "6.80 MB. Read 6.80 MB (100%)" in html


@pytest.mark.parametrize(("verdict", "answer", "tag"), [("native", "Nothing narrower", "fact"), ("undecided", "Undecided", "undecided")])
def test_what_is_not_proven_is_not_tagged_proof(verdict: str, answer: str, tag: str) -> None:
    html = passport(report(lineage=_lineage(verdict=verdict, passed_through=(), evidence=())))
    assert answer in html
    assert "m-proof" not in html
    assert f"m-{tag}" in html


@pytest.mark.parametrize(
    ("parts", "proof"),
    [
        (({"verdict": "native", "tensors": 3, "parameters": 9}, {"verdict": "upcast-from-fp16", "tensors": 1, "parameters": 9}), True),
        (({"verdict": "native", "tensors": 3, "parameters": 9}, {"verdict": "undecided", "tensors": 1, "parameters": 9}), False),
    ],
)
def test_mixed_is_a_proof_only_of_proven_parts(parts: tuple[dict[str, object], ...], proof: bool) -> None:
    html = passport(report(lineage=_lineage(verdict="mixed", passed_through=(), parts=parts)))
    assert "Mixed" in html
    assert ("m-proof" in html) == proof


def test_every_stored_tensor_is_counted() -> None:
    storage = [{"dtype": f"D{i}", "tensors": i + 1, "parameters": 9, "bytes": 100 - i} for i in range(6)]
    assert "4 tensors D3, 11 tensors of other dtypes." in passport(report(storage=storage))


def test_one_of_a_kind_is_singular_and_unread_tensors_are_counted() -> None:
    plain = report().lineage.model_dump()
    one = plain["evidence"][0] | {"tested": 1}
    parts = ({"verdict": "native", "tensors": 3, "parameters": 9}, {"verdict": "undecided", "tensors": 1, "parameters": 9})
    html = evidence(report(lineage=plain | {"evidence": (one,), "parts": parts}))
    assert ">1 value<" in html
    assert '<td>not read</td><td class="m-n">35</td>' in html


def test_the_stored_dtype_is_named_where_several_were_asked_about() -> None:
    def html(*stored: str) -> str:
        asked = [replace(item, stored=dtype) for item, dtype in zip(report().lineage.evidence, stored, strict=True)]
        return evidence(report(lineage=_lineage(evidence=asked)))

    assert '<th scope="col">Stored</th>' in html("F32", "F16")
    assert re.findall(r"<td>(F\d+)</td>", html("F32", "F16")) == ["F32", "F16"]
    assert "Stored" not in html("F32", "F32")


def test_training_names_its_basis() -> None:
    inferred = passport(report())
    assert "bf16, likely" in inferred
    assert inferred.count("<meter") == 3
    label = {
        "verdict": "fp16-mixed",
        "probabilities": {"fp16": 1.0},
        "basis": "label",
        "explanation": "A label.",
        "source": "https://example.org/a?b=1&c=2",
    }
    labelled = passport(report(training=label))
    assert '<span class="m-tag m-label">label</span>' in labelled
    assert 'href="https://example.org/a?b=1&amp;c=2"' in labelled
    assert "<meter" not in labelled
    nothing: dict[str, object] = {"verdict": "undecided", "probabilities": {}, "basis": "none", "explanation": "No label.", "source": None}
    assert "Cannot tell" in passport(report(training=nothing))
    nothing_told = report(training=nothing, fp16_risk={"level": "unknown", "reasons": ()})
    assert passport(nothing_told).count("Cannot tell") == 2 and joined(one(nothing_told)).count("cannot tell") == 2
    assert joined(several([nothing_told])).count("cannot tell") == 2


@pytest.mark.parametrize("source", ["javascript:alert(1)", "data:text/html,x", "//example.org", "https://[", "a forum thread"])
def test_only_an_address_of_the_web_becomes_a_link(source: str) -> None:
    training = report().training.model_dump() | {"source": source}
    assert "<a " not in passport(report(training=training), links=False)


def test_text_from_outside_stays_text() -> None:
    hostile = hostile_report()
    for html in (passport(hostile), evidence(hostile), table((HOSTILE,), [(HOSTILE,)], caption=HOSTILE)):
        assert "&lt;img" in html
        found = _Elements(html)
        assert "img" not in found.names
        assert not [name for name in found.attributes if name.startswith("on")]
    assert HOSTILE in summary(hostile)  # plain text: escaped where it meets HTML


def test_exported_page_asks_for_nothing_and_keeps_text_as_text() -> None:
    html = document([report(), hostile_report()])
    own = re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)
    assert "<img" not in own
    assert not re.search(r"""(src|href|@import|url)\s*[=(]\s*["']?(?!https://example\.org)(https?:)?//""", own)
    assert "connect-src 'none'" in own
    assert own.count('type="application/json"') == 9  # three figures each, and three of both models
    for data in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', html, flags=re.DOTALL):
        assert not set("<>&") & set(data)
    assert "prefers-color-scheme: dark" in own


def _labelled(verdict: str) -> DtypeReport:
    label = {"verdict": verdict, "probabilities": {}, "basis": "label", "explanation": "A label.", "source": "https://example.org"}
    return report(training=label)


def test_where_the_rule_contradicts_a_label_it_is_said_which_wins_and_why() -> None:
    plain = _labelled("fp32-mixed")
    assert plain.extremes.abs_max and plain.extremes.norm_max
    guess = rule(plain.extremes.abs_max, plain.extremes.norm_max)
    assert guess == "fp16"
    said = "wins over fp16: it reports how the model was trained; the weights only suggest it."
    assert f"The label (fp32-mixed) {said}" in captions.among(plain)
    assert "wins over" not in captions.among(_labelled("fp16-mixed")) and "wins over" not in captions.among(_labelled("mxfp4-post-trained"))
    assert "wins over" not in captions.among(report())  # an inference


def test_what_an_older_analysis_inferred_is_not_repeated() -> None:
    older = report(analysis_version=1)
    assert older.headline().startswith("An older version of the analysis inferred the training precision: run it again. ")
    assert "Run it again" in passport(older) and "bf16, likely" not in passport(older)
    assert "Run it again" in comparison(["org/name"], [Outcome("org/name", older)])
    assert "inferred by an older version of the analysis: run it again" in older.text()


def test_a_label_of_the_library_wins_over_the_inference_that_contradicts_it(library: Library) -> None:
    found = report("org/name")
    assert found.training.verdict == "bf16"
    library.add_label("org/name", "bf16", "https://example.org/paper", Identity.login("ann"))
    assert "Inferred from the weights: bf16, likely." in passport(found) and "wins over" not in passport(found)
    library.add_label("org/name", "fp32", "https://example.org/paper", Identity.login("ann"))
    assert (
        "Inferred from the weights: bf16, likely. The label (fp32) wins over bf16: it reports how the model was trained; the weights only "
        "suggest it." in passport(found)
    )


@pytest.mark.parametrize("level", ["fits", "caution"])
def test_what_was_not_tested_is_no_alarm(level: str) -> None:
    html = passport(report(fp16_risk={"level": level, "reasons": ("The largest weight is 2.4.",)}))
    assert '<span class="m-tag m-undecided">activations not tested</span>' in html and "m-warning" not in html
    found = report(fp16_risk={"level": level, "reasons": ("The largest weight is 2.4.",)})
    (address,) = re.findall(r'<a href="([^"]*)">Test them on texts</a>', passport(found))
    page, _, query = unescape(address).partition("?")
    asked = precision_form.request(precision_form.filled(parse_qsl(query)))
    assert (page, asked.model, asked.variants) == ("precision", found.checkpoint.ref, ("fp16",))
    assert "Test them" not in passport(found, links=False)
    overflow = passport(report(fp16_risk={"level": "overflow", "reasons": ("The largest weight is 1e6.",)}))
    assert "Test them" not in overflow, "nothing is left to test"


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("text", "ground"),
    [
        *((text, ground) for text in ("ink", "dim", "accent", "bad", "infer") for ground in ("bg", "card")),
        ("proof", "proof-bg"),
        ("infer", "infer-bg"),
        ("label", "label-bg"),
        ("bad", "bad-bg"),
        ("on-accent", "accent"),
    ],
)
def test_contrast(colours: dict[str, str], text: str, ground: str) -> None:
    lighter, darker = sorted((_luminance(colours[text]), _luminance(colours[ground])), reverse=True)
    assert (lighter + 0.05) / (darker + 0.05) >= 4.5
