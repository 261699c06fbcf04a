"""The answer of gradient conflict in sentences, what to do about it, and what limits it."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from analyzers import limits
from analyzers.base import NextStep
from analyzers.formatting import between, magnitude, plural, rounded, share
from analyzers.gradient_conflict.report import ConflictReport, DataFacts, Difference, Units
from analyzers.gradient_conflict.request import ConflictRequest
from analyzers.gradient_conflict.summaries import Measurement
from analyzers.language_models.model_request import sample_notes
from analyzers.tensor_words import layer_range
from analyzers.terminal import percent

if TYPE_CHECKING:
    from analyzers.language_models.load import OpenModel

# Gradients with independent, symmetric directions have a cosine below 0 as often as above.
CHANCE = "unrelated gradients: about 50%"
# An effective sample size below this share of the samples is reported as dominance of a few.
_DOMINATED = 0.5
_HALF = 0.5
# With fewer samples an interval of the jackknife excludes the rate of unrelated gradients in more than 5% of cases.
_FEWEST = 5
# A rate is not to be trusted if more than this share of its pairs is numerically undecided.
TRUSTED = 0.1


def sample_words(data: DataFacts) -> tuple[str, str]:
    """Return the singular and plural word for samples: batches if they are the caller's, which have no tokens."""
    return ("sample", "samples") if data.tokens is not None else ("batch", "batches")


def described(data: DataFacts) -> str:
    """Write the number of samples, their source, and the number of tokens."""
    count = plural(data.samples, *sample_words(data))
    return f"{count} of the caller" if data.tokens is None else f"{count} of {data.source}, {plural(data.tokens, 'token')}"


def headline(report: ConflictReport) -> str:
    """Write how the conflict rate of the unmodified model compares with chance, the rate, and that with a top-k FFN, if there is one."""
    unmodified = report.original or report
    rate, interval = unmodified.model.conflict_rate, unmodified.model.interval
    if rate is None:
        return report.statement
    _, words = sample_words(report.data)
    unit = "neuron" if report.ffn.unit == "ffn" else "attention row"
    gamma = report.request.gamma
    how = f"have a cosine below {gamma:g}" if gamma else "conflict"
    details = [f"95% interval {between(interval)}"] if interval else []
    details += [] if gamma else [CHANCE]
    after = f" ({'; '.join(details)})" if details else ""
    changed = f"; {share(report.model.conflict_rate)} with top-k" if report.original is not None else ""
    verdict = against_chance(report)
    begin = f"{verdict}: the" if verdict else "The"
    return f"{begin} gradients of two {words} in the same {unit} {how} in {share(rate)} of all combinations{after}{changed}."


def against_chance(report: ConflictReport) -> str:
    """Write how the conflict rate of the unmodified model compares with that of unrelated gradients; "" for another gamma than 0.

    A verdict that numerically undecided pairs could reverse is none.
    """
    model = (report.original or report).model
    rate, interval, bounds, samples = model.conflict_rate, model.interval, model.undecided, report.data.samples
    if rate is None or report.request.gamma:
        return ""
    if interval is None or samples < _FEWEST:
        return f"Too few {sample_words(report.data)[1]} to compare with chance"
    verdict = beyond_chance(interval.low, interval.high, samples)
    below, above = (0.0 if bound is None else bound - rate for bound in (bounds.low, bounds.high))
    if not verdict:
        return "No more conflict than chance is shown"
    if beyond_chance(interval.low + below, interval.high + above, samples) != verdict:
        return f"Numerically undecided whether there is {verdict} conflict than chance"
    return f"{verdict.capitalize()} conflict than chance"


def beyond_chance(low: float, high: float, samples: int) -> Literal["more", "less", ""]:
    """Compare an interval of the conflict rate with that of unrelated gradients, which conflict in half of the pairs.

    Where the gradients of all units lie along one direction, S samples conflict in up to S / (2 (S - 1)) of their pairs whatever they have
    in common, so that only an interval above that is more than chance.
    """
    return "more" if low > samples / (2 * (samples - 1)) else "less" if high < _HALF else ""


