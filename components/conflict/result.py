"""The result on the conflict page: the headline, and under it the tabs that say where, which samples, and how it changes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gradio as gr

from components.conflict import captions, tables
from components.conflict.form import command, permalink
from components.conflict.headline import headline, summary
from components.conflict.layer_table import build_layer_table, layer_rows
from components.conflict.sample_table import build_sample_table, sample_rows
from components.markup import caption, notes
from components.plots import gradient_conflict as plots
from components.share import Share, build_share, downloads

if TYPE_CHECKING:
    from analyzers.gradient_conflict.report import ConflictReport

_FIRST = "layers"


@dataclass(frozen=True, slots=True)
class Result:
    """The parts of the result that a report fills."""

    card: gr.Column
    headline: gr.HTML
    tabs: gr.Tabs
    about_rates: gr.HTML
    rates: gr.Plot
    about_similarity: gr.HTML
    similarity: gr.Plot
    differences: gr.HTML
    layers: gr.Dataframe
    about_cosines: gr.HTML
    cosines: gr.Plot
    dominance: gr.Plot
    about_samples: gr.HTML
    samples: gr.Dataframe
    about_batches: gr.HTML
    batches: gr.Plot
    by_batch: gr.HTML
    activation: gr.Tab
    about_deciles: gr.HTML
    deciles: gr.Plot
    by_decile: gr.HTML
    weighed: gr.Tab
    weights: gr.HTML
    about_published: gr.HTML
    published: gr.Plot
    by_published: gr.HTML
    share: Share

    def components(self) -> list[Any]:
        """All of them, as the outputs of an event."""
        return [getattr(self, name) for name in self.__slots__ if name != "share"] + self.share.components()

    def hide(self) -> dict[Any, Any]:
        """Updates that take the result off the page."""
        return {self.card: gr.update(visible=False)}

    def summary(self, report: "ConflictReport") -> str:
        """The headline as one line of plain text."""
        return summary(report)

    def show(self, report: "ConflictReport") -> dict[Any, Any]:
        """Updates that show ``report``. Raises OSError when its downloads cannot be written."""
        by_activation = bool(report.deciles)
        return {
            self.card: gr.update(visible=True),
            self.headline: headline(report),
            # the tab that was open may be one that this report has nothing for
            self.tabs: gr.update(selected=_FIRST),
            self.about_rates: caption(captions.rates(report)),
            self.rates: plots.rates(report),
            self.about_similarity: caption(captions.similarity(report)),
            self.similarity: plots.similarity(report),
            self.differences: tables.differences(report) + notes(report.notes),
            self.layers: layer_rows(report),
            self.about_cosines: caption(captions.cosines(report)),
            self.cosines: plots.cosines(report),
            self.dominance: plots.dominance(report),
            self.about_samples: caption(captions.samples(report)),
            self.samples: sample_rows(report),
            self.about_batches: caption(captions.batches(report)),
            self.batches: plots.batches(report),
            self.by_batch: tables.batches(report),
            self.activation: gr.update(visible=by_activation),
            self.about_deciles: caption(captions.deciles(report)),
            self.deciles: gr.update(value=plots.deciles(report) if by_activation else None),
            self.by_decile: tables.deciles(report),
            self.weighed: gr.update(visible=report.weights is not None),
            self.weights: caption(captions.weights(report)) + tables.weights(report),
            self.about_published: caption(captions.published(report)),
            self.published: plots.published(report),
            self.by_published: tables.published(report),
            **self.share.show(permalink(report), command(report), downloads.write(report)),
        }


def build_result() -> Result:
    """Lay out the result, hidden until there is one. Call inside a page."""
    # Gradio hides and shows only tabs that were hidden at first
    with gr.Column(visible=False, elem_id="m-result", elem_classes="m-box") as card:
        top = _html()
        with gr.Tabs() as tabs:
            with gr.Tab("Layers", id=_FIRST):
                about_rates, rates = _html(), _plot("Conflict rate by layer")
                about_similarity, similarity = _html(), _plot("Similarity by layer")
                differences = _html()
                layers = build_layer_table()
            with gr.Tab("Samples"):
                about_cosines, cosines = _html(), _plot("Cosines between samples")
                _html(caption(captions.DOMINANCE))
                dominance = _plot("Part of each sample")
                about_samples = _html()
                samples = build_sample_table()
            with gr.Tab("Batches"):
                about_batches, batches = _html(), _plot("Conflict by batch size")
                by_batch = _html()
            with gr.Tab("Activation", visible=False) as activation:
                about_deciles, deciles = _html(), _plot("Conflict by activation")
                by_decile = _html()
            with gr.Tab("Weights", visible=False) as weighed:
                weights = _html()
            with gr.Tab("Published"):
                about_published, published = _html(), _plot("Published conflict rates")
                by_published = _html()
            with gr.Tab("Share"):
                share = build_share("m")
    return Result(
        card, top, tabs,
        about_rates, rates, about_similarity, similarity, differences, layers,
        about_cosines, cosines, dominance, about_samples, samples,
        about_batches, batches, by_batch,
        activation, about_deciles, deciles, by_decile,
        weighed, weights,
        about_published, published, by_published,
        share,
    )  # fmt: skip


def _html(content: str = "") -> gr.HTML:
    return gr.HTML(content, elem_classes="m-plain")


def _plot(label: str) -> gr.Plot:
    return gr.Plot(show_label=False, label=label, elem_classes="m-figure")
