"""Names of units, FFNs and samples on the page, and captions; plain text."""

from collections.abc import Callable

from analyzers.gradient_conflict.report import ConflictReport
from analyzers.gradient_conflict.summaries import Measurement
from components.text import Sentences, numbers, source_name

TOPK, ORIGINAL = "top-k FFN", "original FFN"
_EXCERPT = 64
_OURS = {"builtin": "the built-in text", "pairs": "pairs given"}


def data_name(report: ConflictReport, pinned: bool = False) -> str:
    """Name the source of the samples. pinned: with the commit."""
    return source_name(report.data.source, _OURS, report.data.commit if pinned else None)


def inputs(report: ConflictReport) -> str:
    """Describe the data: its samples and their tokens, or the number of batches that the caller passed."""
    data = report.data
    if data.tokens is None:
        return f"{numbers.plural(data.samples, 'batch', 'batches')} of the caller"
    return f"{numbers.plural(data.samples, 'sample')} of {data_name(report)}, {numbers.plural(data.tokens, 'token')}"


def unit(report: ConflictReport) -> str:
    """Name the unit whose gradients are compared, in the singular."""
    return "neuron" if report.ffn.unit == "ffn" else "row of an attention projection"


def units(report: ConflictReport) -> str:
    """Name the unit whose gradients are compared, in the plural."""
    return "neurons" if report.ffn.unit == "ffn" else "rows of attention projections"


def sides(report: ConflictReport) -> list[tuple[str, Measurement]]:
    """Return the measurements with names: top-k and original, or without top-k the only one, named after its units."""
    if report.original is None:
        return [(units(report), report)]
    return [(TOPK, report), (ORIGINAL, report.original)]


def as_it_is(report: ConflictReport) -> Measurement:
    """Return the measurement of the model without a top-k FFN."""
    return report.original or report


def change(report: ConflictReport, value: Callable[[Measurement], str]) -> str:
    """Format a value of the model as it is and, if a top-k FFN was measured, with it."""
    before = value(as_it_is(report))
    return before if report.original is None else f"{before} → {value(report)} with top-k"


def has_neurons(report: ConflictReport) -> bool:
    """Return whether single neurons can be shown: some have enough pairs of samples, and the report is not of version 1."""
    return report.neurons is not None and bool(report.neurons.cosines)


def _departures(report: ConflictReport) -> list[str]:
    from analyzers.gradient_conflict.published import departures

    return list(departures(report))


captions = Sentences("conflict/templates/captions.txt", unit=unit, units=units, data_name=data_name, departures=_departures)
