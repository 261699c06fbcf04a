"""Defines the precision page: how rounding error grows through the layers of a model, for each precision variant."""

import time
from typing import Any

import gradio as gr

from analyzers.core import limits
from analyzers.core.request import Progress
from analyzers.precision_variants.request import PrecisionRequest
from analyzers.precision_variants.variants import ABOUT, DEFAULT
from components.forms.fields import QUIET, Fields, build_model_fields, build_rows, build_text, build_tooltips, build_widget
from components.precision.form import ENGINE, PRETRAINED, RANDOM, TEXT, TOO_LARGE
from components.precision.result import RESULT
from components.running.analysis_page import AnalysisPage
from components.running.progress import Meter, listed
from components.text import numbers

# Bytes of a file that the browser reads, which are encoded: a request to the app may have little more (`limits.REQUEST_BYTES`).
_LINES_BYTES = limits.REQUEST_BYTES // 2
# JavaScript that lets the visitor choose a file, which the browser reads, so that the server stores none.
_LINES = (
    "(before) => new Promise((resolve) => { const input = document.createElement('input'); input.type = 'file'; "
    "input.accept = '.jsonl,.json,.txt'; input.oncancel = () => resolve(before); "
    "input.onchange = async () => { const file = input.files[0]; "
    f"resolve(!file ? before : file.size > {_LINES_BYTES} ? '{TOO_LARGE.format(_LINES_BYTES // 1_000_000)}' : await file.text()) }}; "
    "input.click() })"
)


# The presets that a page offers first, those of a request without any, in words.
IN_WORDS = {
    "bf16": "Everything in bf16",
    "bf16_fp32_lm_head": "bf16, head in fp32",
    "bf16_fp32_residual": "bf16, residual stream in fp32",
    "bf16_max_precision": "bf16, residual stream and head in fp32",
    "fp16": "Everything in fp16, with a loss scale",
}


class VariantMeter(Meter):
    """A meter with a list of the runs of the model, the current one last."""

    def __init__(self, expected: str = "") -> None:
        super().__init__(expected)
        self._began: dict[str, float] = {}
        self._took: dict[str, float] = {}

    def show(self, progress: Progress) -> str:
        """Return the progress as HTML, and record finished runs even if nothing is shown."""
        from analyzers.precision_variants import VariantProgress

        if isinstance(progress, VariantProgress):
            now = time.monotonic()
            began = self._began.setdefault(progress.variant, now)
            if progress.finished:
                self._took[progress.variant] = now - began
            # so that the note does not begin with the variant's name, which must not be capitalized
            progress = progress.model_copy(update={"note": f"running {progress.note}"})
        return super().show(progress)

    def found(self, progress: Progress) -> str:
        """Return the runs as HTML."""
        return listed("", [(name, self._how_long(name), None) for name in self._began])

    def _how_long(self, name: str) -> str:
        return numbers.duration(self._took[name]) if name in self._took else "running"


def build_fields(examples: list[str]) -> Fields:
    """Lay out the fields. examples: labels of their buttons. Call inside a page."""
    return build_model_fields(PrecisionRequest, "Run", examples, [_variants, _text, _options])


def _variants() -> dict[str, Any]:
    presets = gr.CheckboxGroup(
        [(words, name) for name, words in IN_WORDS.items()],
        value=list(DEFAULT),
        label="Variants",
        info="Each runs forward and backward and is compared with fp32. Point at a name, or tap it, for its meaning.",
        elem_id="m-variants",
    )
    build_tooltips(ABOUT)
    with gr.Accordion("More variants", open=False, elem_classes="m-options", elem_id="m-more-variants"):
        others = gr.CheckboxGroup(
            [(f"{name}: {about}", name) for name, about in ABOUT.items() if name not in IN_WORDS],
            value=[],
            show_label=False,
            label="More variants",
            elem_id="m-more",
        )
        own = gr.Textbox(
            label="Your own variants",
            info=(
                "One per line, name: key=value,... with the keys dtype (bf16, fp16, tf32, fp32), fp32 (parts joined by +: residual, "
                "lm_head, norms, router, softmax), autocast, attention, reductions, weights (int8, int4, fp8, fp8_tensor, mxfp4), round, "
                "adapter."
            ),
            placeholder="mine: dtype=bf16, fp32=residual+norms",
            lines=2,
            max_lines=8,
            elem_id="m-own",
        )
    return {"variants": presets, "more": others, "order": gr.Textbox(visible=False), "own": own}


