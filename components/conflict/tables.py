"""The tables of gradient conflict: layers, samples, neurons, top-k and original, batches, deciles, weights, published layers."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from analyzers.data import Interval
from analyzers.gradient_conflict.report import ConflictReport, Sample
from analyzers.gradient_conflict.summaries import ModelRow, NeuronRow, Rates, SampleDominance, WeightRates
from components.conflict.text import excerpts, points, sides, undecided, unit_name
from components.results.data_table import Column, DataTable, optional
from components.text import numbers
from components.text.markup import table


def differences(report: ConflictReport) -> str:
    """A row for the model and each layer; nothing without top-k."""
    if report.original is None:
        return ""
    originals = {row.layer: row.conflict_rate for row in report.original.layers} | {None: report.original.model.conflict_rate}
    found = {row.layer: row.conflict_rate for row in report.layers} | {None: report.model.conflict_rate}
    rows = [
        (
            "Model" if row.layer is None else f"Layer {row.layer}",
            numbers.share(found.get(row.layer)),
            numbers.share(originals.get(row.layer)),
            points(row.conflict_rate),
            _points_between(row.interval),
            _signed(row.magnitude_similarity),
            points(row.neuron_top_share),
            _signed(row.neuron_effective_samples),
        )
        for row in report.differences
    ]
    titles = ("", "Top-k", "Original", "Difference", "95% interval", "Similarity", "Top sample's share", "Effective samples")
    return table(titles, rows, frozenset(range(1, 8)), "Conflict rate, and top-k minus original", stacked=True)


def batches(report: ConflictReport) -> str:
    """A row for each batch size, single samples first."""
    rows = []
    for name, found in sides(report):
        model = found.model
        single = (model.conflict_rate, model.mean_cosine, model.whole.conflict_rate, model.whole.mean_cosine)
        curve = [
            (row.batch_size, row.conflict_rate, row.mean_cosine, row.whole_conflict_rate, row.whole_mean_cosine)
            for row in found.batch_curve
        ]
        for size, rate, cosine, whole, whole_cosine in [(1, *single), *curve]:
            cells = (numbers.share(rate), numbers.magnitude(cosine), numbers.share(whole), numbers.magnitude(whole_cosine))
            rows.append((f"{numbers.plural(size, 'sample')}{_of(report, name)}", *cells))
    titles = ("Batch", "Conflict", "Mean cosine", "Whole gradients: conflict", "Mean cosine")
    return table(titles, rows, frozenset(range(1, 5)), stacked=True)


def deciles(report: ConflictReport) -> str:
    """A row for each decile, the least active neurons first."""
    rows = [
        (
            f"Decile {row.decile}{_of(report, name)}",
            numbers.count(row.neurons),
            numbers.magnitude(row.mean_activation),
            numbers.share(row.conflict_rate),
            numbers.between(row.interval),
            numbers.magnitude(row.magnitude_similarity),
        )
        for name, found in sides(report)
        for row in found.deciles
    ]
    titles = ("Activation", "Neurons", "Mean |activation|", "Conflict", "95% interval", "Similarity")
    return table(titles, rows, frozenset(range(1, 6)), stacked=True) if rows else ""


def weights(report: ConflictReport) -> str:
    """A row for the model and each layer; empty where weights were not measured."""
    rows: list[tuple[str, ...]] = []
    for name, found in sides(report):
        if found.weights is not None:
            rows.append((f"Model{_of(report, name)}", *_weights(found.weights)))
            rows += [(f"Layer {row.layer}{_of(report, name)}", *_weights(row)) for row in found.weights.layers]
    titles = ("", "Weights", "Opposite signs", "Agreement", "Signal to noise", "Without a signal", "Median weight", "90th percentile")
    return table(titles, rows, frozenset(range(1, 8)), stacked=True) if rows else ""


def published(report: ConflictReport) -> str:
    """The published layers, next to those of a run of the published setting."""
    from analyzers.gradient_conflict.published import SOURCE, comparable
    from analyzers.gradient_conflict.published import published as rows_of

    compared = comparable(report)
    ours = {row.layer: (row.conflict_rate_historic, row.magnitude_similarity_historic) for row in report.layers} if compared else {}
    rows = []
    for row in rows_of():
        cells = [f"Layer {row.layer}", numbers.share(row.conflict_rate), numbers.magnitude(row.magnitude_similarity)]
        if compared:
            rate, similarity = ours.get(row.layer, (None, None))
            cells[2:2] = [numbers.share(rate)]
            cells.append(numbers.magnitude(similarity))
        rows.append(cells)
    titles: Sequence[str] = ("", "Rate as published", "Similarity as published")
    if compared:
        titles = ("", "Rate, published", "This run", "Similarity, published", "This run")
    link = f'<a href="{SOURCE}" rel="noopener noreferrer" target="_blank">ZeroYuHuang/DynamicK-Tuning</a>'
    listed = table(titles, rows, frozenset(range(1, len(titles))), stacked=compared)
    return f'{listed}<p class="m-say m-below">Source: {link}, analysis_grads.ipynb.</p>'


def _weights(row: WeightRates) -> tuple[str, ...]:
    shares = (numbers.share(row.conflict), numbers.share(row.agreement))
    return (numbers.parameters(row.weights), *shares, *map(numbers.magnitude, (row.snr, row.noise_floor, row.snr_p50, row.snr_p90)))


def _of(report: ConflictReport, name: str) -> str:
    return f", {name}" if report.original is not None else ""


def _points_between(interval: Interval | None) -> str:
    return numbers.NOTHING if interval is None else f"{100 * interval.low:+.2g} to {100 * interval.high:+.2g}"


def _signed(value: float | None) -> str:
    return numbers.NOTHING if value is None else f"{value:+.2g}"


ALL = "all"
_LONGEST = 600


class _Layer(NamedTuple):
    """Rates of one block of a layer; whole: the layer or the model, with all blocks together."""

    layer: str
    ffn: str
    block: str
    rates: Rates
    whole: ModelRow | None = None


def _layers(report: ConflictReport) -> Iterator[_Layer]:
    """The model first, then the layers from the last one; of each all blocks together, then single blocks and pairs of them."""
    from analyzers.gradient_conflict.request import ATTENTION_BLOCKS, COMBINED_BLOCKS, FFN_BLOCKS

    for name, found in sides(report):
        ffn = name if report.original is not None else "original"
        rows: list[tuple[str, ModelRow]] = [("model", found.model), *((str(row.layer), row) for row in found.layers)]
        for layer, row in rows:
            yield _Layer(layer, ffn, ALL, row, row)
            for block in (*FFN_BLOCKS, *COMBINED_BLOCKS, *ATTENTION_BLOCKS):
                rates: Rates | None = getattr(row, block)
                if rates is not None:
                    yield _Layer(layer, ffn, "+".join(COMBINED_BLOCKS.get(block, (block,))), rates)


def _rate(name: str, width: int, field: str, show: Callable[[Any], str]) -> Column:
    return Column(name, width, lambda row: getattr(row.rates, field), show)


def _of_whole(field: str) -> Callable[[_Layer], Any]:
    return lambda row: None if row.whole is None else getattr(row.whole, field)


LAYERS: DataTable[ConflictReport] = DataTable(
    "Layers and blocks",
    "m-layers-table",
    (
        Column("Layer", 84, "layer"),
        Column("FFN", 112, "ffn"),
        Column("Block", 104, "block"),
        _rate("Conflict", 92, "conflict_rate", numbers.share),
        Column(
            "95% interval",
            150,
            lambda row: row.rates.interval.low if row.rates.interval else None,
            numbers.share,
            read=lambda row: numbers.between(row.rates.interval),
        ),
        Column("Numerically undecided", 172, lambda row: row.rates.undecided.low, numbers.share, read=lambda row: undecided(row.rates)),
        _rate("Similarity", 98, "magnitude_similarity", numbers.magnitude),
        _rate("Mean cosine", 112, "mean_cosine", numbers.magnitude),
        Column("Whole layer", 104, lambda row: None if row.whole is None else row.whole.whole.conflict_rate, numbers.share),
        _rate("Rate as published", 138, "conflict_rate_historic", numbers.share),
        _rate("Pairs", 112, "pairs", numbers.count),
        Column("Units", 84, _of_whole("neurons"), optional(numbers.count)),
        Column("Without gradient", 138, _of_whole("dead"), optional(numbers.count)),
    ),
    _layers,
)


class _Neuron(NamedTuple):
    """One of the ``among`` ("most", "least") conflicted neurons of an FFN."""

    ffn: str
    among: str
    row: NeuronRow


def _neurons(report: ConflictReport) -> Iterator[_Neuron]:
    for name, found in sides(report):
        ffn = name if report.original is not None else "original"
        if found.neurons is not None:
            for among, rows in (("most", found.neurons.most), ("least", found.neurons.least)):
                yield from (_Neuron(ffn, among, row) for row in rows)


def _of_neuron(name: str, width: int, field: str, show: Callable[[Any], str]) -> Column:
    return Column(name, width, lambda neuron: getattr(neuron.row, field), show)


NEURONS: DataTable[ConflictReport] = DataTable(
    "Most and least conflicted neurons",
    "m-neurons-table",
    (
        Column("Neuron", 190, lambda neuron: unit_name(neuron.row)),
        Column("Most or least", 112, "among"),
        _of_neuron("Conflict", 92, "conflict_rate", numbers.share),
        _of_neuron("Similarity", 98, "magnitude_similarity", numbers.magnitude),
        _of_neuron("Mean cosine", 112, "mean_cosine", numbers.magnitude),
        _of_neuron("Mean |activation|", 142, "mean_activation", numbers.magnitude),
        _of_neuron("Top sample", 108, "top_sample", optional(str)),
        _of_neuron("Its share", 92, "top_share", numbers.share),
        _of_neuron("Effective samples", 148, "effective_samples", numbers.magnitude),
        _of_neuron("Pairs", 84, "pairs", numbers.count),
        Column("FFN", 112, "ffn"),
    ),
    _neurons,
)


class _Sample(NamedTuple):
    """A sample as it was run, and what its gradient weighs."""

    ran: Sample
    weight: SampleDominance
    text: str


def _samples(report: ConflictReport) -> Iterator[_Sample]:
    return map(_Sample, report.samples, report.dominance.samples, excerpts(report, _LONGEST))


def _tokens(sample: Sample, start: int | None = 0) -> int | None:
    """How many from ``start`` on; None for a batch of the caller."""
    return None if sample.token_ids is None or start is None else len(sample.token_ids) - start


def _weight(name: str, width: int, field: str, show: Callable[[Any], str]) -> Column:
    return Column(name, width, lambda sample: getattr(sample.weight, field), show)


SAMPLES: DataTable[ConflictReport] = DataTable(
    "Samples",
    "m-samples-table",
    (
        _weight("Sample", 82, "sample", str),
        Column("Text", 420, lambda sample: sample.text),
        _weight("Share", 84, "share", numbers.share),
        _weight("Cosine to the rest", 138, "cosine_to_rest", numbers.magnitude),
        _weight("Mean without it", 128, "leave_one_out_cosine", numbers.magnitude),
        _weight("Largest in units", 130, "neurons_led", numbers.share),
        Column("Loss", 80, lambda sample: sample.ran.loss, numbers.magnitude),
        _weight("Norm", 92, "norm", numbers.magnitude),
        Column("Tokens", 82, lambda sample: _tokens(sample.ran), optional(numbers.count)),
        Column("Answer tokens", 118, lambda sample: _tokens(sample.ran, sample.ran.answer_start), optional(numbers.count)),
        Column("Truncated", 96, lambda sample: "yes" if sample.ran.truncated else "no"),
        Column("Row", 82, lambda sample: sample.ran.row, optional(str)),
    ),
    _samples,
)
