"""The result on the sparsity page: the headline, and tabs with location, size and comparison of the changes."""

from analyzers.update_sparsity.published import placed
from analyzers.update_sparsity.report import SparsityReport
from components.plots import update_sparsity as plots
from components.results.result_tabs import Layout, Tab, html, plot, rows, said
from components.sparsity import captions, tables
from components.sparsity.form import command, permalink
from components.sparsity.headline import headline, summary
from components.sparsity.matching import matching
from components.sparsity.spectral_table import SPECTRAL
from components.sparsity.tensor_table import TENSORS, about_tensors
from components.text.markup import notes


def _among(report: SparsityReport) -> str:
    return placed(report.sparsity).sentence if report.sparsity is not None else ""


_TABS: tuple[Tab[SparsityReport], ...] = (
    Tab(
        "Where",
        [
            said(captions.HEAT_MAP),
            plot("Sparsity by layer and role", plots.heat_map),
            said(captions.ROLES),
            plot("Sparsity by role", plots.roles),
            html(lambda report: tables.roles(report) + notes(report.notes)),
        ],
    ),
    Tab(
        "How much",
        [
            said(captions.relative),
            plot("Relative updates", plots.relative),
            said(captions.ULPS),
            plot("bf16 ULPs between base and tuned", plots.ulps),
            html(tables.sizes),
        ],
    ),
    Tab(
        "Over time",
        [
            said(captions.STEPS),
            plot("Sparsity by checkpoint", plots.steps),
            html(tables.trajectory),
            said(captions.OVERLAP),
            plot("Overlap of the changed weights", plots.overlap),
        ],
        when=lambda report: bool(report.trajectory),
    ),
    Tab("Published", [said(_among), plot("Compared with published fine-tunes", plots.beside), html(tables.among_published)]),
    Tab("Tensors", [html(about_tensors), rows(TENSORS)]),
    Tab("Matching", [html(matching)]),
    Tab("Spectral", [said(captions.spectral), rows(SPECTRAL)], when=lambda report: bool(report.spectral)),
)
RESULT = Layout(headline, summary, permalink, command, _TABS)
