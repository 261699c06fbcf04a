"""The tables below the figures, in HTML: top-k against original, batches, deciles, weights, the published layers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from components.conflict.headline import points
from components.conflict.names import sides
from components.text import numbers
from components.text.markup import table

if TYPE_CHECKING:
    from analyzers.base import Interval
    from analyzers.gradient_conflict.report import ConflictReport
    from analyzers.gradient_conflict.summaries import WeightRates


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
