"""Label, relative, classifier: which one answers, and what it says."""

from pathlib import Path

import pytest

from analyzers.dtype.classifier import Relatives, confidence
from analyzers.dtype.labelled_models import Label
from analyzers.dtype.rows import Extremes, Lineage, Training
from analyzers.dtype.training_precision import infer_training
from tests.dtype.checkpoints import normal, write
from tests.dtype.reports import exact
from tools.classifier import evaluated, relatives


def base(abs_max: float | None = 1.0, norm_max: float | None = 400.0, exact: bool = True) -> Extremes:
    return Extremes(abs_min=0, abs_min_nonzero=1e-9, abs_max=abs_max, norm_min=0.1, norm_max=norm_max, exact=exact)


def infer(extremes: Extremes | None = None, label: Label | None = None) -> Training:
    found = infer_training(label, extremes or base())
    assert found.probabilities == {} or sum(found.probabilities.values()) == pytest.approx(1)
    return found


def test_a_label_beats_everything() -> None:
    found = infer(label=Label("bf16-mixed", "a paper"))
    assert (found.verdict, found.basis, found.probabilities, found.source) == ("bf16-mixed", "label", {"bf16": 1.0}, "a paper")
    assert infer(label=Label("mxfp4-post-trained", "a README")).probabilities == {}


OPT = ("opt", ["model.decoder.layers.0.self_attn.q_proj.weight"])


def test_a_labelled_model_of_the_same_architecture_tells_it() -> None:
    found = infer_training(None, base(1.0, 350.0), *OPT)
    assert (found.verdict, found.basis, found.nearest) == ("fp16", "family", "facebook/opt-1.3b")
    assert found.probabilities["fp16"] == confidence() == 15 / 16 and sum(found.probabilities.values()) == pytest.approx(1)


def test_the_label_of_the_base_beats_resemblance() -> None:
    found = infer_training(None, base(1.0, 350.0), *OPT, base=("org/base", Label("bf16-mixed", "a paper")))
    assert (found.verdict, found.basis, found.nearest, found.source) == ("bf16", "base", "org/base", "a paper")
    own = infer_training(Label("fp16", "a log"), base(1.0, 350.0), *OPT, base=("org/base", Label("bf16-mixed", "a paper")))
    assert (own.verdict, own.basis) == ("fp16", "label")
    unknown = infer_training(None, base(1.0, 350.0), *OPT, base=("org/base", Label("mxfp4-post-trained", "a README")))
    assert unknown.basis == "family"


def test_the_base_is_that_of_the_card_or_of_the_adapter(tmp_path: Path) -> None:
    folder = write(tmp_path / "tuned", {"model.layers.0.mlp.up_proj.weight": normal(64, 64)})
    (folder / "README.md").write_text("---\nlicense: mit\nbase_model:\n- somebody/else\n- meta-llama/Llama-2-7b-hf\n---\n")
    training = exact(folder).training
    assert (training.verdict, training.basis, training.nearest) == ("bf16", "base", "meta-llama/Llama-2-7b-hf")
    merged = exact("sample:tiny-bf16+sample:tiny-adapter").training
    assert (merged.verdict, merged.basis, merged.nearest) == ("bf16", "base", "sample:tiny-bf16")


@pytest.mark.parametrize(
    ("passed_through", "stored", "verdict"),
    [
        ((), "F16", "fp16"),
        ((), "F32", "fp16"),
        (("fp16",), "BF16", "fp16"),  # bf16 came later
        ((), "BF16", "undecided"),
        (("bf16",), "F32", "undecided"),
        (("bf16",), "F16", "undecided"),
        (("fp8_e4m3",), "BF16", "undecided"),
    ],
)
def test_nothing_is_inferred_that_the_bits_contradict(passed_through: tuple[str, ...], stored: str, verdict: str) -> None:
    lineage = Lineage(stored=stored, passed_through=passed_through, verdict="native", evidence=(), parts=(), fossil_rows=0, telling=1)
    found = infer_training(None, base(1.0, 350.0), *OPT, lineage)
    assert (found.verdict, found.nearest_precision) == (verdict, "fp16")
    assert found.contradicted_by == (None if verdict == "fp16" else "bf16")
    assert bool(found.probabilities) == (verdict == "fp16")
    label = infer_training(Label("fp16", "a paper"), base(), lineage=lineage)
    assert (label.verdict, label.contradicted_by) == ("fp16", None)  # a label is evidence of another kind


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
    assert infer_training(None, magnitudes, model_type, names).verdict == "undecided"


def test_relatives_are_right_about_labelled_models_left_out() -> None:
    assert relatives() == evaluated().relatives == Relatives(answered=14, right=14)


@pytest.mark.parametrize("extremes", [base(None, None), base(1.7e308, None)])
def test_without_a_basis_there_is_no_answer(extremes: Extremes) -> None:
    found = infer(extremes)
    assert (found.verdict, found.basis, found.probabilities) == ("undecided", "none", {})
