"""Exit reports as one self-contained page."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from components.exit import captions, tables
from components.exit.headline import headline
from components.exit.names import several_layers, was_swept
from components.exit.tables import SWEEP
from components.plots import exit_feedback as plots
from components.results.standalone import Page, article, card, figure, folded, report_page
from components.text.legend import legend
from components.text.markup import caption, notes
from components.text.names import model_name

if TYPE_CHECKING:
    from analyzers.exit_feedback.report import ExitReport


def document(reports: "Sequence[ExitReport]") -> Page:
    """A page with the headline, the tables and the plots of each report."""
    return report_page("Exit feedback", list(map(model_name, reports)), [_article(*each) for each in enumerate(reports, 1)])


def _article(row: int, report: "ExitReport") -> str:
    signals, sides, forms = captions.signal_legend(report), legend(plots.SIDES, lines=False), legend(plots.FORMS, lines=False)
    parts = [
        headline(report),
        figure("Cosines at the head", plots.at_head(report), f"head-{row}", captions.at_head(report)),
        card(tables.signals(report) + tables.seeds(report) + caption(captions.inputs(report)) + notes(report.notes)),
        figure("Cosines before the final norm", plots.before_norm(report), f"before-{row}", captions.BEFORE),
    ]
    if was_swept(report):
        parts.append(figure("Sweep", plots.sweep(report), f"sweep-{row}", captions.sweep(report), captions.sweep_legend(report)))
        parts.append(folded("Sweep table", SWEEP.html(report)))
    parts += [
        figure("Energy along the hidden state", plots.energy(report), f"energy-{row}", captions.ENERGY, sides),
        folded("Along and orthogonal", tables.energy(report)),
        figure("By loss", plots.loss_bins(report), f"loss-{row}", captions.LOSS_BINS, signals),
        folded("Cosines by loss", tables.loss_bins(report)),
    ]
    if several_layers(report):
        parts.append(figure("By layer", plots.layers(report), f"layers-{row}", captions.LAYERS, signals))
        parts.append(folded("Cosines by layer", tables.layers(report)))
    if report.training:
        named = captions.training_legend(report)
        parts.append(figure("Training", plots.training_losses(report), f"training-{row}", captions.training(report), named))
        parts.append(card(tables.training(report)))
        about = captions.COSINES_OF_TRAINING
        parts.append(figure("Cosines in training", plots.training_cosines(report), f"turning-{row}", about, named))
    parts += [
        figure("Time", plots.seconds(report), f"time-{row}", captions.cost(report), forms),
        figure("Memory", plots.memory(report), f"memory-{row}", captions.MEMORY, forms),
        folded("Time and memory", tables.cost(report)),
    ]
    return article(row, parts)
