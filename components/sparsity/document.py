"""Sparsity reports as one self-contained page."""

from collections.abc import Sequence

from analyzers.update_sparsity.published import placed
from analyzers.update_sparsity.report import SparsityReport
from components.plots import update_sparsity as plots
from components.results.standalone import Page, article, card, figure, folded, report_page
from components.sparsity import captions, tables
from components.sparsity.headline import headline
from components.sparsity.matching import matching
from components.sparsity.names import base_name, tuned_names
from components.sparsity.spectral_table import SPECTRAL
from components.text import numbers
from components.text.markup import caption, notes, table
from components.text.plain_text import shown


def document(reports: Sequence[SparsityReport]) -> Page:
    """A page with the headline, the tables and the plots of each report."""
    names = [f"{base_name(report)} to {tuned_names(report)[-1]}" for report in reports]
    return report_page("Update sparsity", names, [_article(*each) for each in enumerate(reports, 1)])


def _article(row: int, report: SparsityReport) -> str:
    parts = [
        headline(report),
        figure("Where: layers and roles", plots.heat_map(report), f"places-{row}", captions.HEAT_MAP),
        figure("Where: roles", plots.roles(report), f"roles-{row}", captions.ROLES),
        card(tables.roles(report) + notes(report.notes)),
        figure("How much: relative updates", plots.relative(report), f"relative-{row}", captions.relative(report)),
        figure("How much: bf16 ULPs", plots.ulps(report), f"ulps-{row}", captions.ULPS),
        card(tables.sizes(report)),
    ]
    if report.trajectory:
        parts += [
            figure("Over time", plots.steps(report), f"steps-{row}", captions.STEPS),
            card(tables.trajectory(report)),
            figure("The same weights?", plots.overlap(report), f"overlap-{row}", captions.OVERLAP),
        ]
    said = placed(report.sparsity).sentence if report.sparsity is not None else ""
    parts += [
        figure("Among published fine-tunes", plots.beside(report), f"published-{row}", said),
        folded("Published fine-tunes", tables.among_published(report)),
        folded("Matching of the tensors", matching(report)),
    ]
    if report.spectral:
        parts.append(folded("Singular values and subspaces", caption(captions.spectral(report)) + SPECTRAL.html(report)))
    return article(row, [*parts, _tensors(report)])


def _tensors(report: SparsityReport) -> str:
    rows = [
        (
            shown(row.name),
            row.role,
            numbers.shape(row.shape),
            numbers.share(row.sparsity),
            numbers.share(row.probe_sparsity),
            numbers.share(row.relative_norm),
        )
        for row in report.tensors
    ]
    what = "layers and roles" if report.tensors_aggregated else "tensors"
    listed = table(("Name", "Role", "Shape", "Sparsity", "By the probe", "|update| / |base|"), rows, frozenset({3, 4, 5}))
    return folded(f"{len(rows):,} {what}", listed)
