"""The result on the exit page: the headline and the tabs under it."""

from typing import TYPE_CHECKING

from components.exit import captions, tables
from components.exit.form import command, permalink
from components.exit.headline import headline, summary
from components.exit.names import several_layers, was_swept
from components.exit.tables import SWEEP
from components.plots import exit_feedback as plots
from components.results.result_tabs import Layout, Tab, html, plot, rows, said
from components.text.legend import legend
from components.text.markup import caption, notes

if TYPE_CHECKING:
    from analyzers.exit_feedback.report import ExitReport


_TABS: "tuple[Tab[ExitReport], ...]" = (
    Tab(
        "Cosines",
        [
            said(captions.at_head),
            plot("Cosines at the head", plots.at_head),
            html(lambda report: tables.signals(report) + tables.seeds(report)),
            said(captions.BEFORE),
            plot("Cosines before the final norm", plots.before_norm),
            html(lambda report: caption(captions.inputs(report)) + notes(report.notes)),
        ],
    ),
    Tab(
        "Sweep",
        [said(captions.sweep, captions.sweep_legend), plot("Cosine against rank, k and anchors", plots.sweep), rows(SWEEP)],
        when=was_swept,
    ),
    Tab(
        "Energy",
        [
            said(captions.ENERGY, lambda _: legend(plots.SIDES, lines=False)),
            plot("Energy along the hidden state", plots.energy),
            html(tables.energy),
        ],
    ),
    Tab("By loss", [said(captions.LOSS_BINS, captions.signal_legend), plot("Cosine by loss", plots.loss_bins), html(tables.loss_bins)]),
    Tab(
        "By layer",
        [said(captions.LAYERS, captions.signal_legend), plot("Cosine by layer", plots.layers), html(tables.layers)],
        when=several_layers,
    ),
    Tab(
        "Training",
        [
            said(captions.training, captions.training_legend),
            plot("Loss of the small transformer", plots.training_losses),
            html(tables.training),
            said(captions.COSINES_OF_TRAINING),
            plot("Cosine in training", plots.training_cosines),
        ],
        when=lambda report: bool(report.training),
    ),
    Tab(
        "Cost",
        [
            said(captions.cost, lambda _: legend(plots.FORMS, lines=False)),
            plot("Time of loss and gradients", plots.seconds),
            said(captions.MEMORY),
            plot("Memory of loss and gradients", plots.memory),
            html(tables.cost),
        ],
    ),
)
RESULT = Layout(headline, summary, permalink, command, _TABS)
