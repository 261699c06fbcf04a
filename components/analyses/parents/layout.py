"""Lays out the result of parents."""

from components.analyses.parents import plots
from components.result.layout import Figure, Layout, Tab, Table

ANCESTRY = Tab(
    "Ancestry",
    [
        Figure("Ancestry", plots.ancestry, "Lines lead from the models that these weights come from; dashed: inferred, not proven."),
        Table("candidates"),
        Figure("Layers and their parents", plots.layer_map, "The layer of the parent that each layer comes from."),
        Table("layer_map"),
        Table("conversion"),
    ],
)
WEIGHTS = Tab(
    "Weights",
    [
        Table("parents"),
        Figure("Weights of the parents", plots.layers, "Weight of each parent in the merge, with its 95% interval."),
        Table("layer_weights"),
    ],
    lambda report: report if report.verdict == "merge" else None,
)
QUANTIZED = Tab(
    "Quantized copy",
    [
        Figure("Error by layer and role", plots.errors, "Largest |X - P| / |P| of the quantized tensors of a role, in percent."),
        Table("quantized"),
    ],
)
LAYOUT = Layout("Parents", (ANCESTRY, WEIGHTS, QUANTIZED))
