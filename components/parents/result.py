"""Lays out the result of parents."""

from analyzers.parents.report import ParentsReport
from components.parents import plots
from components.results.answer import layout_of, short_table, table
from components.results.layout import Plot, Tab

RESULT = layout_of(
    "Parents",
    (
        Tab(
            "Ancestry", [Plot("Ancestry", plots.ancestry), short_table(ParentsReport, "evidence"), short_table(ParentsReport, "candidates")]
        ),
        Tab(
            "Layer map",
            [Plot("Layers and their parents", plots.layer_map), table(ParentsReport, "layer_map")],
            when=lambda report: bool(report.layer_map),
        ),
        Tab("How each tensor got here", [table(ParentsReport, "conversion")], when=lambda report: bool(report.conversion)),
        Tab(
            "Weights",
            [
                short_table(ParentsReport, "parents"),
                Plot("Weights per layer", plots.layers, when=lambda report: len(report.fit.layers) > 1),
                table(ParentsReport, "layer_weights"),
            ],
            when=lambda report: report.fit is not None,
        ),
    ),
)
