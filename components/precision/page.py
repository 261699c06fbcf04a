"""The precision page: how rounding error grows through the layers of a model, for each precision variant."""

import time
from typing import Any

import gradio as gr

from analyzers import limits
from analyzers.base import Progress
from analyzers.precision_variants.request import CLIP
from analyzers.precision_variants.variants import DEFAULT
from components.forms.fields import Fields, build_attention, build_choice, build_model_fields, build_number, build_text, build_tooltips
from components.precision.form import PRETRAINED, RANDOM, TEXT, Form, form
from components.precision.result import RESULT
from components.precision.text import PRESETS
from components.running.analysis_page import AnalysisPage
from components.running.progress import Meter, listed
from components.text import numbers


class VariantMeter(Meter):
    """Lists the runs of the model below the bar, the current one last."""

    def __init__(self, expected: str = "") -> None:
        super().__init__(expected)
        self._began: dict[str, float] = {}
        self._took: dict[str, float] = {}

    def show(self, progress: Progress) -> str:
        """The progress in HTML; also records finished runs when nothing is shown."""
        from analyzers.precision_variants import VariantProgress

        if isinstance(progress, VariantProgress):
            now = time.monotonic()
            began = self._began.setdefault(progress.variant, now)
            if progress.finished:
                self._took[progress.variant] = now - began
            # a note begins with a name, which must not be capitalized
            progress = progress.model_copy(update={"note": f"running {progress.note}"})
        return super().show(progress)

    def found(self, progress: Progress) -> str:
        """The runs, in HTML."""
        return listed("", [(name, self._how_long(name), None) for name in self._began])

    def _how_long(self, name: str) -> str:
        return numbers.duration(self._took[name]) if name in self._took else "running"


def build_fields(examples: list[str]) -> Fields:
    """Lay out the fields. examples: labels of their buttons. Call inside a page."""
    return build_model_fields("Run", examples, [_variants, _text, _runs, _options])


def _variants() -> list[Any]:
    """presets, own."""
    presets = gr.CheckboxGroup(
        list(PRESETS),
        value=list(DEFAULT),
        label="Variants",
        info="Each runs forward and backward and is compared with fp32. Hover over a name for its meaning.",
        elem_id="m-variants",
    )
    build_tooltips(PRESETS)
    own = gr.Textbox(
        label="Your own variants",
        info=(
            "One per line, name: key=value,... with the keys dtype (bf16, fp16, tf32, fp32), fp32 (parts joined by +: residual, lm_head, "
            "norms, router, softmax), autocast, attention, reductions, weights (int8, fp8, mxfp4), round."
        ),
        placeholder="mine: dtype=bf16, fp32=residual+norms",
        lines=2,
        max_lines=8,
        elem_id="m-own",
    )
    return [presets, own]


def _text() -> list[Any]:
    """source, sequences, sequence_length, text, dataset."""
    info = "Cut into sequences of equal length; every token but the first of each is predicted."
    own = {"label": "Your text", "elem_id": "m-text"}
    return build_text([("My own text", TEXT), ("Random tokens", RANDOM)], info, _amounts, (TEXT, own))


def _amounts() -> list[Any]:
    return [
        build_number("Sequences", "2", f"From 1 to {limits.PRECISION_SEQUENCES}.", "m-sequences"),
        build_number("Tokens per sequence", "512", f"From 2 to {limits.PRECISION_TOKENS:,}.", "m-length"),
    ]


def _runs() -> list[Any]:
    """loss, weights."""
    with gr.Row():
        losses = [("Cross-entropy", "ce"), ("GSPO", "gspo"), ("GRPO", "grpo")]
        loss = build_choice(losses, "Loss", "Its gradients are compared. GSPO and GRPO are policy gradients.", "m-loss")
        kinds = [("As trained", PRETRAINED), ("Random", RANDOM)]
        weights = build_choice(kinds, "Weights", "Random: as the architecture initializes them.", "m-weights")
    return [loss, weights]


def _options() -> list[Any]:
    """pre_rounded, inside, attention, advantages, old_logprobs, clip_low, clip_high, seed."""
    with gr.Row():
        pre_rounded = gr.Checkbox(
            label="Round the reference's weights too",
            info="Like each variant's, which leaves the error of the computation alone.",
            elem_id="m-pre-rounded",
        )
        inside = gr.Checkbox(
            label="Look inside the layers", info="Also compare the output of each module within a layer.", elem_id="m-inside"
        )
    with gr.Row():
        attention = build_attention("Of the reference, and of variants that do not set it.")
        seed = build_number("Seed", "0", "For random weights, tokens and advantages.")
    with gr.Row():
        advantages = build_number("Advantages", "1, -0.5", "For GSPO and GRPO, one per sequence; random if empty.", width=200)
        low, high = (", ".join(f"{loss.upper()} {bounds[side]:g}" for loss, bounds in CLIP.items()) for side in (0, 1))
        clip_low = build_number("Clip below 1 by", low, "1 clips nothing.", "m-clip-low", width=200)
        clip_high = build_number("Clip above 1 by", high, "1e6 clips nothing.", "m-clip-high", width=200)
    old_logprobs = gr.Textbox(
        label="Old log-probabilities",
        info=(
            "For GSPO and GRPO, under the policy that sampled the tokens: per sequence one line, a JSON list with a number for each token "
            "but the first. If empty, those of the reference."
        ),
        placeholder="[-0.12, -3.4, -0.8]",
        lines=2,
        max_lines=8,
        elem_id="m-old-logprobs",
    )
    return [pre_rounded, inside, attention, advantages, old_logprobs, clip_low, clip_high, seed]


_SHORT: dict[str, Any] = {"sequences": "2", "sequence_length": "128"}
_FP16 = ("bf16", "fp16", "fp16_autocast", "fp16_max_precision")
# Label of each example button, and its form.
EXAMPLES = {
    "tiny-bf16": Form("sample:tiny-bf16", **_SHORT),
    "tiny-overflow, fp16": Form("sample:tiny-overflow", _FP16, **_SHORT),
    "tiny-fp32, computation only": Form("sample:tiny-fp32", **_SHORT, pre_rounded=True),
    "tiny-bf16, GSPO, inside layers": Form("sample:tiny-bf16", ("bf16", "bf16_fp32_softmax", "fp16"), **_SHORT, loss="gspo", inside=True),
    "SmolLM2-135M": Form("HuggingFaceTB/SmolLM2-135M", **_SHORT),
}
PAGE = AnalysisPage(
    name="precision",
    question="What does rounding do to this model?",
    about="Name a model: Mantissa runs it in bf16, fp16, or with some parts in fp32, forward and backward, and compares each run with fp32 "
    "layer by layer.",
    examples=EXAMPLES,
    form=Form,
    of_query=form,
    fields=build_fields,
    result=RESULT,
    meter=VariantMeter,
    own="text",
    missing="The text of this analysis was too long for a link: paste it again, then press Run.",
)
