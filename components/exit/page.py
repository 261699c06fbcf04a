"""Defines the exit page: how close gradients without backpropagation are to the exact one at the head of a model."""

from typing import Any

from analyzers.core.formatting import cosine
from analyzers.core.request import Progress
from analyzers.exit_feedback import ExitRequest
from analyzers.exit_feedback.signals import EXACT, NULL, SIGNALS
from analyzers.exit_feedback.words import signal_name
from components.exit.result import RESULT
from components.forms.fields import Fields, build_model_fields, build_rows, build_text, build_tooltips, build_widget
from components.running.analysis_page import AnalysisPage
from components.running.progress import Meter, listed

_COMPARED = {
    EXACT: "backpropagation",
    NULL: "dense, with codes drawn anew for every batch of tokens",
}


class SignalMeter(Meter):
    """A meter with a list of the latest cosine of each signal."""

    def found(self, progress: Progress) -> str:
        """Return the lists as HTML."""
        from analyzers.exit_feedback import ExitProgress

        if not isinstance(progress, ExitProgress):
            return ""
        rows = [(signal_name(name), cosine(value), None) for name, value in progress.cosines.items()]
        return listed("Mean cosine with the exact gradient", rows)


def build_fields(examples: list[str]) -> Fields:
    """Lay out the fields. examples: labels of the example buttons. Call inside a page."""
    return build_model_fields(ExitRequest, "Measure", examples, [_signals, _text, _options])


def _signals() -> dict[str, Any]:
    methods = build_widget(ExitRequest, "methods")
    build_tooltips({name: facts.about for name, facts in SIGNALS.items()} | _COMPARED)
    return {"methods": methods} | build_rows(ExitRequest, ("rank", "k", "anchors", "seeds"))


def _text() -> dict[str, Any]:
    info = "Instructions with answers. Gradients are measured at the answer tokens."
    return build_text([], info, ("samples", "sequence_length"), ExitRequest)


def _options() -> dict[str, Any]:
    return build_rows(
        ExitRequest,
        ("layers", "sweep"),
        ("rank_exact", "rank_tail", "topk_by"),
        ("alpha", "residual", "mass_threshold"),
        ("tokens", "dtype", "seed"),
    )


# Label of each example button -> the values that it fills in. The first takes about ten seconds.
EXAMPLES: dict[str, dict[str, Any]] = {
    "at a glance": {
        "model": "sample:tiny-bf16",
        "methods": ["dense", "parallel", "span", "svd"],
        "seeds": "2",
        "samples": "8",
        "sequence_length": "128",
        "tokens": "128",
        "sweep": False,
        "layers": "final",
    },
    "tiny-bf16": {"model": "sample:tiny-bf16"},
    "tiny-bf16, no sweep": {"model": "sample:tiny-bf16", "sweep": False, "layers": "final"},
    "tiny-fp32, span and ceilings": {
        "model": "sample:tiny-fp32",
        "methods": ["parallel", "span", "svd", "true_rows"],
        "anchors": "16",
        "rank": "16",
    },
    "SmolLM2-135M": {"model": "HuggingFaceTB/SmolLM2-135M", "seeds": "4", "samples": "16", "sequence_length": "128", "tokens": "256"},
}
PAGE = AnalysisPage(
    name="exit",
    question="How good is a gradient without backpropagation?",
    about="Enter a model: at its head, Mantissa replaces the gradient that backpropagation would send into the model by cheaper signals, "
    "and reports how close each comes to the exact one, and what it costs.",
    examples=EXAMPLES,
    fields=build_fields,
    result=RESULT,
    meter=SignalMeter,
)
