"""The result on the sparsity page: the headline, and under it the tabs that say where, how much, and beside what."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from analyzers.update_sparsity.published import placed
from analyzers.update_sparsity.report import SparsityReport
from components.markup import caption, notes
from components.plots import update_sparsity as plots
from components.share import Share, build_share, downloads
from components.sparsity import captions, tables
from components.sparsity.form import command, permalink
from components.sparsity.headline import headline, summary
from components.sparsity.matching import matching
from components.sparsity.spectral_table import build_spectral_table, spectral_rows
from components.sparsity.tensor_table import about_tensors, build_tensor_table, tensor_rows

_FIRST = "where"


@dataclass(frozen=True, slots=True)
class Result:
    """The parts of the result that a report fills."""

    card: gr.Column
    headline: gr.HTML
    tabs: gr.Tabs
    heat_map: gr.Plot
    roles: gr.Plot
    by_role: gr.HTML
    about_relative: gr.HTML
    relative: gr.Plot
    ulps: gr.Plot
    sizes: gr.HTML
    over_time: gr.Tab
    steps: gr.Plot
    by_step: gr.HTML
    overlap: gr.Plot
    about_published: gr.HTML
    published: gr.Plot
    among: gr.HTML
    about_rows: gr.HTML
    rows: gr.Dataframe
    matching: gr.HTML
    taken_apart: gr.Tab
    about_spectral: gr.HTML
    spectral: gr.Dataframe
    share: Share

    def components(self) -> list[Any]:
        """All of them, as the outputs of an event."""
        return [getattr(self, name) for name in self.__slots__ if name != "share"] + self.share.components()

    def hide(self) -> dict[Any, Any]:
        """Updates that take the result off the page."""
        return {self.card: gr.update(visible=False)}

    def summary(self, report: SparsityReport) -> str:
        """The headline as one line of plain text."""
        return summary(report)

    def show(self, report: SparsityReport) -> dict[Any, Any]:
        """Updates that show ``report``. Raises OSError when its downloads cannot be written."""
        several = bool(report.trajectory)
        return {
            self.card: gr.update(visible=True),
            self.headline: headline(report),
            # the tab that was open may be one that this report has nothing for
            self.tabs: gr.update(selected=_FIRST),
            self.heat_map: plots.heat_map(report),
            self.roles: plots.roles(report),
            self.by_role: tables.roles(report) + notes(report.notes),
            self.about_relative: caption(captions.relative(report)),
            self.relative: plots.relative(report),
            self.ulps: plots.ulps(report),
            self.sizes: tables.sizes(report),
            self.over_time: gr.update(visible=several),
            self.steps: gr.update(value=plots.steps(report) if several else None),
            self.by_step: tables.trajectory(report),
            self.overlap: gr.update(value=plots.overlap(report) if several else None),
            self.about_published: caption(placed(report.sparsity).sentence if report.sparsity is not None else ""),
            self.published: plots.beside(report),
            self.among: tables.among_published(report),
            self.about_rows: about_tensors(report),
            self.rows: tensor_rows(report),
            self.matching: matching(report),
            self.taken_apart: gr.update(visible=bool(report.spectral)),
            self.about_spectral: caption(captions.spectral(report)),
            self.spectral: spectral_rows(report),
            **self.share.show(permalink(report), command(report), downloads.write(report)),
        }


def build_result() -> Result:
    """Lay out the result, hidden until there is one. Call inside a page."""
    # Gradio hides and shows only tabs that were hidden at first
    with gr.Column(visible=False, elem_id="m-result", elem_classes="m-box") as card:
        top = _html()
        with gr.Tabs() as tabs:
            with gr.Tab("Where", id=_FIRST):
                _html(caption(captions.HEAT_MAP))
                heat_map = _plot("Sparsity by layer and role")
                _html(caption(captions.ROLES))
                roles = _plot("Sparsity by role")
                by_role = _html()
            with gr.Tab("How much"):
                about_relative = _html()
                relative = _plot("Relative updates")
                _html(caption(captions.ULPS))
                ulps = _plot("Steps of bf16 between base and tuned")
                sizes = _html()
            with gr.Tab("Over time", visible=False) as over_time:
                _html(caption(captions.STEPS))
                steps = _plot("Sparsity by checkpoint")
                by_step = _html()
                _html(caption(captions.OVERLAP))
                overlap = _plot("Overlap of the changed weights")
            with gr.Tab("Published"):
                about_published = _html()
                published = _plot("Beside published fine-tunes")
                among = _html()
            with gr.Tab("Tensors"):
                about_rows = _html()
                rows = build_tensor_table()
            with gr.Tab("Matching"):
                matched = _html()
            with gr.Tab("Spectral", visible=False) as taken_apart:
                about_spectral = _html()
                spectral = build_spectral_table()
            with gr.Tab("Share"):
                share = build_share("m")
    return Result(
        card,
        top,
        tabs,
        heat_map,
        roles,
        by_role,
        about_relative,
        relative,
        ulps,
        sizes,
        over_time,
        steps,
        by_step,
        overlap,
        about_published,
        published,
        among,
        about_rows,
        rows,
        matched,
        taken_apart,
        about_spectral,
        spectral,
        share,
    )


def _html(content: str = "") -> gr.HTML:
    return gr.HTML(content, elem_classes="m-plain")


def _plot(label: str) -> gr.Plot:
    return gr.Plot(show_label=False, label=label, elem_classes="m-figure")
