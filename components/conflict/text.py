"""What the page calls units, FFNs and samples, and the captions of figures and tables; plain text."""

from collections.abc import Callable, Sequence
from itertools import takewhile

from analyzers.gradient_conflict.report import ConflictReport
from analyzers.gradient_conflict.summaries import Measurement, NeuronCosines, NeuronRow, Rates
from components.text import numbers
from components.text.names import source_name
from components.text.plain_text import shown

TOPK, ORIGINAL = "top-k FFN", "original FFN"
_EXCERPT = 64
_OURS = {"builtin": "the built-in text", "pairs": "pairs given"}


def data_name(report: ConflictReport, pinned: bool = False) -> str:
    """Where the samples are from, ``pinned`` with the commit."""
    return source_name(report.data.source, _OURS, report.data.commit if pinned else None)


def unit(report: ConflictReport) -> str:
    """A unit, in the singular."""
    return "neuron" if report.ffn.unit == "ffn" else "row of an attention projection"


def units(report: ConflictReport) -> str:
    """Units, in the plural."""
    return "neurons" if report.ffn.unit == "ffn" else "rows of attention projections"


def unit_name(row: "NeuronRow | NeuronCosines") -> str:
    """One unit, by where it is: layer, expert or projection, and number."""
    within = f", expert {row.expert}" if row.expert is not None else f", {row.block}" if row.block is not None else ""
    return f"Layer {row.layer}{within}, {'neuron' if row.block is None else 'row'} {row.neuron}"


def sides(report: ConflictReport) -> list[tuple[str, Measurement]]:
    """The measurements, each with its name: top-k and original, or without top-k the only one, named after its units."""
    if report.original is None:
        return [(units(report), report)]
    return [(TOPK, report), (ORIGINAL, report.original)]


def as_it_is(report: ConflictReport) -> Measurement:
    """The measurement of the model without a top-k FFN."""
    return report.original or report


def change(report: ConflictReport, value: Callable[[Measurement], str]) -> str:
    """A value of the model as it is and, where there is a top-k FFN, with it."""
    before = value(as_it_is(report))
    return before if report.original is None else f"{before} → {value(report)} with top-k"


def rate(report: ConflictReport) -> str:
    """The conflict rate of the model as it is and, where there is a top-k FFN, with it."""
    return change(report, lambda found: numbers.share(found.model.conflict_rate))


def excerpts(report: ConflictReport, longest: int = _EXCERPT) -> list[str]:
    """The beginning of each sample's text, without the words that all of them begin with."""
    texts = [sample.text for sample in report.samples]
    ends = zip(min(texts), max(texts), strict=False)  # a prefix of the first and last in sorted order is one of all
    common = min(texts)[: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], ends))] if len({*texts}) > 1 else ""
    start = max(common.rfind(" "), common.rfind("\n")) + 1
    left = [text[start:].strip() for text in texts]
    return [shown(text if len(text) <= longest else text[: longest - 1] + "…", longest) for text in left]


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


def rates(report: ConflictReport) -> str:
    """Above the rates by layer."""
    gamma = report.request.gamma
    conflict = f"have a cosine below {gamma:g}" if gamma else "point in opposite directions"
    return (
        f"Percentage of pairs of samples whose gradients of the same {unit(report)} {conflict}, by layer, with 95% intervals over samples."
    )


def similarity(report: ConflictReport) -> str:
    """Above the similarities by layer."""
    return f"Gradient-norm similarity of two samples in the same {unit(report)}: 2|g||h| / (|g|² + |h|²), mean over pairs."


def cosines(report: ConflictReport) -> str:
    """Above the heat map."""
    which = " of the top-k FFN" if report.original is not None else ""
    return (
        f"Cosines between the whole gradients{which} of two samples: below 0, orange, they conflict. Hover over a cell to read the samples."
    )


def batches(report: ConflictReport) -> str:
    """Above the curve."""
    scale = report.model.whole.noise_scale
    said = f" The estimated noise scale, at which noise equals signal, is {numbers.magnitude(scale)}." if scale is not None else ""
    return f"Conflict between the mean gradients of random batches: averaging over more samples leaves less conflict.{said}"


def deciles(report: ConflictReport) -> str:
    """Above the deciles."""
    return (
        "Neurons of each layer, ranked by mean |activation| on one half of the samples, and the conflict between the samples of the other "
        "half, with 95% intervals. Decile 10 has the most active."
    )


def samples(report: ConflictReport) -> str:
    """Above the table of samples."""
    data = report.data
    cut = f" {data.truncated} of them truncated." if data.truncated else ""
    template = f" Prompt template: {data.template}." if data.template else ""
    return (
        f"The {numbers.plural(data.samples, 'sample')} of {data_name(report, pinned=True)} as they were run{_chosen(report)}: "
        f"{numbers.plural(data.tokens, 'token')}, {numbers.count(data.answer_tokens)} of them in answers, over which the loss is "
        f"taken.{cut}{template} The exact tokens are in the JSON."
    )


def _chosen(report: ConflictReport) -> str:
    """How samples were chosen, where not all rows were taken."""
    rows, request = report.data.rows, report.request
    if rows is None:
        return ", the first of the data"
    if rows <= report.data.samples:
        return ""
    how = f"at random with seed {request.seed}" if request.choice == "random" else "as the first"
    return f", chosen {how} from {numbers.plural(rows, 'row')}"


def has_neurons(report: ConflictReport) -> bool:
    """Whether single neurons can be shown: some have enough pairs of samples, and the report is not of version 1."""
    return report.neurons is not None and bool(report.neurons.cosines)


def neurons(report: ConflictReport) -> str:
    """Above the table of neurons."""
    found = report.neurons
    if found is None:
        return ""
    few = f" {numbers.count(found.total - found.ranked)} are not ranked: fewer pairs count in them." if found.ranked < found.total else ""
    return (
        f"The most and the least conflicted of {numbers.count(found.total)} {units(report)}, ranked by conflict rate where at least half "
        f"of the pairs of samples count.{few} The command line's --csv writes all of them."
    )


def weights(report: ConflictReport) -> str:
    """Above the table of weights."""
    return (
        f"Each weight of the {units(report)}: the share of pairs of samples whose gradients have opposite signs, the agreement of signs, "
        "and the ratio of squared mean to variance over samples, next to its expected value without a common signal."
    )


def published(report: ConflictReport) -> str:
    """Above the published layers."""
    from analyzers.gradient_conflict.published import departures

    differs = departures(report)
    if not differs:
        return f"{PUBLISHED} This run has the same setting and is drawn next to it, by the same definition."
    return f"{PUBLISHED} This run differs in {_listed(differs)}, so it is not drawn next to it. The page's last example is that setting."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def undecided(rates: Rates) -> str:
    """The range within which rounding leaves the rate undecided, or a dash."""
    low, high = rates.undecided.low, rates.undecided.high
    return numbers.NOTHING if low is None or high is None else f"{numbers.share(low)} to {numbers.share(high)}"


def points(difference: float | None) -> str:
    """A difference of two shares, in percentage points."""
    return numbers.NOTHING if difference is None else f"{100 * difference:+.2g} points"
