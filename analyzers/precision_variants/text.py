"""The report as text for a terminal."""

from typing import TYPE_CHECKING

from analyzers.formatting import duration
from analyzers.precision_variants.columns import BACKWARD, CAUSES, ENGINE, FORWARD, HEADROOM, LAYERS, SETTINGS, TENSORS, WORST, of_reference
from analyzers.terminal import plural

if TYPE_CHECKING:
    from analyzers.precision_variants.report import PrecisionReport


def one(report: "PrecisionReport") -> list[str]:
    """Return the lines of a report: answer, errors forward and backward, settings, headroom by layer, and notes."""
    inputs, reference = report.inputs, report.reference
    tokens = f"{plural(inputs.sequences, 'sequence')} of {plural(inputs.length, 'token')} ({inputs.source})"
    lines = [
        f"{report.checkpoint.ref} @ {report.checkpoint.short_commit()}: {plural(reference.layers, 'layer')}, {reference.weights} weights, "
        f"{tokens}, {report.request.loss}; {duration(report.timing.seconds)}",
        "",
        *report.answer_lines(),
        *(["", report.fp16_passport.statement] if report.fp16_passport is not None else []),
        "",
        *(_engine(report) if report.engine else []),
        *FORWARD.lines(report),
        "",
        *BACKWARD.lines(report),
        "",
        *SETTINGS.lines(report),
        "",
        *HEADROOM.lines(report, of_reference(report)),
    ]
    return [*lines, "", *report.notes, f"report {report.id}"]


def _engine(report: "PrecisionReport") -> list[str]:
    """Return the lines on an engine: causes, sizes, outliers and layers."""
    tables = (CAUSES, ENGINE, WORST, LAYERS)
    return [line for table in tables if any(True for _ in table.rows(report)) for line in (*table.lines(report), "")]


def tensors(report: "PrecisionReport") -> list[str]:
    """Return one line per tensor of each variant."""
    return TENSORS.lines(report)