def next_step(report: ConflictReport) -> NextStep:
    """Return advice, and the analyzer for the rounding error of the same gradients."""
    return NextStep(_advice(report), "precision", report.checkpoint.ref)


def _advice(report: ConflictReport) -> str:
    """Write what to change in training."""
    unmodified = report.original or report
    word, words = sample_words(report.data)
    samples, effective = len(unmodified.dominance.samples), unmodified.dominance.effective_samples
    if effective is not None and effective < _DOMINATED * samples:
        return f"Clip gradients per {word}: a few {words} outweigh the rest (effective sample size {magnitude(effective)} of {samples})."
    scale = unmodified.model.whole.noise_scale
    if scale is None:
        return f"Measure more {words}: the mean gradient of these cannot be distinguished from noise."
    if scale < 1:
        small = "Small batches suffice" if word == "sample" else "Batches of this size suffice"
        return f"{small}: the gradient of one {word} is mostly signal (estimated noise scale {magnitude(scale)} {words})."
    return f"Average over at least {magnitude(scale)} {words}: with fewer the gradient is mostly noise (its estimated noise scale)."


def statement(
    request: ConflictRequest,
    requested: Measurement,
    original: Measurement | None,
    units: Units,
    differences: Sequence[Difference],
    data: DataFacts,
) -> str:
    """Write the answer in two to four sentences: the unmodified model, then the change by the top-k FFN, if any.

    requested: measurement of the requested FFN; original: measurement of the original FFN if the requested one is a top-k FFN.
    """
    unmodified = original or requested
    model = unmodified.model
    word, words = sample_words(data)
    if model.conflict_rate is None:
        conditions = [f"above the floor, {request.floor:g} times the median"] if request.floor else []
        conditions += [f"longer than {request.epsilon:g}"] if request.epsilon else []
        return f"{' '.join([f'No two {words} have a gradient', *conditions])} in the same unit: there is nothing to compare."
    unit = "neuron" if request.unit == "ffn" else "row of an attention projection"
    where = f"have a cosine below {request.gamma:g}" if request.gamma else "point in opposite directions"
    text = f"In {percent(model.conflict_rate)} of the (pair of {words}, {unit}) combinations the two gradients {where}"
    compared = [f"{_range(model.interval.low, model.interval.high)} by the jackknife over {words}"] if model.interval else []
    compared += [] if request.gamma else [CHANCE]
    text += f" ({'; '.join(compared)})" if compared else ""
    rows = [row for row in unmodified.layers if row.conflict_rate is not None]
    most, least = max(rows, key=lambda row: row.conflict_rate or 0), min(rows, key=lambda row: row.conflict_rate or 0)
    if len(rows) > 1:
        text += (
            f": most in layer {most.layer} ({percent(most.conflict_rate)}), least in layer {least.layer} ({percent(least.conflict_rate)})"
        )
    dominance = unmodified.dominance
    if dominance.effective_samples is not None and dominance.top_share is not None:
        text += (
            f". {word.capitalize()} {dominance.top_sample} has {percent(dominance.top_share)} of the squared norm of the whole gradients; "
            f"the effective sample size is {magnitude(dominance.effective_samples)} of {len(dominance.samples)}"
        )
    if differences and differences[0].conflict_rate is not None and units.topk is not None:
        change, interval = differences[0].conflict_rate, differences[0].interval
        layers = layer_range(units.topk.layers[0], units.topk.layers[-1])
        text += f". With the top-k FFN in {layers} the rate is {percent(requested.model.conflict_rate)}, a change of "
        text += f"{rounded(change, 2, 2):+.2g} percentage points"
        text += f" ({rounded(interval.low, 2, 2):+.2g} to {rounded(interval.high, 2, 2):+.2g})" if interval else ""
        text += _dominance_change(requested, units.topk.layers, differences)
    return text + "."


