"""Lays out the result of update sparsity."""

from analyzers.comparison.sparsity.report import SparsityReport
from components.analyses.sparsity import plots
from components.result.layout import Figure, Layout, Tab, Table


def _if_moved(report: SparsityReport) -> SparsityReport | None:
    return report if report.moved or report.adapter is not None else None


WHERE = Tab(
    "Where",
    [
        Figure("Sparsity by layer and role", plots.heat_map, "Share of the weights that are unchanged in bf16, in percent."),
        Table("roles"),
        Table("layers"),
    ],
)
HOW_MUCH = Tab(
    "How much",
    [
        Table("adapter_survival"),
        Figure(
            "Relative updates", plots.relative, "Updates relative to the weights; dashed: the smallest and the largest relative bf16 ULP."
        ),
        Table("magnitudes"),
        Table("energy"),
        Table("ulp"),
    ],
    _if_moved,
)
TENSORS = Tab("Tensors", [Table("spectral"), Table("tensors"), Table("adapter_modules"), Table("unmatched")])
OVER_TIME = Tab(
    "Over time",
    [
        Figure("Sparsity by checkpoint", plots.steps, "Unchanged weights, compared with the base and with the checkpoint before."),
        Table("trajectory"),
        Table("overlap"),
    ],
)
LAYOUT = Layout("Fine-tune diff", (WHERE, HOW_MUCH, TENSORS, OVER_TIME))
