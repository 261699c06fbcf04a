"""The tables of gradient conflict: layers, samples, neurons, top-k and original, batches, deciles, weights, published layers."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from components.conflict.text import excerpts, points, sides, undecided, unit_name
from components.results.data_table import Column, DataTable, Line
from components.text import numbers
from components.text.markup import table
from components.text.plain_text import shown

if TYPE_CHECKING:
    from analyzers.base import Interval
    from analyzers.gradient_conflict.report import ConflictReport
    from analyzers.gradient_conflict.summaries import ModelRow, Rates, WeightRates


def differences(report: "ConflictReport") -> str:
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


def batches(report: "ConflictReport") -> str:
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


def deciles(report: "ConflictReport") -> str:
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


def weights(report: "ConflictReport") -> str:
    """A row for the model and each layer; empty where weights were not measured."""
    rows: list[tuple[str, ...]] = []
    for name, found in sides(report):
        if found.weights is not None:
            rows.append((f"Model{_of(report, name)}", *_weights(found.weights)))
            rows += [(f"Layer {row.layer}{_of(report, name)}", *_weights(row)) for row in found.weights.layers]
    titles = ("", "Weights", "Opposite signs", "Agreement", "Signal to noise", "Without a signal", "Median weight", "90th percentile")
    return table(titles, rows, frozenset(range(1, 8)), stacked=True) if rows else ""


def published(report: "ConflictReport") -> str:
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


def _weights(row: "WeightRates") -> tuple[str, ...]:
    shares = (numbers.share(row.conflict), numbers.share(row.agreement))
    return (numbers.parameters(row.weights), *shares, *map(numbers.magnitude, (row.snr, row.noise_floor, row.snr_p50, row.snr_p90)))


def _of(report: "ConflictReport", name: str) -> str:
    return f", {name}" if report.original is not None else ""


def _points_between(interval: "Interval | None") -> str:
    return numbers.NOTHING if interval is None else f"{100 * interval.low:+.2g} to {100 * interval.high:+.2g}"


def _signed(value: float | None) -> str:
    return numbers.NOTHING if value is None else f"{value:+.2g}"


ALL = "all"
_LAYER_COLUMNS = (
    Column("Layer", 84, False),
    Column("FFN", 112, False),
    Column("Block", 104, False),
    Column("Conflict", 92, True),
    Column("95% interval", 150, True),
    Column("Numerically undecided", 172, True),
    Column("Similarity", 98, True),
    Column("Mean cosine", 112, True),
    Column("Whole layer", 104, True),
    Column("Rate as published", 138, True),
    Column("Pairs", 112, True),
    Column("Units", 84, True),
    Column("Without gradient", 138, True),
)


def _layer_lines(report: "ConflictReport") -> Iterator[Line]:
    """The model first, then the layers from the last one; of each all blocks together, then single blocks and pairs of them."""
    from analyzers.gradient_conflict.request import ATTENTION_BLOCKS, COMBINED_BLOCKS, FFN_BLOCKS

    for name, found in sides(report):
        ffn = name if report.original is not None else "original"
        rows: list[tuple[str, ModelRow]] = [("model", found.model), *((str(row.layer), row) for row in found.layers)]
        for layer, row in rows:
            yield _layer_line(layer, ffn, ALL, row, row)
            for block in (*FFN_BLOCKS, *COMBINED_BLOCKS, *ATTENTION_BLOCKS):
                rates: Rates | None = getattr(row, block)
                if rates is not None:
                    yield _layer_line(layer, ffn, "+".join(COMBINED_BLOCKS.get(block, (block,))), rates, None)


def _layer_line(layer: str, ffn: str, block: str, rates: "Rates", row: "ModelRow | None") -> Line:
    whole = None if row is None else row.whole.conflict_rate
    measures = (rates.conflict_rate, rates.magnitude_similarity, rates.mean_cosine, whole, rates.conflict_rate_historic)
    rate, similarity, cosine, of_whole, historic = measures
    interval, counts = rates.interval, (row.neurons, row.dead) if row is not None else (None, None)
    values = [
        *(layer, ffn, block, rate, interval.low if interval else None, rates.undecided.low),
        *(similarity, cosine, of_whole, historic, rates.pairs, *counts),
    ]
    read = [
        *(layer, ffn, block, numbers.share(rate), numbers.between(rates.interval), undecided(rates)),
        *(numbers.magnitude(similarity), numbers.magnitude(cosine), numbers.share(of_whole) if row is not None else numbers.NOTHING),
        *(
            numbers.share(historic),
            numbers.count(rates.pairs),
            *(numbers.NOTHING if each is None else numbers.count(each) for each in counts),
        ),
    ]
    return values, read


LAYERS = DataTable("Layers and blocks", "m-layers-table", _LAYER_COLUMNS, _layer_lines)


_NEURON_COLUMNS = (
    Column("Neuron", 190, False),
    Column("Most or least", 112, False),
    Column("Conflict", 92, True),
    Column("Similarity", 98, True),
    Column("Mean cosine", 112, True),
    Column("Mean |activation|", 142, True),
    Column("Top sample", 108, True),
    Column("Its share", 92, True),
    Column("Effective samples", 148, True),
    Column("Pairs", 84, True),
    Column("FFN", 112, False),
)


def _neuron_lines(report: "ConflictReport") -> Iterator[Line]:
    for name, found in sides(report):
        ffn = name if report.original is not None else "original"
        if found.neurons is None:
            continue
        for among, rows in (("most", found.neurons.most), ("least", found.neurons.least)):
            for row in rows:
                which, sample = unit_name(row), row.top_sample
                values = (row.mean_cosine, row.mean_activation)
                yield (
                    [
                        *(which, among, row.conflict_rate, row.magnitude_similarity, *values),
                        *(sample, row.top_share, row.effective_samples, row.pairs, ffn),
                    ],
                    [
                        *(which, among, numbers.share(row.conflict_rate), numbers.magnitude(row.magnitude_similarity)),
                        *(*map(numbers.magnitude, values), numbers.NOTHING if sample is None else str(sample)),
                        *(numbers.share(row.top_share), numbers.magnitude(row.effective_samples), numbers.count(row.pairs), ffn),
                    ],
                )


NEURONS = DataTable("Neurons", "m-neurons-table", _NEURON_COLUMNS, _neuron_lines)


_LONGEST = 600
_SAMPLE_COLUMNS = (
    Column("Sample", 82, True),
    Column("Text", 420, False),
    Column("Share", 84, True),
    Column("Cosine to the rest", 138, True),
    Column("Mean without it", 128, True),
    Column("Largest in units", 130, True),
    Column("Loss", 80, True),
    Column("Norm", 92, True),
    Column("Tokens", 82, True),
    Column("Answer tokens", 118, True),
    Column("Truncated", 96, False),
    Column("Row", 82, True),
)


def _sample_lines(report: "ConflictReport") -> Iterator[Line]:
    texts = excerpts(report, _LONGEST)
    for row, sample, text in zip(report.dominance.samples, report.samples, texts, strict=True):
        tokens, answer = len(sample.token_ids), len(sample.token_ids) - sample.answer_start
        cut, words = "yes" if sample.truncated else "no", shown(text, _LONGEST)
        cosines = (row.cosine_to_rest, row.leave_one_out_cosine)
        yield (
            [row.sample, words, row.share, *cosines, row.neurons_led, sample.loss, row.norm, tokens, answer, cut, sample.row],
            [
                *(str(row.sample), words, numbers.share(row.share), *map(numbers.magnitude, cosines), numbers.share(row.neurons_led)),
                *(numbers.magnitude(sample.loss), numbers.magnitude(row.norm), numbers.count(tokens), numbers.count(answer), cut),
                numbers.NOTHING if sample.row is None else str(sample.row),
            ],
        )


SAMPLES = DataTable("Samples", "m-samples-table", _SAMPLE_COLUMNS, _sample_lines)
