"""What the figures show, in a sentence each."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from components.conflict.names import data_name, unit, units
from components.text import numbers

if TYPE_CHECKING:
    from analyzers.gradient_conflict.report import ConflictReport

DOMINANCE = "Each sample's share of the squared norm of the whole gradients, in percent. The line marks equal shares."
NEURON_COSINES = "Cosines between the samples' gradients of one neuron; choose which. Below 0, orange, they conflict."
PUBLISHED = (
    "The one published run of this measurement: Llama-2-7b with a top-k FFN in its last layer (12.5% by gate), 50 samples of Alpaca. "
    "Its rate is the share of conflicts among the ordered pairs of samples, each with itself included, whose gradients are both above 0."
)
LAYERS = (
    "Conflict counts pairs of distinct samples. The rate as published counts ordered pairs whose gradients are both above 0, each sample "
    "with itself included."
)


def rates(report: "ConflictReport") -> str:
    """Above the rates by layer."""
    gamma = report.request.gamma
    conflict = f"have a cosine below {gamma:g}" if gamma else "point in opposite directions"
    return (
        f"Percentage of pairs of samples whose gradients of the same {unit(report)} {conflict}, by layer, with 95% intervals over samples."
    )


def similarity(report: "ConflictReport") -> str:
    """Above the similarities by layer."""
    return f"Gradient-norm similarity of two samples in the same {unit(report)}: 2|g||h| / (|g|² + |h|²), mean over pairs."


def cosines(report: "ConflictReport") -> str:
    """Above the heat map."""
    which = " of the top-k FFN" if report.original is not None else ""
    return (
        f"Cosines between the whole gradients{which} of two samples: below 0, orange, they conflict. Hover over a cell to read the samples."
    )


def batches(report: "ConflictReport") -> str:
    """Above the curve."""
    scale = report.model.whole.noise_scale
    said = f" The estimated noise scale, at which noise equals signal, is {numbers.magnitude(scale)}." if scale is not None else ""
    return f"Conflict between the mean gradients of random batches: averaging over more samples leaves less conflict.{said}"


def deciles(report: "ConflictReport") -> str:
    """Above the deciles."""
    return (
        "Neurons of each layer, ranked by mean |activation| on one half of the samples, and the conflict between the samples of the other "
        "half, with 95% intervals. Decile 10 has the most active."
    )


def samples(report: "ConflictReport") -> str:
    """Above the table of samples."""
    data = report.data
    cut = f" {data.truncated} of them truncated." if data.truncated else ""
    template = f" Prompt template: {data.template}." if data.template else ""
    return (
        f"The {numbers.plural(data.samples, 'sample')} of {data_name(report, pinned=True)} as they were run{_chosen(report)}: "
        f"{numbers.plural(data.tokens, 'token')}, {numbers.count(data.answer_tokens)} of them in answers, over which the loss is "
        f"taken.{cut}{template} The exact tokens are in the JSON."
    )


def _chosen(report: "ConflictReport") -> str:
    """How samples were chosen, where not all rows were taken."""
    rows, request = report.data.rows, report.request
    if rows is None:
        return ", the first of the data"
    if rows <= report.data.samples:
        return ""
    how = f"at random with seed {request.seed}" if request.choice == "random" else "as the first"
    return f", chosen {how} from {numbers.plural(rows, 'row')}"


def has_neurons(report: "ConflictReport") -> bool:
    """Whether single neurons can be shown: some have enough pairs of samples, and the report is not of version 1."""
    return report.neurons is not None and bool(report.neurons.cosines)


def neurons(report: "ConflictReport") -> str:
    """Above the table of neurons."""
    found = report.neurons
    if found is None:
        return ""
    few = f" {numbers.count(found.total - found.ranked)} are not ranked: fewer pairs count in them." if found.ranked < found.total else ""
    return (
        f"The most and the least conflicted of {numbers.count(found.total)} {units(report)}, ranked by conflict rate where at least half "
        f"of the pairs of samples count.{few} The command line's --csv writes all of them."
    )


def weights(report: "ConflictReport") -> str:
    """Above the table of weights."""
    return (
        f"Each weight of the {units(report)}: the share of pairs of samples whose gradients have opposite signs, the agreement of signs, "
        "and the ratio of squared mean to variance over samples, next to its expected value without a common signal."
    )


def published(report: "ConflictReport") -> str:
    """Above the published layers."""
    from analyzers.gradient_conflict.published import departures

    differs = departures(report)
    if not differs:
        return f"{PUBLISHED} This run has the same setting and is drawn next to it, by the same definition."
    return f"{PUBLISHED} This run differs in {_listed(differs)}, so it is not drawn next to it. The page's last example is that setting."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
