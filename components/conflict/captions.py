"""What the figures show, in a sentence each."""

from typing import TYPE_CHECKING

from components.conflict.names import data_name, unit, units
from components.text import numbers

if TYPE_CHECKING:
    from analyzers.gradient_conflict.report import ConflictReport

DOMINANCE = "Each sample's part of the sum of squared whole gradients, in percent. The line is an equal part for all."
PUBLISHED = (
    "The one published run of this measurement: Llama-2-7b with a top-k FFN in its last layer (12.5 % by gate), 50 samples of Alpaca. "
    "Its historic rate is the share of conflicts among the ordered pairs of samples, each with itself included, whose gradients are both "
    "above 0."
)
LAYERS = (
    "Conflict counts pairs of distinct samples. The historic rate is that of the published run: ordered pairs whose gradients are both "
    "above 0, each sample with itself included."
)


def rates(report: "ConflictReport") -> str:
    """What stands above the rates by layer."""
    gamma = report.request.gamma
    conflict = f"have a cosine below {gamma:g}" if gamma else "point in opposite directions"
    return (
        f"In how many percent of the pairs of samples the gradients of the same {unit(report)} {conflict}, by layer, with 95 % intervals "
        "over samples."
    )


def similarity(report: "ConflictReport") -> str:
    """What stands above the similarities by layer."""
    return f"How similar the sizes of two samples' gradients of the same {unit(report)} are: 2|g||h| / (|g|² + |h|²), mean over pairs."


def cosines(report: "ConflictReport") -> str:
    """What stands above the heat map."""
    which = " of the top-k FFN" if report.original is not None else ""
    return f"Cosine between the whole gradients{which} of two samples: below 0, orange, they conflict. Point at a cell to read the samples."


def batches(report: "ConflictReport") -> str:
    """What stands above the curve."""
    scale = report.model.whole.noise_scale
    said = f" The noise scale, where noise and signal are equal, is estimated as {numbers.magnitude(scale)}." if scale is not None else ""
    return f"Conflict between the mean gradients of random batches: averaging over more samples leaves less to pull apart.{said}"


def deciles(report: "ConflictReport") -> str:
    """What stands above the deciles."""
    return (
        "Neurons of each layer by how active they are on one half of the samples, and the conflict between the samples of the other half, "
        "with 95 % intervals. Decile 10 has the most active."
    )


def samples(report: "ConflictReport") -> str:
    """What stands above the table of samples."""
    data = report.data
    cut = f" {data.truncated} of them cut off." if data.truncated else ""
    return (
        f"The {numbers.plural(data.samples, 'sample')} of {data_name(report, pinned=True)} as they were run: "
        f"{numbers.plural(data.tokens, 'token')}, {numbers.count(data.answer_tokens)} of them in answers, whose loss is "
        f"differentiated.{cut} The exact tokens are in the JSON."
    )


def weights(report: "ConflictReport") -> str:
    """What stands above the table of weights."""
    return (
        f"Each single weight of the {units(report)}: of how many pairs of samples the gradients have opposite signs there, how far the "
        "signs agree, and the ratio of squared mean to variance over samples, beside what it is expected to be without any common signal."
    )


def published(report: "ConflictReport") -> str:
    """What stands above the published layers."""
    from analyzers.gradient_conflict.published import comparable

    if not comparable(report.checkpoint.ref) or report.ffn.unit != "ffn":
        return f"{PUBLISHED} This run, of another model or unit, is not drawn beside it; the page's last example asks for that setting."
    return f"{PUBLISHED} This run is drawn beside it by the same definition."
