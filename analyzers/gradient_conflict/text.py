"""The report as text for a terminal."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from analyzers import limits
from analyzers.data import Interval
from analyzers.gradient_conflict.report import ConflictReport, DataFacts, Difference, Units
from analyzers.gradient_conflict.request import ATTENTION_BLOCKS, COMBINED_BLOCKS, FFN_BLOCKS, ConflictRequest
from analyzers.gradient_conflict.sentences import CHANCE, described, sample_words
from analyzers.gradient_conflict.summaries import Measurement
from analyzers.language_models.given_tokens import sample_notes
from analyzers.tensor_words import layer_range
from analyzers.terminal import columns, number, percent, plural

if TYPE_CHECKING:
    from analyzers.language_models.load import OpenModel

# A rate is not to be trusted if more than this share of its pairs is numerically undecided.
TRUSTED = 0.1
# Gradients with independent, symmetric directions have a cosine below 0 as often as above.


def statement(
    request: ConflictRequest,
    found: Measurement,
    original: Measurement | None,
    units: Units,
    differences: Sequence[Difference],
    data: DataFacts,
) -> str:
    """The answer in two to four sentences: the model as it is, then the change by the top-k FFN, if any.

    found: of the requested FFN; original: of the original FFN where that is a top-k one.
    """
    as_it_is = original or found
    model = as_it_is.model
    word, words = sample_words(data)
    if model.conflict_rate is None:
        conditions = [f"above the floor, {request.floor:g} times the median"] if request.floor else []
        conditions += [f"longer than {request.epsilon:g}"] if request.epsilon else []
        return f"{' '.join([f'No two {words} have a gradient', *conditions])} in the same unit: there is nothing to compare."
    unit = "neuron" if request.unit == "ffn" else "row of an attention projection"
    where = f"have a cosine below {request.gamma:g}" if request.gamma else "point in opposite directions"
    said = f"In {percent(model.conflict_rate)} of the (pair of {words}, {unit}) combinations the two gradients {where}"
    compared = [f"{_range(model.interval.low, model.interval.high)} by the jackknife over {words}"] if model.interval else []
    compared += [] if request.gamma else [CHANCE]
    said += f" ({'; '.join(compared)})" if compared else ""
    rows = [row for row in as_it_is.layers if row.conflict_rate is not None]
    most, least = max(rows, key=lambda row: row.conflict_rate or 0), min(rows, key=lambda row: row.conflict_rate or 0)
    if len(rows) > 1:
        said += (
            f": most in layer {most.layer} ({percent(most.conflict_rate)}), least in layer {least.layer} ({percent(least.conflict_rate)})"
        )
    dominance = as_it_is.dominance
    if dominance.effective_samples is not None and dominance.top_share is not None:
        said += (
            f". {word.capitalize()} {dominance.top_sample} has {percent(dominance.top_share)} of the squared norm of the whole gradients; "
            f"the effective sample size is {dominance.effective_samples:.3g} of {len(dominance.samples)}"
        )
    if differences and differences[0].conflict_rate is not None and units.topk is not None:
        change, interval = differences[0].conflict_rate, differences[0].interval
        layers = layer_range(units.topk.layers[0], units.topk.layers[-1])
        said += f". With the top-k FFN in {layers} the rate is {percent(found.model.conflict_rate)}, a change of "
        said += f"{100 * change:+.2g} percentage points"
        said += f" ({100 * interval.low:+.2g} to {100 * interval.high:+.2g})" if interval else ""
        said += _dominance_change(found, units.topk.layers, differences)
    return said + "."


def _dominance_change(found: Measurement, layers: Sequence[int], differences: Sequence[Difference]) -> str:
    """Whether one sample dominates a neuron of the converted layers more or less than before: means over their neurons."""
    changes = {row.layer: row for row in differences}
    rows = [(row, changes[row.layer]) for row in found.layers if row.layer in layers and row.layer in changes]
    shares = _before_and_after([(row.neuron_top_share, change.neuron_top_share, row.neurons) for row, change in rows])
    sizes = _before_and_after([(row.neuron_effective_samples, change.neuron_effective_samples, row.neurons) for row, change in rows])
    if shares is None or sizes is None:
        return ""
    more, less = shares[1] > shares[0] and sizes[1] < sizes[0], shares[1] < shares[0] and sizes[1] > sizes[0]
    how = "In a neuron there one sample dominates more" if more else "In a neuron there one sample dominates less"
    if not (more or less):
        how = "In a neuron there dominance does not clearly change"
    return (
        f". {how}: the largest sample's share of the squared norm goes from {percent(shares[0])} to {percent(shares[1])} on average, "
        f"the effective sample size from {sizes[0]:.3g} to {sizes[1]:.3g}"
    )


def _before_and_after(rows: Sequence[tuple[float | None, float | None, int]]) -> tuple[float, float] | None:
    """Of (value, its change, number of neurons) in each layer: the mean over the neurons before and after the change."""
    known = [(value, change, neurons) for value, change, neurons in rows if value is not None and change is not None]
    total = sum(neurons for *_, neurons in known)
    if not total:
        return None
    after = sum(value * neurons for value, _, neurons in known) / total
    return after - sum(change * neurons for _, change, neurons in known) / total, after


def notes(
    request: ConflictRequest, found: Measurement, data: DataFacts, opened: "OpenModel", layers: int, checkpointing: bool
) -> Iterator[str]:
    """What limits the answer. layers: of the model. checkpointing: whether activations were recomputed, requested or not."""
    yield from _rounding(request, found, opened.dtype, "Run it with --dtype float32.")
    longest = min(request.max_length, opened.context or request.max_length)
    yield from sample_notes(data.source, data.samples, data.truncated, request.samples, longest)
    if checkpointing and not request.checkpointing and not opened.offloaded:
        yield "Activations were recomputed in the backward pass: keeping them needs more memory than was free."
    if opened.attention != request.attention:
        yield f"This model does not support {request.attention} attention: it ran with {opened.attention}."
    yield from _left_out(request, found, layers)
    yield from opened.notes()


def notes_on_batches(request: ConflictRequest, found: Measurement, data: DataFacts, dtype: str, layers: int) -> Iterator[str]:
    """What limits the answer on batches of the caller. dtype: of the weights; layers: of the model."""
    yield (
        f"Each sample is the gradient of one of {plural(data.samples, 'batch', 'batches')} of the caller, by the caller's loss. "
        "Activations were not measured: which positions count, only the loss knows."
    )
    yield f"The rounding error is taken to be that of {dtype}, the weights' type; a loss that computes in a narrower one has more."
    yield from _rounding(request, found, dtype, "Pass the model in float32.")
    yield from _left_out(request, found, layers)


def _rounding(request: ConflictRequest, found: Measurement, dtype: str, instead: str) -> Iterator[str]:
    undecided = found.model.undecided
    if undecided.share is not None and undecided.low is not None and undecided.high is not None and undecided.share > TRUSTED:
        yield (
            f"Only the range {_range(undecided.low, undecided.high)} can be trusted: {percent(undecided.share)} of the cosines are closer "
            f"to {request.gamma:g} than the rounding error of {dtype}. {instead}"
        )
    if dtype == "float16":
        yield "In float16, gradients below 6e-8 become zero; float32 and bfloat16 keep them."


def _left_out(request: ConflictRequest, found: Measurement, layers: int) -> Iterator[str]:
    if (request.floor or request.epsilon) and found.batch_curve:
        given = [name for name, value in (("floor", request.floor), ("epsilon", request.epsilon)) if value]
        limit = "Floor and epsilon apply" if len(given) == 2 else f"The {given[0]} applies"
        yield f"{limit} to single samples; averages over batches count whatever their norm."
    if len(found.layers) < layers:
        yield f"{layers - len(found.layers)} of {plural(layers, 'layer')} are excluded: they have no attention."
    if found.model.dead:
        have = "has" if found.model.dead == 1 else "have"
        yield f"{found.model.dead:,} of {plural(found.model.neurons, 'unit')} {have} no gradient in any sample."
    if found.model.interval is None:
        yield "There are too few samples for intervals, which need at least 4 with gradients in the same units."
    if not found.cosines.layers:
        yield f"Cosines between samples are given for the model only: all layers would take more than {limits.REPORT_COSINES:,} numbers."


def _range(low: float, high: float) -> str:
    return f"{100 * low:.3g} to {100 * high:.3g}%"


# Rows of samples, those with the largest gradients, and of the most and of the least conflicted neurons.
_SHOWN = 5


def one(report: ConflictReport) -> list[str]:
    """The statement, then layers, the samples with the largest gradients, neurons, batches, deciles, weights and notes."""
    data, ffn = report.data, report.ffn
    units = ("row of an attention projection", "rows of attention projections") if ffn.unit == "attention" else ("neuron", "neurons")
    lines = [
        f"{report.checkpoint.ref} @ {report.checkpoint.commit[:12]}: {plural(ffn.neurons, *units)} in {plural(ffn.layers, 'layer')}, "
        f"{described(data)}, {report.dtype}; {report.timing.seconds:.3g} s",
        "",
        *report.answer_lines(),
        "",
        *columns(list(_layers(report)), right=tuple(range(1, 14))),
        *(["With the top-k FFN; Original: the model as it is."] if report.original is not None else []),
        "As published: ordered pairs whose gradients are both above 0, each sample with itself included.",
        "",
        *columns(list(_samples(report)), right=(0, 1, 2, 3, 4)),
    ]
    for table in (_combined(report), _neurons(report), _batches(report), _deciles(report), _weights(report)):
        rows = list(table)
        if len(rows) > 1:
            lines += ["", *columns(rows, right=tuple(range(len(rows[0]))))]
    return [*lines, "", *report.notes, f"report {report.id}"]


def _layers(report: ConflictReport) -> Iterator[tuple[str, ...]]:
    blocks = [name for name in (*FFN_BLOCKS, *ATTENTION_BLOCKS) if name in report.ffn.blocks]
    compared = ("Original", "Difference", "Top share", "Eff. samples") if report.original is not None else ()
    yield ("Layer", "Conflict", "95%", "Undecided", "As published", "Similarity", *blocks, "Whole layer", *compared)
    rows = [("model", report.model, None if report.original is None else report.original.model)]
    originals = report.original.layers if report.original is not None else [None] * len(report.layers)
    rows += [(str(row.layer), row, original) for row, original in zip(report.layers, originals, strict=True)]
    for (name, row, original), difference in zip(rows, report.differences or [None] * len(rows), strict=True):
        each = (getattr(row, block) for block in blocks)
        undecided = f"{percent(row.undecided.low)} - {percent(row.undecided.high)}"
        cells: tuple[str, ...] = (name, percent(row.conflict_rate), _interval(row.interval), undecided)
        cells += (percent(row.conflict_rate_historic), number(row.magnitude_similarity))
        cells += (*(percent(rates.conflict_rate if rates else None) for rates in each), percent(row.whole.conflict_rate))
        if original is not None and difference is not None:
            cells += (percent(original.conflict_rate), percent(difference.conflict_rate))
            cells += (percent(difference.neuron_top_share), number(difference.neuron_effective_samples))
        yield cells


def _combined(report: ConflictReport) -> Iterator[tuple[str, ...]]:
    yield ("Conflict in layer", *("+".join(blocks) for blocks in COMBINED_BLOCKS.values()))
    for name, row in (("model", report.model), *((str(row.layer), row) for row in report.layers)):
        each = [getattr(row, block) for block in COMBINED_BLOCKS]
        if any(each):
            yield (name, *(percent(rates.conflict_rate if rates else None) for rates in each))


def _samples(report: ConflictReport) -> Iterator[tuple[str, ...]]:
    yield ("Sample", "Share", "Cosine to the rest", "Largest in units", "Loss", "Text")
    ranked = sorted(report.dominance.samples, key=lambda row: -row.norm)
    for row in ranked[:_SHOWN]:
        sample = report.samples[row.sample]
        text = " ".join(sample.text.split())
        short = text if len(text) <= 60 else f"{text[:57]}..."
        yield (str(row.sample), percent(row.share), number(row.cosine_to_rest), percent(row.neurons_led), number(sample.loss), short)


def _neurons(found: Measurement) -> Iterator[tuple[str, ...]]:
    yield ("Neuron", "Conflict", "Similarity", "Mean cosine", "Mean |activation|", "Top sample", "Share", "Effective samples")
    kept = found.neurons
    for row in () if kept is None else (*kept.most[:_SHOWN], *reversed(kept.least[:_SHOWN])):
        within = f", expert {row.expert}" if row.expert is not None else f", {row.block}" if row.block is not None else ""
        cells = (percent(row.conflict_rate), *map(number, (row.magnitude_similarity, row.mean_cosine, row.mean_activation)))
        top = "-" if row.top_sample is None else str(row.top_sample)
        yield (f"layer {row.layer}{within}, {row.neuron}", *cells, top, percent(row.top_share), number(row.effective_samples))


def _batches(found: Measurement) -> Iterator[tuple[str, ...]]:
    yield ("Batch size", "Conflict", "Mean cosine", "Whole gradient: conflict", "Mean cosine")
    model = found.model
    whole = percent(model.whole.conflict_rate), number(model.whole.mean_cosine)
    yield ("1", percent(model.conflict_rate), number(model.mean_cosine), *whole)
    for row in found.batch_curve:
        whole = percent(row.whole_conflict_rate), number(row.whole_mean_cosine)
        yield (str(row.batch_size), percent(row.conflict_rate), number(row.mean_cosine), *whole)


def _deciles(found: Measurement) -> Iterator[tuple[str, ...]]:
    yield ("Decile by activation", "Mean |activation|", "Conflict", "95%", "Similarity")
    for row in found.deciles:
        conflict = percent(row.conflict_rate), _interval(row.interval)
        yield (str(row.decile), number(row.mean_activation), *conflict, number(row.magnitude_similarity))


def _weights(found: Measurement) -> Iterator[tuple[str, ...]]:
    yield ("Weights", "Opposite signs", "Agreement", "Signal to noise", "Without a signal")
    if found.weights is not None:
        row = found.weights
        yield (f"{row.weights:,}", percent(row.conflict), number(row.agreement), number(row.snr), number(row.noise_floor))


def _interval(interval: Interval | None) -> str:
    return "-" if interval is None else f"{percent(interval.low)} - {percent(interval.high)}"
