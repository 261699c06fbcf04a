"""Badges: what they say, that whatever they say is text, and that they are well-formed."""

from xml.etree import ElementTree

import pytest

from analyzers import check
from analyzers.precision_variants import PrecisionReport
from components.library import Identity, Library
from components.site import stored_results
from components.site.badges import CHECKED, FP16, KINDS, PASSED, PRECISION, RAN, TRAINED, Part, etag, parts, svg
from tests.components.dtype_reports import HOSTILE, report
from tests.components.precision_reports import precision_report

ANN, BOB = Identity.login("ann"), Identity.login("bob")
SVG = "{http://www.w3.org/2000/svg}"
LINK = "https://example.org/paper"


def _said(library: Library, model: str = "org/name") -> dict[str, str]:
    return {part.name: part.value for part in parts(library.model(model))}


def test_nothing_is_known_of_an_unknown_model(library: Library) -> None:
    assert _said(library) == {"trained in": "unknown", "passed through": "unknown", "fp16": "unknown"}


def test_an_older_analysis_is_named_and_its_inference_left_out(library: Library) -> None:
    library.add_result(report("org/name", id="1" * 64, analysis_version=1), public=True)
    older = "sampled, analysis version 1"
    assert _said(library) == {"trained in": "unknown", "passed through": f"bf16, {older}", "fp16": f"weights fit, {older}"}


def test_a_passport_is_an_inference_and_a_label_beats_it(library: Library) -> None:
    assert library.add_result(report("org/name", id="1" * 64), public=True) is not None
    assert _said(library) == {"trained in": "bf16, inferred", "passed through": "bf16, sampled", "fp16": "weights fit, sampled"}
    library.add_label("org/name", "fp16-mixed", LINK, ANN)
    assert _said(library)["trained in"] == "fp16-mixed"
    library.add_label("org/name", "bf16", LINK, BOB)
    assert _said(library)["trained in"] == "labels disagree"


@pytest.mark.parametrize("text", [HOSTILE, "\u202egnp.svg", "a\nb\tc", "]]>", "x" * 10_000, "é漢字", "&amp;&#x41;"])
def test_any_text_is_text_in_a_drawing_that_parses(text: str) -> None:
    drawn = ElementTree.fromstring(svg([Part(text, text)], text))
    assert {element.tag for element in drawn.iter()} == {SVG + name for name in ("svg", "title", "clipPath", "rect", "g", "text")}
    assert all(name in ("x", "y", "textLength") for element in drawn.iter(SVG + "text") for name in element.attrib)
    shown = "".join(element.text or "" for element in drawn.iter(SVG + "text"))
    assert "\u202e" not in shown
    assert len(shown) <= 2 * 200
    assert int(drawn.attrib["width"]) < 1_000


def test_a_part_may_be_asked_for_and_the_tag_follows_the_drawing(library: Library) -> None:
    assert [part.name for part in parts(None, [FP16, TRAINED])] == ["trained in", "fp16"]
    assert [part.name for part in parts(None, [PASSED])] == ["passed through"]
    assert len(parts(None)) == len(PRECISION) and len(parts(None, KINDS)) == len(KINDS)
    assert etag(svg(parts(None), "a/b")) == etag(svg(parts(None), "a/b")) != etag(svg(parts(None), "a/c"))


def test_the_newest_check_is_on_request(library: Library) -> None:
    stored_results.set_library(library)
    try:
        assert [part.value for part in parts(None, [CHECKED])] == ["unknown"] and stored_results.newest(
            "check", "sample:tiny-bf16-as-fp32"
        ) is None
        for model in ("sample:tiny-bf16-as-fp32", "sample:tiny-fp32"):
            *_, report = check.analyze(check.CheckRequest(model=model))
            assert isinstance(report, check.CheckReport)
            library.add_result(report, public=True)
            assert stored_results.newest("check", model) == report and stored_results.newest("dtype", model) is None
            (part,) = parts(None, [CHECKED], report)
            assert part == ("checked", *({"sample:tiny-fp32": ("nothing wrong", "#0b7a55")}.get(model, ("2 warnings", "#855600"))))
    finally:
        stored_results.set_library(None)


def test_the_newest_run_in_fp16_is_on_request(library: Library) -> None:
    stored_results.set_library(library)
    assert [part.value for part in parts(None, [RAN])] == ["unknown"]
    for model, said in (("sample:tiny-bf16", "safe on 46 tokens"), ("sample:tiny-overflow", "overflows on 46 tokens")):
        found = precision_report(model, variants=("fp16",))
        library.add_result(found, public=True)
        newest = stored_results.newest("precision", model)
        assert isinstance(newest, PrecisionReport)
        (part,) = parts(None, [RAN], run=newest)
        assert (part.name, part.value) == ("run in fp16", said)
    random = found.model_copy(update={"reference": found.reference.model_copy(update={"weights": "random"})})
    assert [part.value for part in parts(None, [RAN], run=random)] == ["unknown"], "random weights say nothing about the checkpoint"
