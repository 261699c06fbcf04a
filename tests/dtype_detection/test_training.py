"""Label, lineage, relative, classifier: which one answers, and what it says."""

from typing import Any

import pytest

from analyzers.dtype_detection.labels import Label, labelled_extremes, labels
from analyzers.dtype_detection.relatives import answered, confidence
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


@pytest.mark.parametrize("extremes", [base(1.0, 400.0), base(200.0, 5e4), base(20.0, 1500.0), base(1e9, 1e12)])
@pytest.mark.parametrize(("stored", "history"), [("F32", "native"), ("F32", "mixed"), ("F64", "native"), ("F64", "upcast-from-fp32")])
def test_wide_files_in_which_nothing_narrower_survives_do_not_tell(extremes: Extremes, stored: str, history: str) -> None:
    found = infer(extremes, stored=stored, verdict=history)
    assert (found.verdict, found.basis, found.probabilities) == ("undecided", "classifier", {})
    assert found.explanation.startswith("It cannot be told from the weights: fp32 masters are written by every kind of training.")


OPT = ("opt", ["model.decoder.layers.0.self_attn.q_proj.weight"])


def test_a_labelled_model_of_the_same_architecture_tells_it() -> None:
    found = infer_training(None, lineage(), base(1.0, 350.0), {"F32": 100}, *OPT)
    assert (found.verdict, found.basis) == ("fp16", "family") and "facebook/opt-1.3b" in found.explanation
    assert found.probabilities["fp16"] == confidence() == 15 / 16 and sum(found.probabilities.values()) == pytest.approx(1)
    narrow = infer_training(None, lineage(verdict="upcast-from-bf16", passed_through=("bf16",)), base(1.0, 350.0), {"F32": 100}, *OPT)
    assert (narrow.verdict, narrow.basis) == ("bf16", "lineage")


@pytest.mark.parametrize(
    ("model_type", "names", "magnitudes"),
    [
        (*OPT, base(1.0, 5.0)),  # a small or untrained one
        (*OPT, base(5.0, 350.0)),
        ("opt", ["model.layers.0.self_attn.q_proj.weight"], base(1.0, 350.0)),  # other tensors than its configuration says
        ("llama", OPT[1], base(1.0, 350.0)),
        (None, OPT[1], base(1.0, 350.0)),
        (["opt"], OPT[1], base(1.0, 350.0)),
        ("t5", ["encoder.block.0.layer.0.SelfAttention.q.weight"], base(560.0, 93320.0)),  # trained in bf16 and, by others, in fp32
        ("gpt2", ["transformer.h.0.attn.c_attn.weight"], base(1.832, 211.2)),  # one labelled model is no family
    ],
)
def test_without_a_labelled_relative_it_is_not_told(model_type: object, names: list[str], magnitudes: Extremes) -> None:
    assert infer_training(None, lineage(), magnitudes, {"F32": 100}, model_type, names).verdict == "undecided"


def test_relatives_are_right_about_labelled_models_left_out() -> None:
    assert answered() == (14, 14)


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


def test_the_explanation_says_what_the_magnitudes_resemble() -> None:
    near = infer(base(1.0, 361.9)).explanation
    assert "resemble models trained in fp16 (7" in near and "facebook/opt-1.3b (fp16)" in near and "rule of thumb would say fp16" in near
    assert "without LM head and buffers" in near and "at least" not in near
    quick = infer(base(1.0, 361.9, exact=False)).explanation
    assert "largest weight at least 1, largest norm about 362" in quick
    assert "No labelled model is near; the nearest" in infer(base(1e9, 1e12)).explanation


def test_labels_are_read() -> None:
    assert labels()["meta-llama/llama-2-7b-hf"].precision == "bf16"
    assert {model.precision for model in labelled_extremes()} == {"fp16", "bf16", "fp32"}
