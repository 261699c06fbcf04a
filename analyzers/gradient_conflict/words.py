"""The report's sentences: the answer, and its limits."""

from collections.abc import Iterator, Sequence

from analyzers import limits
from analyzers.gradient_conflict.report import DataFacts, Difference, Units
from analyzers.gradient_conflict.request import ConflictRequest
from analyzers.gradient_conflict.summaries import Measurement
from analyzers.language_models.load import OpenModel
from analyzers.terminal import plural

# Above this share of undecided pairs a rate cannot be trusted.
TRUSTED = 0.1


def statement(request: ConflictRequest, found: Measurement, units: Units, differences: Sequence[Difference]) -> str:
    """The answer in two or three sentences."""
    model = found.model
    if model.conflict_rate is None:
        conditions = [f"above the floor, {request.floor:g} times the median"] if request.floor else []
        conditions += [f"longer than {request.epsilon:g}"] if request.epsilon else []
        return f"{' '.join(['No two samples have a gradient', *conditions])} in the same unit: there is nothing to compare."
    unit = "neuron" if request.unit == "ffn" else "row of an attention projection"
    where = f"have a cosine below {request.gamma:g}" if request.gamma else "point in opposite directions"
    said = f"In {_percent(model.conflict_rate)} of the pairs of samples the gradients of the same {unit} {where}"
    said += f" ({_range(model.interval.low, model.interval.high)} by the jackknife over samples)" if model.interval else ""
    rows = [row for row in found.layers if row.conflict_rate is not None]
    most, least = max(rows, key=lambda row: row.conflict_rate or 0), min(rows, key=lambda row: row.conflict_rate or 0)
    if len(rows) > 1:
        said += (
            f": most in layer {most.layer} ({_percent(most.conflict_rate)}), least in layer {least.layer} ({_percent(least.conflict_rate)})"
        )
    dominance = found.dominance
    if dominance.effective_samples is not None and dominance.top_share is not None:
        said += (
            f". Of the whole gradient's size, sample {dominance.top_sample} has {_percent(dominance.top_share)}: the "
            f"{len(dominance.samples)} samples weigh as much as {dominance.effective_samples:.3g} equal ones"
        )
    if differences and differences[0].conflict_rate is not None and units.topk is not None:
        change, interval = differences[0].conflict_rate, differences[0].interval
        said += f". The top-k FFN in {_layers(units.topk.layers)} changes the rate by {100 * change:+.2g} percentage points"
        said += f" ({100 * interval.low:+.2g} to {100 * interval.high:+.2g})" if interval else ""
    return said + "."


def notes(
    request: ConflictRequest, found: Measurement, data: DataFacts, opened: OpenModel, layers: int, checkpointing: bool
) -> Iterator[str]:
    """The limits of the answer. layers: of the model. checkpointing: whether it ran with it, asked for or not."""
    undecided = found.model.undecided
    if undecided.share is not None and undecided.low is not None and undecided.high is not None and undecided.share > TRUSTED:
        yield (
            f"The rate cannot be trusted to more than {_range(undecided.low, undecided.high)}: {_percent(undecided.share)} of the cosines "
            f"are as near to {request.gamma:g} as the arithmetic in {opened.dtype} may be off. Run it with --dtype float32."
        )
    if opened.dtype == "float16":
        yield "In float16 gradients below 6e-8 become zero: float32 or bfloat16 keep them."
    if data.samples < request.samples:
        yield f"{data.source} has {plural(data.samples, 'sample')}, fewer than the {request.samples} asked for."
    if data.truncated:
        most = min(request.max_length, opened.context or request.max_length)
        were = "was" if data.truncated == 1 else "were"
        yield f"{data.truncated} of {plural(data.samples, 'sample')} {were} cut off after {plural(most, 'token')}."
    if checkpointing and not request.checkpointing:
        yield "Activations were recomputed in the backward pass: to keep them takes more memory than was free where this ran."
    if opened.attention != request.attention:
        yield f"This model has no {request.attention} attention: it ran with {opened.attention}."
    if (request.floor or request.epsilon) and found.batch_curve:
        limit = "Floor and epsilon are" if request.floor and request.epsilon else "The floor is" if request.floor else "Epsilon is"
        yield f"{limit} for single samples: averages over batches count however short they are."
    if len(found.layers) < layers:
        yield f"{layers - len(found.layers)} of {plural(layers, 'layer')} are left out: another kind of layer stands in attention's place."
    if found.model.dead:
        have = "has" if found.model.dead == 1 else "have"
        yield f"{found.model.dead:,} of {plural(found.model.neurons, 'unit')} {have} no gradient in any sample."
    if found.model.interval is None:
        yield "There are too few samples for intervals: 4 with gradients in common at least."
    if not found.cosines.layers:
        yield f"The cosines between samples are given for the model only: beyond {limits.REPORT_COSINES:,} numbers layers are left out."
    yield from opened.notes()
    if opened.facts.quantization is not None:
        yield "The stored weights are quantized; they were run as they are after decoding."


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3g} %"


def _range(low: float, high: float) -> str:
    return f"{100 * low:.3g} to {100 * high:.3g} %"


def _layers(layers: Sequence[int]) -> str:
    return f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]} to {layers[-1]}"
