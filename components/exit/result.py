"""Lays out the result of exit feedback: the headline with its tiles, and the tabs below."""

from functools import partial

from analyzers.exit_feedback.columns import BY_LAYER, BY_LOSS, COST, ENERGY, SEEDS, SIGNALS, SWEEP, cosine, energy_share, settings, spread
from analyzers.exit_feedback.report import ExitReport
from analyzers.exit_feedback.signals import CEILINGS, EXACT, RANDOM
from components.exit import plots, text
from components.exit.sweep_plot import sweep
from components.exit.text import captions, data_name, give_or_take, several_layers, too_few, was_swept
from components.forms.form import command, permalink
from components.results.layout import Caption, Layout, Piece, Plot, Rows, Tab
from components.results.tables import Sortable, listed
from components.text import model_name, notes, numbers
from components.text.headline import ESTIMATE, FACT, about_sample, answer, answered, cannot_tell, card, model_head, tiles
from components.text.legend import legend

# Largest ratio of times that are told as the same, since they vary from run to run
_SAME = 1.05


def headline(report: ExitReport, links: bool = True) -> str:
    """Render the model, the answer and the tiles. links: include those that work only on the app's pages."""
    return card(
        "Backprop-free gradients",
        _head(report),
        answered(report, report.headline(), links),
        tiles(
            report,
            links,
            ("signals", _closest(report)),
            ("random-codes", _random(report)),
            ("exit", _along(report)),
            ("exit-cost", _cheapest(report)),
        ),
        about_sample(report.checkpoint.ref, more=f", on {data_name(report)}"),
    )


def _head(report: ExitReport) -> str:
    head, inputs = report.head, report.inputs
    facts = (
        f"Head {numbers.count(head.vocabulary)} x {numbers.count(head.width)}{', tied' if head.tied else ''}, "
        f"{numbers.plural(inputs.measured, 'token')} of {numbers.plural(inputs.samples, 'sample')} of {data_name(report)}, {report.dtype}. "
        f"Took {numbers.duration(report.timing.seconds)}"
    )
    return model_head(model_name(report), report.checkpoint, facts)


def _closest(report: ExitReport) -> str:
    """Render the tile of the signal with the highest mean cosine.

    Only signals whose backward pass does not read the head's weight compete, or the ceilings if there are no others.
    """
    cosines = {name: method.cosine for name, method in report.methods.items() if method.cosine is not None}
    free = {name: each for name, each in cosines.items() if name not in CEILINGS}
    if not cosines:
        return cannot_tell("Closest to exact", "No token has an exact gradient.")
    name, best = max((free or cosines).items(), key=lambda each: each[1].mean)
    given = settings(report.methods[name].settings)
    body = (
        f"Mean cosine {cosine(best.mean)} with the exact gradient, {spread(best)} for 80% of tokens"
        f"{f', with {given}' if given != numbers.NOTHING else ''}."
    )
    return answer("Closest without backpropagation" if free else "Closest ceiling", name, FACT, body)


def _random(report: ExitReport) -> str:
    over = {name: method.over_seeds for name, method in report.methods.items() if name in RANDOM}
    name = "dense" if "dense" in over else "hybrid"
    seeds = over.get(name)
    if seeds is None:
        return cannot_tell("Random codes", "Neither dense nor hybrid was requested.")
    if seeds.within_noise is None:
        return cannot_tell("Random codes", f"Mean cosine of {name} on the frozen model: {too_few(seeds)}")
    which = f"Mean cosine of {name} on the frozen model, ± standard error over {numbers.plural(len(seeds.values), 'seed')}: "
    body = "within noise of 0. Weights align with their codes only in training." if seeds.within_noise else "beyond noise."
    return answer("Random codes", give_or_take(seeds.mean, seeds.standard_error), ESTIMATE, which + body)


def _along(report: ExitReport) -> str:
    head, before = report.exact.parallel_energy, report.exact.parallel_energy_before_norm
    if head is None or before is None:
        return cannot_tell("Along the hidden state", "There is no exact gradient.")
    body = (
        "The share of the exact gradient's energy that is along h at the head, which is all that parallel has. "
        f"Before the final norm it is {energy_share(before)}: the norm's backward pass removes it."
    )
    return answer("Along the hidden state", energy_share(head), FACT, body)


def _cheapest(report: ExitReport) -> str:
    """Render the tile with time and memory of the fastest practical signal, relative to the fastest exact run."""
    rows = [row for row in report.cost.rows if row.method != EXACT and row.method not in CEILINGS and row.time_ratio is not None]
    if not rows:
        return cannot_tell("Time", "Cost was not measured.")
    row = min(rows, key=lambda each: each.seconds)
    memory = f", with {numbers.fixed(row.memory_ratio, 2)} times its memory" if row.memory_ratio is not None else ""
    ratio = row.time_ratio or 1.0
    slower = " No practical signal is faster here." if ratio >= 1 else ""
    body = f"{row.method}, the fastest practical signal, compared with the fastest exact run{memory}.{slower}"
    said = f"{numbers.magnitude(ratio)} times as long" if ratio >= 1 else f"{numbers.magnitude(1 / ratio)} times faster"
    said = "about as long" if 1 / _SAME < ratio < _SAME else said
    return answer("Time", said, ESTIMATE, body)


_TABS: tuple[Tab[ExitReport], ...] = (
    Tab(
        "Cosines",
        [
            Caption(captions.at_head),
            Plot("Cosines at the head", plots.at_head),
            Piece(lambda report: listed(SIGNALS, report) + listed(SEEDS, report)),
            Caption(captions.before_norm),
            Plot("Cosines before the final norm", plots.before_norm),
            Piece(lambda report: notes([captions.inputs(report), *report.notes])),
        ],
    ),
    Tab(
        "Sweep",
        [
            Caption(captions.sweep, text.sweep_legend),
            Plot("Cosine against rank, k and anchors", sweep),
            Rows(Sortable(SWEEP, "m-sweep-table")),
        ],
        when=was_swept,
    ),
    Tab(
        "Energy",
        [
            Caption(captions.energy, lambda _: legend(plots.SIDES, lines=False)),
            Plot("Energy along the hidden state", plots.energy),
            Piece(partial(listed, ENERGY), folded="Energy along the hidden state and orthogonal to it"),
        ],
    ),
    Tab(
        "By loss",
        [
            Caption(captions.loss_bins, text.signal_legend),
            Plot("Cosine by loss", plots.loss_bins),
            Piece(partial(listed, BY_LOSS), folded="Cosines by loss"),
        ],
    ),
    Tab(
        "By layer",
        [
            Caption(captions.layers, text.signal_legend),
            Plot("Cosine by layer", plots.layers),
            Piece(partial(listed, BY_LAYER), folded="Cosines by layer"),
        ],
        when=several_layers,
    ),
    Tab(
        "Cost",
        [
            Caption(captions.cost, lambda _: legend(plots.FORMS, lines=False)),
            Plot("Time of loss and gradients", plots.seconds),
            Caption(captions.memory),
            Plot("Memory of loss and gradients", plots.memory),
            Piece(partial(listed, COST), folded="Time and memory"),
        ],
    ),
)
RESULT = Layout("Backprop-free gradients", model_name, headline, permalink, command, _TABS)
