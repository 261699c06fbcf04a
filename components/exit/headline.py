"""The headline: the reading in plain words, and under it the four tiles. In HTML; whatever comes from outside is escaped here."""

from typing import TYPE_CHECKING

from components.exit.names import CEILINGS, EXACT, FROZEN, RANDOM, cosine, data_name, give_or_take, settings, spread
from components.text import numbers
from components.text.headline import ESTIMATE, FACT, about_sample, answer, cannot_tell, card, model_head, reading, tiles
from components.text.names import model_name

if TYPE_CHECKING:
    from analyzers.exit_feedback.report import Cost, CostRow, ExitReport, OverSeeds


def headline(report: "ExitReport") -> str:
    """Head, sentences, tiles."""
    return card(
        "Exit feedback",
        _head(report),
        about_sample(report.checkpoint.ref, more=f", on {data_name(report)}"),
        reading("How close the signals come", report.statement),
        tiles(_closest(report), _random(report), _along(report), _trained(report) if report.training else _cheapest(report)),
    )


def summary(report: "ExitReport") -> str:
    """The headline as one line of plain text (not HTML), for a status line or a screen reader."""
    return f"{model_name(report)}: {report.statement}"


def too_few(over: "OverSeeds") -> str:
    """The end of a sentence on a mean of which it cannot be told."""
    return f"{cosine(over.mean)} for {numbers.plural(len(over.values), 'seed')}, too few to tell it from noise."


def _head(report: "ExitReport") -> str:
    head, inputs = report.head, report.inputs
    facts = (
        f"Head {numbers.count(head.vocabulary)} x {numbers.count(head.width)}{', tied' if head.tied else ''}, "
        f"{numbers.plural(inputs.measured, 'token')} of {numbers.plural(inputs.samples, 'sample')} of {data_name(report)}, {report.dtype}. "
        f"Took {numbers.duration(report.timing.seconds)}"
    )
    return model_head(model_name(report), report.checkpoint, facts)


def _closest(report: "ExitReport") -> str:
    """Of the signals that do not read the head's weight on the way back; of the ceilings where there are no others."""
    found = {name: method.cosine for name, method in report.methods.items() if method.cosine is not None}
    free = {name: each for name, each in found.items() if name not in CEILINGS}
    if not found:
        return cannot_tell("Closest to exact", "No token has an exact gradient.")
    name, best = max((free or found).items(), key=lambda each: each[1].mean)
    given = settings(report, name)
    body = (
        f"Mean cosine {cosine(best.mean)} with the exact gradient, {spread(best)} in 80% of tokens"
        f"{f', with {given}' if given != numbers.NOTHING else ''}."
    )
    return answer("Closest without backpropagation" if free else "Closest ceiling", name, FACT, body)


def _random(report: "ExitReport") -> str:
    over = {name: method.over_seeds for name, method in report.methods.items() if name in RANDOM}
    name = "dense" if "dense" in over else "hybrid"
    found = over.get(name)
    if found is None:
        return cannot_tell("Random codes", "Neither dense nor hybrid was asked for.")
    noise = found.within_noise
    if noise is None:
        return cannot_tell("Random codes", f"Mean cosine of {name} on the frozen model: {too_few(found)}")
    which = f"Mean cosine of {name} on the frozen model over {numbers.plural(len(found.values), 'seed')}, ± its standard error: "
    body = "within noise of 0. A model must be trained with its codes before they point anywhere." if noise else "more than noise."
    return answer("Random codes", give_or_take(found.mean, found.standard_error), ESTIMATE, which + body)


def _along(report: "ExitReport") -> str:
    head, before = report.exact.parallel_energy, report.exact.parallel_energy_before_norm
    if head is None or before is None:
        return cannot_tell("Along the hidden state", "There is no exact gradient.")
    body = (
        f"So much of the exact gradient's energy goes along h at the head, which is all that parallel has. Before the final norm it is "
        f"{numbers.share(before)}: the norm's way back takes out what goes along."
    )
    return answer("Along the hidden state", numbers.share(head), FACT, body)


def _trained(report: "ExitReport") -> str:
    """Of the signals that need no backpropagation, the one under which the small trunk learns most."""
    rows = {row.method: row for row in report.training}
    kept = {
        name: row.recovered for name, row in rows.items() if name in report.methods and name not in CEILINGS and row.recovered is not None
    }
    exact, frozen = rows.get(EXACT), rows.get(FROZEN)
    if not kept or exact is None or frozen is None or exact.final_loss is None or frozen.final_loss is None:
        return cannot_tell("A small trunk learns", "Training by exact backpropagation brought nothing to compare with.")
    name = max(kept, key=lambda each: kept[each] or 0.0)
    share = kept[name] or 0.0
    body = (
        f"So much of what exact backpropagation brings a small trunk (loss {frozen.final_loss:.2f} to {exact.final_loss:.2f}) is kept "
        f"under {name}, the best of the signals without it."
    )
    return answer("A small trunk learns", f"{100 * share:.0f}%", FACT, body if share > 0 else f"{body} Below 0 it is worse than none.")


def _cheapest(report: "ExitReport") -> str:
    """Time and memory of the exact gradient in pieces and of the signals, where nothing was trained."""
    rows = _chunked(report.cost)
    exact = rows.pop(EXACT, None)
    if exact is None or not rows or not exact.seconds:
        return cannot_tell("Time", "Cost was not measured.")
    name = min(rows, key=lambda each: rows[each].seconds)
    body = f"Time of {name}, the fastest, to that of the exact gradient, both in pieces. Of memory it takes " + (
        f"{rows[name].peak_bytes / exact.peak_bytes:.2f} times as much." if exact.peak_bytes else "what cannot be told."
    )
    return answer("Time", f"{rows[name].seconds / exact.seconds:.2f} times", ESTIMATE, body)


def _chunked(cost: "Cost") -> "dict[str, CostRow]":
    return {row.method: row for row in cost.rows if row.form == "chunked"}
