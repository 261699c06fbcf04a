"""Lays out the result of compare from the tabs of parents and of update sparsity, and asks its question."""

from dataclasses import replace
from typing import Any

from analyzers.core.report import Report
from components.analyses.parents.layout import ANCESTRY, QUANTIZED, WEIGHTS
from components.analyses.question import Question
from components.analyses.sparsity.layout import HOW_MUCH, OVER_TIME, TENSORS, WHERE
from components.result.layout import Layout, Tab, Table


def _of(field: str, tab: Tab) -> Tab:
    """Return a tab about the report in a field, which may be None."""

    def part(report: Any) -> Report | None:
        inner = getattr(report, field)
        return None if inner is None else tab.part(inner)

    return replace(tab, part=part)


LAYOUT = Layout(
    "Comparison",
    (
        Tab("Which copy", [Table("copies")]),
        *(_of("parents", tab) for tab in (ANCESTRY, WEIGHTS, QUANTIZED)),
        *(_of("sparsity", tab) for tab in (WHERE, HOW_MUCH, TENSORS, OVER_TIME)),
    ),
)

QUESTION = Question(
    heading="What are these models to each other?",
    about="Name two models or more, the older one first if you know: samples of their weights (64 MB of each) show "
    "whether they are the same in another form, a fine-tune, a merge, a stack of layers or unrelated. One alone is compared with the "
    "base_model of its card, and with models of the library whose tensors have the same shapes.",
    button="Compare",
    examples={
        "tiny-bf16 and tiny-tuned": {"models": ("sample:tiny-bf16", "sample:tiny-tuned")},
        "tiny-bf16 and tiny-bf16-as-fp32": {"models": ("sample:tiny-bf16", "sample:tiny-bf16-as-fp32")},
        "a run: tiny-bf16, tiny-step-1 to 4": {"models": ("sample:tiny-bf16", *(f"sample:tiny-step-{step}" for step in range(1, 5)))},
        "R1-Distill-Qwen-1.5B and DeepScaleR-1.5B": {
            "models": ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "agentica-org/DeepScaleR-1.5B-Preview")
        },
    },
    front=("mode", "budget", "spectral"),
    less="quick mode, a smaller budget, fewer models",
)
