"""Label, relative, classifier: which one answers, and what it says."""

from typing import Any

import pytest

from analyzers.dtype_detection.labelled_models import Label, labelled_extremes, labels
from analyzers.dtype_detection.report import Extremes, Lineage, Training
from analyzers.dtype_detection.similar_models import answered, confidence
from analyzers.dtype_detection.training_precision import infer_training


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
    found = infer_training(label, lineage(**history), extremes or base())
    assert found.probabilities == {} or sum(found.probabilities.values()) == pytest.approx(1)
    return found


def test_a_label_beats_everything() -> None:
    found = infer(label=Label("bf16-mixed", "a paper"), passed_through=("fp16",), verdict="upcast-from-fp16")
    assert (found.verdict, found.basis, found.probabilities, found.source) == ("bf16-mixed", "label", {"bf16": 1.0}, "a paper")
    assert infer(label=Label("mxfp4-post-trained", "a README")).probabilities == {}


@pytest.mark.parametrize(
    ("stored", "verdict", "passed_through", "why"),
    [
        ("F32", "upcast-from-fp16", ("fp16",), "can be saved in fp16"),
        ("F32", "upcast-from-bf16", ("fp8_e4m3", "bf16"), "can be saved in bf16"),
        ("F64", "upcast-from-fp32", ("fp32",), "writes fp32 masters"),
        ("F32", "mixed", ("bf16",), "writes fp32 masters"),
        ("BF16", "native", (), "can be saved in bf16"),
        ("F16", "undecided", (), "can be saved in fp16"),
        ("BF16", "fp8-ancestor", ("fp8_e4m3",), "can be saved in fp8 e4m3"),
        ("F8_E4M3", "undecided", (), "can be saved in fp8 e4m3"),
    ],
)
def test_the_format_of_a_copy_is_no_answer(stored: str, verdict: str, passed_through: tuple[str, ...], why: str) -> None:
    found = infer(base(200.0, 5e4), stored=stored, verdict=verdict, passed_through=passed_through)
    assert (found.verdict, found.basis, found.probabilities) == ("undecided", "classifier", {})
    assert found.explanation.startswith(f"It cannot be told from the weights. Every kind of training {why}. Magnitudes without LM head")


OPT = ("opt", ["model.decoder.layers.0.self_attn.q_proj.weight"])


def test_a_labelled_model_of_the_same_architecture_tells_it() -> None:
    found = infer_training(None, lineage(), base(1.0, 350.0), *OPT)
    assert (found.verdict, found.basis) == ("fp16", "family") and "facebook/opt-1.3b" in found.explanation
    assert found.probabilities["fp16"] == confidence() == 15 / 16 and sum(found.probabilities.values()) == pytest.approx(1)
    for history in ({"stored": "BF16"}, {"verdict": "upcast-from-bf16", "passed_through": ("bf16",)}):
        assert infer_training(None, lineage(**history), base(1.0, 350.0), *OPT) == found


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
    assert infer_training(None, lineage(), magnitudes, model_type, names).verdict == "undecided"


def test_relatives_are_right_about_labelled_models_left_out() -> None:
    assert answered() == (14, 14)


@pytest.mark.parametrize("extremes", [base(None, None), base(1.7e308, None)])
def test_without_a_basis_there_is_no_answer(extremes: Extremes) -> None:
    found = infer(extremes)
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
