"""Lays out the result of exit feedback, and asks its question."""

from analyzers.exit import ExitRequest
from components.analyses.exit import plots
from components.analyses.question import Question
from components.result.layout import Figure, Layout, Tab, Table

# Number of points of a sweep (settings times seeds), for estimates of cost.
_SWEPT = 21


def _tokens(request: ExitRequest) -> int:
    """Estimate the tokens through the model: each signal is a product with the head for every setting and seed."""
    points = len(request.methods) * (1 + request.seeds + (_SWEPT if request.sweep else 0))
    return request.samples * request.sequence_length + request.tokens * points


LAYOUT = Layout(
    "Backprop-free gradients",
    (
        Tab(
            "Cosines",
            [
                Figure(
                    "Cosines at the head",
                    plots.at_head,
                    "Cosine of each signal with the exact gradient by token, median with 10% and 90%: 1 is backpropagation, 0 is chance.",
                ),
                Table("methods"),
            ],
        ),
        Tab(
            "Sweep",
            [
                Figure("Cosine against rank, k and anchors", plots.sweep, "Mean cosine by setting; bars span the seeds."),
                Table("sweep"),
            ],
            lambda report: report if any(row.parameter != "seed" for row in report.sweep) else None,
        ),
        Tab("By loss", [Table("loss_bins")]),
        Tab(
            "Cost",
            [
                Figure("Time of loss and gradients", plots.seconds, "At the head, on the machine that ran this."),
                Figure("Memory of loss and gradients", plots.memory, "Allocated in addition to weights and inputs."),
                Table("cost"),
            ],
        ),
    ),
)

QUESTION = Question(
    heading="How good is a gradient without backpropagation?",
    about="Replaces the gradient that a model's head sends back by cheaper signals: how close each comes to it, and at what cost.",
    button="Measure",
    examples={
        "tiny-bf16": {"model": "sample:tiny-bf16"},
        "tiny-bf16, no sweep": {"model": "sample:tiny-bf16", "sweep": False},
        "tiny-fp32, span and ceilings": {
            "model": "sample:tiny-fp32",
            "methods": ("parallel", "span", "svd", "true_rows"),
            "anchors": 16,
            "rank": 16,
        },
        "SmolLM2-135M": {
            "model": "HuggingFaceTB/SmolLM2-135M",
            "seeds": 4,
            "samples": 16,
            "sequence_length": 128,
            "tokens": 256,
        },
    },
    front=("methods", "samples", "tokens", "sweep"),
    less="fewer signals, seeds or tokens, no sweep, a smaller model",
    tokens=_tokens,
)
