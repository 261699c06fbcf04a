"""The passport result on the page: the passport and the tabs with its evidence."""

from typing import Any

import gradio as gr

from analyzers.dtype_detection import DtypeReport
from components.passport.evidence import evidence
from components.passport.form import command, permalink
from components.passport.tensor_table import TENSORS, about_tensors
from components.passport.tiles import passport, summary
from components.plots import dtype_detection as plots
from components.plots.among_models import among_models, place
from components.results.result_tabs import Layout, Tab, html, plot, rows, said

_ABOUT_SPECTRUM = (
    "Distribution of weight magnitudes, over the values read. A value left of fp16's smallest normal loses digits in fp16, "
    "one right of its largest becomes infinite."
)
_ABOUT_LAYERS = "The largest magnitude in each layer, by role. Embeddings and other tensors that are not in a layer are on the left."
_ABOUT_LABELLED = "Each point is a model whose training precision is known. Dashed: the thresholds of the rule of thumb."


def _spectrum(report: DtypeReport) -> Any:
    return gr.update(value=plots.spectrum(report), visible=not plots.why_empty(report))


def _layers(report: DtypeReport) -> Any:
    return gr.update(value=plots.layers(report), visible=not plots.why_empty(report))


def _place(report: DtypeReport) -> str:
    return f"{place(report)} {_ABOUT_LABELLED}"


_TABS: tuple[Tab[DtypeReport], ...] = (
    Tab("Evidence", [html(evidence)]),
    Tab("Spectrum", [said(lambda report: plots.why_empty(report) or _ABOUT_SPECTRUM), plot("Exponents of the weights", _spectrum)]),
    Tab("Layers", [said(lambda report: plots.why_empty(report) or _ABOUT_LAYERS), plot("Largest magnitude by layer", _layers)]),
    Tab(
        "Among models",
        [
            said(_place),
            plot("Among models of known training precision", lambda report: among_models([report])),
        ],
    ),
    Tab("Tensors", [html(about_tensors), rows(TENSORS)]),
)
RESULT = Layout(passport, summary, permalink, command, _TABS)