def _dominance_change(results: Measurement, layers: Sequence[int], differences: Sequence[Difference]) -> str:
    """Write whether one sample dominates neurons of the converted layers more or less than before, by means over these neurons."""
    changes = {row.layer: row for row in differences}
    rows = [(row, changes[row.layer]) for row in results.layers if row.layer in layers and row.layer in changes]
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
        f"the effective sample size from {magnitude(sizes[0])} to {magnitude(sizes[1])}"
    )


def _before_and_after(rows: Sequence[tuple[float | None, float | None, int]]) -> tuple[float, float] | None:
    """Return the means over neurons before and after the change. rows: (value after, change, number of neurons) of each layer."""
    known = [(value, change, neurons) for value, change, neurons in rows if value is not None and change is not None]
    total = sum(neurons for *_, neurons in known)
    if not total:
        return None
    after = sum(value * neurons for value, _, neurons in known) / total
    return after - sum(change * neurons for _, change, neurons in known) / total, after


def notes(
    request: ConflictRequest, results: Measurement, data: DataFacts, opened: "OpenModel", layers: int, checkpointing: bool
) -> Iterator[str]:
    """Yield the limitations of the answer. layers: number in the model. checkpointing: whether activations were recomputed."""
    yield from _rounding(request, results, opened.dtype, "Run it with --dtype float32.")
    longest = min(request.max_length, opened.context or request.max_length)
    yield from sample_notes(data.source, data.samples, data.truncated, request.samples, longest)
    if checkpointing and not request.checkpointing and not opened.offloaded:
        yield "Activations were recomputed in the backward pass: keeping them needs more memory than was free."
    if opened.attention != request.attention:
        yield f"This model does not support {request.attention} attention: it ran with {opened.attention}."
    yield from _left_out(request, results, layers)
    yield from opened.notes()


def notes_on_batches(request: ConflictRequest, results: Measurement, data: DataFacts, dtype: str, layers: int) -> Iterator[str]:
    """Yield the limitations of the answer on batches of the caller. dtype: the weights'; layers: number in the model."""
    yield (
        f"Each sample is the gradient of one of {plural(data.samples, 'batch', 'batches')} of the caller, by the caller's loss. "
        "Activations were not measured: which positions count, only the loss knows."
    )
    yield f"The rounding error is taken to be that of {dtype}, the weights' type; a loss that computes in a narrower one has more."
    yield from _rounding(request, results, dtype, "Pass the model in float32.")
    yield from _left_out(request, results, layers)


def _rounding(request: ConflictRequest, results: Measurement, dtype: str, instead: str) -> Iterator[str]:
    undecided = results.model.undecided
    if undecided.share is not None and undecided.low is not None and undecided.high is not None and undecided.share > TRUSTED:
        yield (
            f"Only the range {_range(undecided.low, undecided.high)} can be trusted: {percent(undecided.share)} of the cosines are closer "
            f"to {request.gamma:g} than the rounding error of {dtype}. {instead}"
        )
    if dtype == "float16":
        yield "In float16, gradients below 6e-8 become zero; float32 and bfloat16 keep them."


def _left_out(request: ConflictRequest, results: Measurement, layers: int) -> Iterator[str]:
    if (request.floor or request.epsilon) and results.batch_curve:
        given = [name for name, value in (("floor", request.floor), ("epsilon", request.epsilon)) if value]
        limit = "Floor and epsilon apply" if len(given) == 2 else f"The {given[0]} applies"
        yield f"{limit} to single samples; averages over batches count whatever their norm."
    if len(results.layers) < layers:
        yield f"{layers - len(results.layers)} of {plural(layers, 'layer')} are excluded: they have no attention."
    if results.model.dead:
        have = "has" if results.model.dead == 1 else "have"
        yield f"{results.model.dead:,} of {plural(results.model.neurons, 'unit')} {have} no gradient in any sample."
    if results.model.interval is None:
        yield "There are too few samples for intervals, which need at least 4 with gradients in the same units."
    if not results.cosines.layers:
        yield f"Cosines between samples are given for the model only: all layers would take more than {limits.REPORT_COSINES:,} numbers."


def _range(low: float, high: float) -> str:
    return f"{rounded(low, 3, 2):.3g} to {share(high)}"
