"""Lays out the result of update sparsity."""

from analyzers.update_sparsity.published import SOURCE
from analyzers.update_sparsity.report import SparsityReport
from components.forms.form import command, permalink
from components.results.answer import layout_of, short_table, table
from components.results.layout import Piece, Plot, Tab
from components.sparsity import plots
from components.sparsity.trajectory_plots import overlap, steps


def source(report: SparsityReport) -> str:
    """Render the link to the published fine-tunes; "" where no value differs."""
    link = f'<a href="{SOURCE}" rel="noopener noreferrer" target="_blank">Zhu et al., The Path Not Taken, arXiv 2511.08567, Table 1</a>'
    return f'<p class="m-say m-below">Source of the others: {link}.</p>' if report.moved else ""


RESULT = layout_of(
    "Fine-tune diff",
    (
        Tab(
            "Where",
            [
                Plot("Sparsity by layer and role", plots.heat_map),
                Plot("Sparsity by role", plots.roles),
                short_table(SparsityReport, "roles"),
                table(SparsityReport, "layers"),
            ],
        ),
        Tab(
            "Adapter",
            [short_table(SparsityReport, "adapter_survival"), table(SparsityReport, "adapter_modules")],
            when=lambda report: report.adapter is not None,
        ),
        Tab(
            "How much",
            [
                Plot("Relative updates", plots.relative),
                Plot("bf16 ULPs between base and tuned", plots.ulps),
                short_table(SparsityReport, "magnitudes"),
                short_table(SparsityReport, "energy"),
                Plot("Compared with published fine-tunes", plots.among_published),
                short_table(SparsityReport, "published"),
                Piece(source),
            ],
            when=lambda report: report.moved,
        ),
        Tab(
            "Over time",
            [
                Plot("Sparsity by checkpoint", steps),
                short_table(SparsityReport, "trajectory"),
                Plot("Overlap of the changed weights", overlap),
            ],
            when=lambda report: bool(report.trajectory),
        ),
        Tab("Tensors", [short_table(SparsityReport, "spectral"), table(SparsityReport, "tensors")]),
        Tab("Matching", [table(SparsityReport, "unmatched")], when=lambda report: any(report.unmatched.counts.values())),
    ),
    permalink=permalink,
    command=command,
)
