"""The report as text for a terminal."""

from typing import Any

from analyzers.columns import Table
from analyzers.formatting import duration
from analyzers.gradient_conflict.columns import BATCHES, DECILES, DIFFERENCES, LAYERS, NEURONS, RAN_SAMPLES, WEIGHTS
from analyzers.gradient_conflict.report import ConflictReport
from analyzers.gradient_conflict.sentences import described
from analyzers.terminal import plural

# Rows shown in a terminal: of samples, and of the most and of the least conflicted neurons.
_SHOWN = 5


def one(report: ConflictReport) -> list[str]:
    """Return the lines of a report: answer, layers, the samples with the largest gradients, neurons, batches, deciles, weights, notes."""
    data, ffn = report.data, report.ffn
    units = ("row of an attention projection", "rows of attention projections") if ffn.unit == "attention" else ("neuron", "neurons")
    lines = [
        f"{report.checkpoint.ref} @ {report.checkpoint.short_commit()}: {plural(ffn.neurons, *units)} in {plural(ffn.layers, 'layer')}, "
        f"{described(data)}, {report.dtype}; {duration(report.timing.seconds)}",
        "",
        *report.answer_lines(),
        "",
        *LAYERS.lines(report, _asked(LAYERS, report)),
        "As published: ordered pairs whose gradients are both above 0, each sample with itself included.",
        "",
        *RAN_SAMPLES.lines(report, sorted(RAN_SAMPLES.rows(report), key=lambda row: -row["norm"])[:_SHOWN]),
    ]
    neurons = _asked(NEURONS, report)
    weights = [row for row in WEIGHTS.rows(report) if row["layer"] is None]
    for part in (
        DIFFERENCES.lines(report),
        NEURONS.lines(report, neurons if len(neurons) <= 2 * _SHOWN else [*neurons[:_SHOWN], *neurons[-_SHOWN:]]),
        BATCHES.lines(report),
        DECILES.lines(report),
        WEIGHTS.lines(report, weights),
    ):
        lines += ["", *part] if part else []
    return [*lines, "", *report.notes, f"report {report.id}"]


def _asked(table: Table, report: ConflictReport) -> list[Any]:
    """Return the rows of the requested FFN."""
    return [row for row in table.rows(report) if row["ffn"] == report.ffn.variant]
