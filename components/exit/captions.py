"""What the figures show, in a sentence each."""

from typing import TYPE_CHECKING

from components.exit.headline import too_few
from components.exit.names import NULL, data_name, give_or_take
from components.text import numbers

if TYPE_CHECKING:
    from analyzers.exit_feedback.report import ExitReport, OverSeeds

BEFORE = (
    "The same behind the final norm's backward pass, where the layers below get their gradient: what goes along the hidden state is gone, "
    "and with it the parallel signal."
)
ENERGY = (
    "How much of each gradient's energy goes along the hidden state; the rest goes across it. At the left edge, hollow: nothing at all. "
    "Before the final norm nearly all of what went along is taken out."
)
LAYERS = "Mean cosine at each layer as the logit lens sees it: final norm and head applied to what the layer gives."
LOSS_BINS = "Mean cosine for tokens of low and high loss, a fifth of them each."
COSINES_OF_TRAINING = (
    "Mean cosine of each signal with the exact gradient of the same trunk at that moment. Where it rises from 0, the trunk has turned "
    "towards the codes."
)


def at_head(report: "ExitReport") -> str:
    """What stands above the cosines."""
    inputs = report.inputs
    return (
        f"Cosine of each signal with the exact gradient, over {numbers.plural(inputs.measured, 'token')}: how often each occurs, and "
        "below, from tick to tick, 80% of them, with the median (full) and the mean (hollow). 1 is backpropagation, 0 is chance."
        f"{random_codes(report)}"
    )


def random_codes(report: "ExitReport") -> str:
    """What is to be expected of random codes, with what was found; nothing where none were asked for."""
    dense = report.methods.get("dense")
    over = dense.over_seeds if dense is not None else None
    found = [f" {_noise('random codes', over)}"] if over is not None else []
    return "".join([*found, f" {_noise('codes drawn anew each time', report.null)}"] if report.null is not None else found)


def _noise(what: str, over: "OverSeeds") -> str:
    noise = over.within_noise
    if noise is None:
        return f"Mean cosine of {what} on a frozen model: {too_few(over)}"
    said = "is within noise of 0" if noise else "is beyond noise"
    return f"Mean cosine of {what} on a frozen model {said}: {give_or_take(over.mean, over.standard_error)}."


def sweep(report: "ExitReport") -> str:
    """What stands above the sweep."""
    band = (
        f" The grey band is the null, {NULL}: codes drawn anew each time, of which nothing can be learnt."
        if report.null is not None
        else ""
    )
    return (
        "Mean cosine against rank, k and the number of anchors, all else as asked for; bars reach from the least to the most of several "
        f"seeds. Thin lines have no such setting: they stand where they were measured, the ceilings svd and true_rows among them.{band}"
    )


def training(report: "ExitReport") -> str:
    """What stands above the training curves."""
    trunk = report.trunk
    if trunk is None:
        return ""
    return (
        f"A small trunk ({numbers.plural(trunk.layers, 'layer')}, width {trunk.width}, {numbers.parameters(trunk.parameters)} parameters) "
        f"trained on the built-in text for {numbers.plural(trunk.steps, 'step')} of {trunk.batch} x {trunk.length} tokens, from the same "
        "first weights on the same batches. Its head always learns exactly; exact: so does the rest; frozen: the rest does not learn."
    )


def cost(report: "ExitReport") -> str:
    """What stands above the cost."""
    found = report.cost
    return (
        f"Loss and gradients of {numbers.plural(found.tokens, 'token')} at the head, on this machine ({report.environment.device}), median "
        f"of {found.repeats}: with all logits at once, and in pieces of {found.chunk:,} tokens."
    )


MEMORY = "The most that is allocated at one time, beyond weights and inputs."


def inputs(report: "ExitReport") -> str:
    """What the model was run on."""
    found = report.inputs
    begins = f' The first begins "{found.preview}".' if found.preview else ""
    return (
        f"Run on {numbers.plural(found.samples, 'sample')} of {data_name(report, pinned=True)}; {numbers.count(found.measured)} of "
        f"{numbers.plural(found.answer_tokens, 'token')} of answers were measured.{begins} The exact tokens are in the JSON."
    )
