"""Lays out the result of gradient conflict."""

from analyzers.gradient_conflict.published import SOURCE
from analyzers.gradient_conflict.report import ConflictReport
from components.conflict import plots
from components.conflict.form import command, permalink
from components.results.answer import layout_of, short_table, table
from components.results.layout import Piece, Plot, Tab


def source(report: ConflictReport) -> str:
    """Render the link to the published run; "" next to a run with another setting."""
    link = f'<a href="{SOURCE}" rel="noopener noreferrer" target="_blank">ZeroYuHuang/DynamicK-Tuning</a>'
    return f'<p class="m-say m-below">The published run: {link}, analysis_grads.ipynb.</p>' if report.is_published_setting else ""


RESULT = layout_of(
    "Gradient conflict",
    (
        Tab(
            "Layers",
            [
                Plot("Conflict rate by layer", plots.rates),
                Plot("Similarity by layer", plots.similarity),
                Plot("Published conflict rates", plots.published, when=lambda report: report.is_published_setting),
                short_table(ConflictReport, "published"),
                Piece(source),
                short_table(ConflictReport, "differences"),
                table(ConflictReport, "layers"),
                table(ConflictReport, "blocks"),
            ],
        ),
        Tab(
            "Samples",
            [
                Plot("Cosines between samples", plots.cosines),
                Plot("Share of each sample", plots.dominance),
                table(ConflictReport, "samples"),
            ],
        ),
        Tab("Batches", [Plot("Conflict by batch size", plots.batches), short_table(ConflictReport, "batch_curve")]),
        Tab(
            "Neurons",
            [
                Plot("Conflict by activation", plots.deciles, when=lambda report: bool(report.deciles)),
                short_table(ConflictReport, "deciles"),
                table(ConflictReport, "neurons"),
            ],
            when=lambda report: bool(report.neurons),
        ),
        Tab("Weights", [short_table(ConflictReport, "weights")], when=lambda report: report.weights is not None),
    ),
    permalink=permalink,
    command=command,
)
