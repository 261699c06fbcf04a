"""The result on the page: the passport, and under it the tabs that say why."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from analyzers.dtype_detection import DtypeReport
from components.markup import caption
from components.passport.evidence import evidence
from components.passport.form import command, permalink
from components.passport.tensor_table import about_tensors, build_tensor_table, tensor_rows
from components.passport.tiles import passport, summary
from components.plots import dtype_detection as plots
from components.plots.among_models import among_models, place
from components.share import Share, build_share, downloads

_ABOUT_SPECTRUM = (
    "How many of the values read have which size. A value left of fp16's smallest normal loses digits in fp16, "
    "one right of its largest becomes infinite."
)
_ABOUT_LAYERS = "The largest magnitude in each layer, by role. Embeddings and whatever else belongs to no layer stand on the left."
_ABOUT_LABELLED = "Each point is a model whose training precision is known. Dashed: the thresholds of the rule of thumb."


@dataclass(frozen=True, slots=True)
class Result:
    """The parts of the result that a report fills."""

    card: gr.Column
    passport: gr.HTML
    evidence: gr.HTML
    about_spectrum: gr.HTML
    spectrum: gr.Plot
    about_layers: gr.HTML
    layers: gr.Plot
    about_models: gr.HTML
    among: gr.Plot
    about_rows: gr.HTML
    rows: gr.Dataframe
    share: Share

    def components(self) -> list[Any]:
        """All of them, as the outputs of an event."""
        return [getattr(self, name) for name in self.__slots__ if name != "share"] + self.share.components()

    def hide(self) -> dict[Any, Any]:
        """Updates that take the result off the page."""
        return {self.card: gr.update(visible=False)}

    def summary(self, report: DtypeReport) -> str:
        """The four answers as one sentence of plain text."""
        return summary(report)

    def show(self, report: DtypeReport) -> dict[Any, Any]:
        """Updates that show ``report``. Raises OSError when its downloads cannot be written."""
        empty = plots.why_empty(report)
        return {
            self.card: gr.update(visible=True),
            self.passport: passport(report),
            self.evidence: evidence(report),
            self.about_spectrum: caption(empty or _ABOUT_SPECTRUM),
            self.spectrum: gr.update(value=plots.spectrum(report), visible=not empty),
            self.about_layers: caption(empty or _ABOUT_LAYERS),
            self.layers: gr.update(value=plots.layers(report), visible=not empty),
            self.about_models: caption(f"{place(report)} {_ABOUT_LABELLED}"),
            self.among: among_models([report]),
            self.about_rows: about_tensors(report),
            self.rows: tensor_rows(report),
            **self.share.show(permalink(report), command(report), downloads.write(report)),
        }


def build_result() -> Result:
    """Lay out the result, hidden until there is one. Call inside a page."""
    with gr.Column(visible=False, elem_id="m-result", elem_classes="m-box") as card:
        tiles = gr.HTML(elem_classes="m-plain")
        with gr.Tabs():
            with gr.Tab("Evidence"):
                table = gr.HTML(elem_classes="m-plain")
            with gr.Tab("Spectrum"):
                about_spectrum = gr.HTML(elem_classes="m-plain")
                spectrum = gr.Plot(show_label=False, label="Exponents of the weights", elem_classes="m-figure")
            with gr.Tab("Layers"):
                about_layers = gr.HTML(elem_classes="m-plain")
                layers = gr.Plot(show_label=False, label="Largest magnitude by layer", elem_classes="m-figure")
            with gr.Tab("Among models"):
                about_models = gr.HTML(elem_classes="m-plain")
                among = gr.Plot(show_label=False, label="Among models of known training precision", elem_classes="m-figure")
            with gr.Tab("Tensors"):
                about_rows = gr.HTML(elem_classes="m-plain")
                rows = build_tensor_table()
            with gr.Tab("Share"):
                share = build_share("m")
    return Result(card, tiles, table, about_spectrum, spectrum, about_layers, layers, about_models, among, about_rows, rows, share)