def _text() -> dict[str, Any]:
    info = "Cut into sequences of equal length; every token but the first of each is predicted."
    sources = [("My own text", TEXT), ("Random tokens", RANDOM), ("An engine's log-probabilities", ENGINE)]
    own = {"label": "Your text", "elem_id": "m-text"}
    widgets = build_text(sources, info, ("sequences", "sequence_length"), PrecisionRequest, (TEXT, own))
    with gr.Column(visible=False) as engine:
        lines = gr.Textbox(
            label="Log-probabilities of an engine",
            info="JSON lines: token_ids with logprobs, or what vLLM (prompt_logprobs) or OpenAI's API answer. "
            "The file is read by your browser, sent with the run, and not stored.",
            placeholder='{"token_ids": [1, 15, 27], "logprobs": [null, -0.12, -3.4]}',
            lines=3,
            max_lines=8,
            elem_id="m-logprobs",
        )
        with gr.Row():
            choose = gr.Button("Choose a file", size="sm", elem_id="m-logprobs-file", elem_classes="m-small")
    choose.click(None, lines, lines, js=_LINES, **QUIET)
    widgets["data"].change(lambda source: gr.update(visible=source == ENGINE), widgets["data"], engine, queue=False, **QUIET)
    return widgets | {"logprobs": lines}


def _options() -> dict[str, Any]:
    with gr.Row():
        loss = build_widget(PrecisionRequest, "loss")
        kinds = [("As trained", PRETRAINED), ("Random", RANDOM)]
        about = "Random: as the architecture initializes them."
        weights = gr.Radio(kinds, value=PRETRAINED, label="Weights", info=about, elem_id="m-weights")
    rows = (("pre_rounded", "inside"), ("attention", "seed"), ("advantages", "clip_low", "clip_high"))
    widgets = {"loss": loss, "random_init": weights} | build_rows(PrecisionRequest, *rows)
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
    return widgets | {"old_logprobs": old_logprobs}


_SHORT = {"sequences": "2", "sequence_length": "128"}
_FP16 = {"variants": ["bf16", "fp16"], "more": ["fp16_autocast", "fp16_max_precision"]}
_INSIDE = {"variants": ["bf16", "fp16"], "more": ["bf16_fp32_softmax"], "loss": "gspo", "inside": True}
# Label of each example button -> the values that it fills in.
EXAMPLES: dict[str, dict[str, Any]] = {
    "tiny-bf16": {"model": "sample:tiny-bf16"} | _SHORT,
    "tiny-overflow, fp16": {"model": "sample:tiny-overflow"} | _FP16 | _SHORT,
    "tiny-fp32, computation only": {"model": "sample:tiny-fp32", "pre_rounded": True} | _SHORT,
    "tiny-bf16, GSPO, inside layers": {"model": "sample:tiny-bf16"} | _INSIDE | _SHORT,
    "SmolLM2-135M": {"model": "HuggingFaceTB/SmolLM2-135M"} | _SHORT,
}
PAGE = AnalysisPage(
    name="precision",
    question="What does rounding do to this model?",
    about="Enter a model: Mantissa runs it in bf16, fp16, or with some parts in fp32, forward and backward, and compares each run with "
    "fp32 layer by layer.",
    examples=EXAMPLES,
    fields=build_fields,
    result=RESULT,
    meter=VariantMeter,
    missing={
        "text": "The text of this analysis was too long for a link: paste it again, then press Run.",
        "logprobs": "A link does not hold the engine's log-probabilities: choose their file again under Options, then press Run.",
    },
)
