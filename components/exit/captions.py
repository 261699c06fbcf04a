"""Captions and legends of the figures."""

from typing import TYPE_CHECKING

from analyzers.exit_feedback.signals import NULL
from components.exit.headline import too_few
from components.exit.names import data_name, give_or_take, styles
from components.text import numbers
from components.text.legend import legend

if TYPE_CHECKING:
    from analyzers.exit_feedback.report import ExitReport, OverSeeds

BEFORE = (
    "The same after the final norm's backward pass, where the layers below receive their gradient: it removes the component along the "
    "hidden state, and with it the parallel signal."
)
ENERGY = (
    "The share of each gradient's energy along the hidden state; the rest is orthogonal to it. In the strip at the left: zero. "
    "The final norm's backward pass removes nearly all of it."
)
LAYERS = "Mean cosine at each layer through the logit lens: final norm and head applied to the layer's output."
LOSS_BINS = "Mean cosine for tokens of low to high loss, a fifth of them each."
COSINES_OF_TRAINING = (
    "Mean cosine of each signal with the exact gradient of the same small transformer at that step. A rise from 0 means that its "
    "weights align with the codes."
)
MEMORY = "Peak memory in addition to weights and inputs."


def at_head(report: "ExitReport") -> str:
    """Above the cosines."""
    return (
        f"Cosine of each signal with the exact gradient over {numbers.plural(report.inputs.measured, 'token')}: histogram, and below it "
        "the range of 80% of tokens with median (full) and mean (hollow). 1 is backpropagation, 0 is chance."
        f"{random_codes(report)}"
    )


def random_codes(report: "ExitReport") -> str:
    """What random codes give on a frozen model; empty where none were requested."""
    dense = report.methods.get("dense")
    over = {"random codes": dense.over_seeds if dense is not None else None, "codes drawn anew for every batch": report.null}
    return "".join(f" {_noise(what, seeds)}" for what, seeds in over.items() if seeds is not None)


def _noise(what: str, over: "OverSeeds") -> str:
    if over.within_noise is None:
        return f"Mean cosine of {what} on a frozen model: {too_few(over)}"
    verdict = "is within noise of 0" if over.within_noise else "is beyond noise"
    return f"Mean cosine of {what} on a frozen model {verdict}: {give_or_take(over.mean, over.standard_error)}."


def sweep(report: "ExitReport") -> str:
    """Above the sweep."""
    band = f" The gray band is the null, {NULL}: codes drawn anew for every batch." if report.null is not None else ""
    return (
        "Mean cosine against rank, k and the number of anchors, with the other settings as requested; bars span the seeds. Thin lines are "
        f"signals without that setting, the ceilings svd and true_rows among them.{band}"
    )


def training(report: "ExitReport") -> str:
    """Above the training curves."""
    trunk = report.trunk
    if trunk is None:
        return ""
    return (
        f"A small transformer ({numbers.plural(trunk.layers, 'layer')}, width {trunk.width}, "
        f"{numbers.parameters(trunk.parameters)} parameters) trained on the built-in text for {numbers.plural(trunk.steps, 'step')} of "
        f"{trunk.batch} x {trunk.length} tokens, with the same initial weights and batches. Its head always "
        "learns by its exact gradient; exact: all layers do; frozen: only the head learns."
    )


def cost(report: "ExitReport") -> str:
    """Above the cost."""
    return (
        f"Loss and gradients of {numbers.plural(report.cost.tokens, 'token')} at the head on this machine ({report.environment.device}), "
        f"median of {report.cost.repeats} runs: all logits at once, and in chunks of {report.cost.chunk:,} tokens."
    )


def inputs(report: "ExitReport") -> str:
    """The text that the model ran on."""
    text = report.inputs
    begins = f' The first begins "{text.preview}".' if text.preview else ""
    return (
        f"Run on {numbers.plural(text.samples, 'sample')} of {data_name(report, pinned=True)}; {numbers.count(text.measured)} of "
        f"{numbers.plural(text.answer_tokens, 'answer token')} were measured.{begins} The exact tokens are in the JSON."
    )


def signal_legend(report: "ExitReport") -> str:
    """Every signal requested."""
    return _legend(list(report.methods))


def sweep_legend(report: "ExitReport") -> str:
    """The same, and the null where there is one."""
    return _legend([*report.methods, *([NULL] if report.null is not None else [])])


def training_legend(report: "ExitReport") -> str:
    """Every signal that the small transformer was trained under."""
    return _legend([row.method for row in report.training])


def _legend(names: list[str]) -> str:
    return legend(names, styles=styles(names))
