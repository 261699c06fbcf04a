"""Conflict reports as one self-contained page."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from components.conflict import captions, tables
from components.conflict.headline import headline
from components.conflict.layer_table import LAYERS
from components.conflict.neuron_table import NEURONS
from components.conflict.sample_table import SAMPLES
from components.plots import gradient_conflict as plots
from components.results.standalone import Page, article, card, figure, folded, report_page
from components.text.markup import caption, notes
from components.text.names import model_name

if TYPE_CHECKING:
    from analyzers.gradient_conflict.report import ConflictReport


def document(reports: "Sequence[ConflictReport]") -> Page:
    """A page with the headline, the tables and the plots of each report."""
    return report_page("Gradient conflict", list(map(model_name, reports)), [_article(*each) for each in enumerate(reports, 1)])


def _article(row: int, report: "ConflictReport") -> str:
    compared = tables.differences(report) + notes(report.notes)
    parts = [
        headline(report),
        figure("Conflict by layer", plots.rates(report), f"rates-{row}", captions.rates(report)),
        figure("Gradient-norm similarity by layer", plots.similarity(report), f"similarity-{row}", captions.similarity(report)),
        card(compared) if compared else "",
        folded("Layers and blocks", caption(captions.LAYERS) + LAYERS.html(report)),
        figure("Between samples", plots.cosines(report), f"cosines-{row}", captions.cosines(report)),
        figure("Dominance", plots.dominance(report), f"dominance-{row}", captions.DOMINANCE),
        folded("Samples", caption(captions.samples(report)) + SAMPLES.html(report)),
        *_neurons(row, report),
        figure("Batches", plots.batches(report), f"batches-{row}", captions.batches(report)),
        card(tables.batches(report)),
    ]
    if report.deciles:
        parts += [figure("By activation", plots.deciles(report), f"deciles-{row}", captions.deciles(report)), card(tables.deciles(report))]
    if report.weights is not None:
        parts.append(folded("Weights", caption(captions.weights(report)) + tables.weights(report)))
    parts += [
        figure("The published run", plots.published(report), f"published-{row}", captions.published(report)),
        folded("Published layers", tables.published(report)),
    ]
    return article(row, parts)


def _neurons(row: int, report: "ConflictReport") -> list[str]:
    if not captions.has_neurons(report):
        return []
    return [
        figure("Neurons", plots.neurons(report), f"neurons-{row}", captions.NEURON_COSINES),
        folded("Most and least conflicted neurons", caption(captions.neurons(report)) + NEURONS.html(report)),
    ]
