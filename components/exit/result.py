"""Lays out the result of exit feedback."""

from analyzers.exit_feedback.report import ExitReport
from components.exit import plots
from components.exit.sweep_plot import sweep
from components.exit.text import signal_legend
from components.results.answer import layout_of, short_table, table
from components.results.layout import Caption, Plot, Tab
from components.text.legend import legend


def _several_layers(report: ExitReport) -> bool:
    return len({row.layer for row in report.layers}) > 1


def _was_swept(report: ExitReport) -> bool:
    return any(row.parameter != "seed" for row in report.sweep)


RESULT = layout_of(
    "Backprop-free gradients",
    (
        Tab(
            "Cosines",
            [
                Caption("Cosine of each signal with the exact gradient by token, at the head: 1 is backpropagation, 0 is chance."),
                Plot("Cosines at the head", plots.at_head),
                short_table(ExitReport, "methods"),
                Caption("Before the final norm: its backward pass removes the component along the hidden state."),
                Plot("Cosines before the final norm", plots.before_norm),
                short_table(ExitReport, "energy"),
            ],
        ),
        Tab(
            "Sweep",
            [
                Caption("Mean cosine against rank, k and the number of anchors; bars span the seeds.", signal_legend),
                Plot("Cosine against rank, k and anchors", sweep),
                table(ExitReport, "sweep"),
            ],
            when=_was_swept,
        ),
        Tab(
            "By loss",
            [
                Caption("Mean cosine for tokens of low to high loss, a fifth of them each.", signal_legend),
                Plot("Cosine by loss", plots.loss_bins),
                short_table(ExitReport, "loss_bins"),
            ],
        ),
        Tab(
            "By layer",
            [
                Caption("Mean cosine through the logit lens: final norm and head applied to each layer's output.", signal_legend),
                Plot("Cosine by layer", plots.layers),
                short_table(ExitReport, "layers"),
            ],
            when=_several_layers,
        ),
        Tab(
            "Cost",
            [
                Caption(
                    "Loss and gradients at the head on this machine: all logits at once, and in chunks of tokens.",
                    lambda _: legend(plots.FORMS, lines=False),
                ),
                Plot("Time of loss and gradients", plots.seconds),
                Plot("Memory of loss and gradients", plots.memory),
                short_table(ExitReport, "cost"),
            ],
        ),
    ),
)
