"""Label, lineage, classifier: which one answers, and what it says."""

from typing import Any

import pytest

from analyzers.dtype_detection.classifier import fitted
from analyzers.dtype_detection.labels import Label, labelled_extremes, labels
from analyzers.dtype_detection.report import Extremes, Lineage, Training
from analyzers.dtype_detection.training import infer_training


def lineage(stored: str = "F32", verdict: str = "native", passed_through: tuple[str, ...] = ()) -> Lineage:
    return Lineage.model_validate(
        {
            "stored": stored,
            "passed_through": passed_through,
            "verdict": verdict,
            "evidence": (),
            "parts": (),
            "fossil_rows": 0,
            "statement": "",
        }
    )


def base(abs_max: float | None = 1.0, norm_max: float | None = 400.0, exact: bool = True) -> Extremes:
    return Extremes(abs_min=0, abs_min_nonzero=1e-9, abs_max=abs_max, norm_min=0.1, norm_max=norm_max, exact=exact)


def infer(extremes: Extremes | None = None, label: Label | None = None, **history: Any) -> Training:
    found = infer_training(label, lineage(**history), extremes or base(), {history.get("stored", "F32"): 100})
    assert found.probabilities == {} or sum(found.probabilities.values()) == pytest.approx(1)
    return found


def test_a_label_beats_everything() -> None:
    found = infer(label=Label("bf16-mixed", "a paper"), passed_through=("fp16",), verdict="upcast-from-fp16")
    assert (found.verdict, found.basis, found.probabilities, found.source) == ("bf16-mixed", "label", {"bf16": 1.0}, "a paper")
    assert infer(label=Label("mxfp4-post-trained", "a README")).probabilities == {}


def test_lineage_beats_magnitudes() -> None:
    found = infer(base(200.0, 5e4), verdict="upcast-from-fp16", passed_through=("fp16",))
    assert (found.verdict, found.basis, found.probabilities["fp16"]) == ("fp16", "lineage", 0.9)
    assert "assumption" in found.explanation
    assert infer(stored="BF16").basis == infer(stored="F16").basis == infer(stored="F8_E4M3").basis == "lineage"


@pytest.mark.parametrize(
    ("extremes", "verdict"),
    [(base(1.0, 400.0), "fp16"), (base(200.0, 5e4), "bf16"), (base(20.0, 1500.0), "undecided"), (base(1e9, 1e12), "undecided")],
)
@pytest.mark.parametrize(("stored", "history"), [("F32", "native"), ("F32", "mixed"), ("F64", "native"), ("F64", "upcast-from-fp32")])
def test_magnitudes_answer_for_wide_files_in_which_nothing_narrower_survives(
    extremes: Extremes, verdict: str, stored: str, history: str
) -> None:
    found = infer(extremes, stored=stored, verdict=history)
    assert (found.verdict, found.basis) == (verdict, "classifier")
    assert found.probabilities == fitted().classifier.estimate(extremes.model_dump()).probabilities


@pytest.mark.parametrize(
    ("extremes", "history"),
    [
        (base(), {"verdict": "undecided"}),
        (base(), {"stored": "F16", "verdict": "undecided"}),
        (base(), {"stored": "MXFP4"}),
        (base(), {"stored": "MXFP4", "verdict": "undecided"}),
        (base(None, None), {}),
        (base(1.7e308, None), {}),
    ],
)
def test_without_a_basis_there_is_no_answer(extremes: Extremes, history: dict[str, Any]) -> None:
    found = infer(extremes, **history)
    assert (found.verdict, found.basis, found.probabilities) == ("undecided", "none", {})


def test_the_explanation_says_what_was_seen_and_why_there_is_no_answer() -> None:
    clear = infer(base(1.0, 361.9)).explanation
    assert "facebook/opt-1.3b (fp16)" in clear and "rule of thumb would say fp16" in clear and "fp32 keeps its share" in clear
    assert "without LM head and buffers" in clear and "at least" not in clear
    quick = infer(base(1.0, 361.9, exact=False)).explanation
    assert "largest weight at least 1, largest norm about 362" in quick
    far = infer(base(1e9, 1e12)).explanation
    assert far.startswith("Too far from every labelled model") and "keeps its share" not in far
    assert infer(base(20.0, 1500.0)).explanation.startswith("No precision is more likely than all others combined.")


def test_labels_are_read() -> None:
    assert labels()["meta-llama/llama-2-7b-hf"].precision == "bf16"
    assert {model.precision for model in labelled_extremes()} == {"fp16", "bf16", "fp32"}
