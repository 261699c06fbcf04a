"""The result on the precision page: the headline, and under it the tabs that say where, how large, and how near to overflow."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gradio as gr

from components.markup import caption, notes
from components.plots import precision_variants as plots
from components.precision import captions, tables
from components.precision.form import command, permalink
from components.precision.headline import headline, summary
from components.precision.legend import legend
from components.precision.tensor_table import build_tensor_table, left_out, tensor_rows
from components.share import Share, build_share, downloads

if TYPE_CHECKING:
    from analyzers.precision_variants.report import PrecisionReport

_FIRST = "depth"


@dataclass(frozen=True, slots=True)
class Result:
    """The parts of the result that a report fills."""

    card: gr.Column
    headline: gr.HTML
    tabs: gr.Tabs
    about_forward: gr.HTML
    forward: gr.Plot
    by_forward: gr.HTML
    about_backward: gr.HTML
    backward: gr.Plot
    by_backward: gr.HTML
    about_headroom: gr.HTML
    headroom: gr.Plot
    by_layer: gr.HTML
    about_parameters: gr.HTML
    parameters: gr.Plot
    by_kind: gr.HTML
    about_logprobs: gr.HTML
    logprobs: gr.Plot
    by_variant: gr.HTML
    within: gr.Tab
    about_inside: gr.HTML
    inside: gr.Plot
    about_inside_backward: gr.HTML
    inside_backward: gr.Plot
    about_tensors: gr.HTML
    tensors: gr.Dataframe
    share: Share

    def components(self) -> list[Any]:
        """All of them, as the outputs of an event."""
        return [getattr(self, name) for name in self.__slots__ if name != "share"] + self.share.components()

    def hide(self) -> dict[Any, Any]:
        """Updates that take the result off the page."""
        return {self.card: gr.update(visible=False)}

    def summary(self, report: "PrecisionReport") -> str:
        """The headline as one line of plain text."""
        return summary(report)

    def show(self, report: "PrecisionReport") -> dict[Any, Any]:
        """Updates that show ``report``. Raises OSError when its downloads cannot be written."""
        within = report.request.inside
        named, marks = legend(report.variants), legend(report.variants, lines=False)
        return {
            self.card: gr.update(visible=True),
            self.headline: headline(report),
            # the tab that was open may be one that this report has nothing for
            self.tabs: gr.update(selected=_FIRST),
            self.about_forward: caption(captions.forward(report)) + named,
            self.forward: plots.forward(report),
            self.by_forward: tables.forward(report),
            self.about_backward: caption(captions.backward(report)) + named,
            self.backward: plots.backward(report),
            self.by_backward: tables.backward(report) + notes(report.notes),
            self.about_headroom: caption(captions.headroom(report)) + legend(plots.SIDES),
            self.headroom: plots.headroom(report),
            self.by_layer: tables.headroom(report),
            self.about_parameters: caption(captions.parameters(report)) + marks,
            self.parameters: plots.parameters(report),
            self.by_kind: tables.parameters(report),
            self.about_logprobs: caption(captions.logprobs(report)) + legend(plots.DIFFERENCES, lines=False),
            self.logprobs: plots.logprobs(report),
            self.by_variant: tables.logprobs(report),
            self.within: gr.update(visible=within),
            self.about_inside: caption(captions.INSIDE) + marks,
            self.inside: gr.update(value=plots.inside(report) if within else None),
            self.about_inside_backward: caption(captions.inside_backward(report)) + marks,
            self.inside_backward: gr.update(value=plots.inside_backward(report) if within else None),
            self.about_tensors: tables.settings(report) + caption(captions.inputs(report)) + caption(captions.tensors(left_out(report))),
            self.tensors: tensor_rows(report),
            **self.share.show(permalink(report), command(report), downloads.write(report)),
        }


def build_result() -> Result:
    """Lay out the result, hidden until there is one. Call inside a page."""
    # Gradio hides and shows only tabs that were hidden at first
    with gr.Column(visible=False, elem_id="m-result", elem_classes="m-box") as card:
        top = _html()
        with gr.Tabs() as tabs:
            with gr.Tab("By depth", id=_FIRST):
                about_forward, forward = _html(), _plot("Error by depth, forward")
                by_forward = _html()
                about_backward, backward = _html(), _plot("Error by depth, backward")
                by_backward = _html()
            with gr.Tab("Headroom"):
                about_headroom, headroom = _html(), _plot("Headroom by layer")
                by_layer = _html()
            with gr.Tab("Parameters"):
                about_parameters, parameters = _html(), _plot("Error of gradients by kind of parameter")
                by_kind = _html()
            with gr.Tab("Log-probabilities"):
                about_logprobs, logprobs = _html(), _plot("Differences of log-probabilities")
                by_variant = _html()
            with gr.Tab("Inside layers", visible=False) as within:
                about_inside, inside = _html(), _plot("Error inside the layers, forward")
                about_inside_backward, inside_backward = _html(), _plot("Error inside the layers, backward")
            with gr.Tab("Tensors"):
                about_tensors = _html()
                tensors = build_tensor_table()
            with gr.Tab("Share"):
                share = build_share("m")
    return Result(
        card, top, tabs,
        about_forward, forward, by_forward, about_backward, backward, by_backward,
        about_headroom, headroom, by_layer,
        about_parameters, parameters, by_kind,
        about_logprobs, logprobs, by_variant,
        within, about_inside, inside, about_inside_backward, inside_backward,
        about_tensors, tensors,
        share,
    )  # fmt: skip


def _html(content: str = "") -> gr.HTML:
    return gr.HTML(content, elem_classes="m-plain")


def _plot(label: str) -> gr.Plot:
    return gr.Plot(show_label=False, label=label, elem_classes="m-figure")
