"""The result on the conflict page: the headline, and tabs for layers, samples, neurons, batches, activation, weights."""

from typing import TYPE_CHECKING

from components.conflict import captions, tables
from components.conflict.form import command, permalink
from components.conflict.headline import headline, summary
from components.conflict.layer_table import LAYERS
from components.conflict.neuron_table import NEURONS
from components.conflict.sample_table import SAMPLES
from components.plots import gradient_conflict as plots
from components.results.result_tabs import Layout, Tab, html, plot, rows, said
from components.text.markup import notes

if TYPE_CHECKING:
    from analyzers.gradient_conflict.report import ConflictReport

_TABS: "tuple[Tab[ConflictReport], ...]" = (
    Tab(
        "Layers",
        [
            said(captions.rates),
            plot("Conflict rate by layer", plots.rates),
            said(captions.similarity),
            plot("Similarity by layer", plots.similarity),
            html(lambda report: tables.differences(report) + notes(report.notes)),
            said(captions.LAYERS),
            rows(LAYERS),
        ],
    ),
    Tab(
        "Samples",
        [
            said(captions.cosines),
            plot("Cosines between samples", plots.cosines),
            said(captions.DOMINANCE),
            plot("Share of each sample", plots.dominance),
            said(captions.samples),
            rows(SAMPLES),
        ],
    ),
    Tab(
        "Neurons",
        [
            said(captions.neurons),
            rows(NEURONS),
            said(captions.NEURON_COSINES),
            plot("Cosines between samples in one neuron", plots.neurons),
        ],
        when=captions.has_neurons,
    ),
    Tab("Batches", [said(captions.batches), plot("Conflict by batch size", plots.batches), html(tables.batches)]),
    Tab(
        "Activation",
        [said(captions.deciles), plot("Conflict by activation", plots.deciles), html(tables.deciles)],
        when=lambda report: bool(report.deciles),
    ),
    Tab("Weights", [said(captions.weights), html(tables.weights)], when=lambda report: report.weights is not None),
    Tab("Published", [said(captions.published), plot("Published conflict rates", plots.published), html(tables.published)]),
)
RESULT = Layout(headline, summary, permalink, command, _TABS)
