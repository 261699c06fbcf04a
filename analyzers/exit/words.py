"""The words of exit feedback: how its figures are written, one template per code, and the tiles."""

from typing import Any

from analyzers.core.formatting import NOTHING, cosine, magnitude, plural, share
from analyzers.core.notes import Tile
from analyzers.core.words import Words
from analyzers.exit.signals import CEILINGS, EXACT, NULL, RANDOM

FRONT = "methods"
RESOLVED = 1e-6
"""The smallest share of energy that fp32 resolves."""
_LABELS = {"rank_exact": "exact", "topk_by": "top-k by", "residual": "lambda", "mass_threshold": "mass"}
# Largest ratio of times that are told as the same, since they vary from run to run.
SAME = 1.05

WORDS = Words(
    {
        "closest": "{signal} is the closest signal without backpropagation: mean cosine {cosine:cosine} with the exact gradient over "
        "{tokens:#token} ({low:cosine} to {high:cosine} for 80% of them).",
        "closest-weak": "No signal without backpropagation points near the exact gradient: {signal}, the closest, has a mean cosine of "
        "{cosine:cosine} over {tokens:#token} ({low:cosine} to {high:cosine} for 80% of them).",
        "ceilings": "Only ceilings were measured: {signal} has a mean cosine of {cosine:cosine} over {tokens:#token}.",
        "no-gradient": "No token has an exact gradient: there is nothing to compare.",
        "keep-weak": "Keep backpropagation: no signal without it points near the exact gradient on this frozen model.",
        "keep-slow": "Keep backpropagation here: {signal} takes {times:magnitude} times as long as the exact gradient.",
        "time-again": "Measure the time on more tokens: here {signal} takes about as long as the exact gradient.",
        "measure-signals": "Measure a signal without backpropagation, such as span: a ceiling reads the head's weight.",
        "other-text": "Take other text, or look at the head: the model is certain of every token, or its head is 0.",
        "head-only": "Use {signal} at the head only: once backpropagated through the final norm, its mean cosine is {cosine:cosine}.",
        "try": "Try {signal} before the others, in training: a frozen model does not show what weights learn from it.",
        "measured-part": "{measured:#token} of {answers:#answer token} measured, a uniform random choice.",
        "padded-head": "Rows of the head beyond the {tokens:count} tokens of the tokenizer are included: {rows:count}.",
        "certain": "Without an exact gradient, because the model is certain, and so without a cosine: {tokens:#token}.",
        "wide-span": "With {anchors:#anchor} for a width of {width:count}, span may reach the exact gradient itself.",
        "narrow": "The model and the backward pass through its final norm ran in {dtype}; its head and the signals in float32.",
        "one-seed": "With one seed there is no standard error: request more seeds.",
    }
)


def signal_name(name: str) -> str:
    """Write the name of a signal, and for a reference what it is: ``svd (ceiling)``, ``fresh_codes (null)``."""
    return f"{name} (ceiling)" if name in CEILINGS else f"{name} (null)" if name == NULL else name


def energy_share(value: float | None) -> str:
    """Write a share of energy without the digits that fp32 does not resolve: ``9.24%``, ``< 0.0001%``; 0 and 1 up to 1e-12 are exact."""
    value = None if value is None else round(value, 12)
    if value is not None and 0 < value < RESOLVED:
        return f"< {100 * RESOLVED:.4f}%"
    return f"> {100 - 100 * RESOLVED:.4f}%" if value is not None and 1 - RESOLVED < value < 1 else share(value)


def milliseconds(seconds: float) -> str:
    """Write a time with as many digits as its ratios have."""
    return f"{magnitude(1e3 * seconds)} ms"


def mean(distribution: Any) -> str:
    """Write the mean of a distribution of cosines."""
    return cosine(None if distribution is None else distribution.mean)


def spread(distribution: Any) -> str:
    """Write the tenth and ninetieth percentiles of a distribution of cosines."""
    return NOTHING if distribution is None else f"{cosine(distribution.p10)} to {cosine(distribution.p90)}"


def settings(given: Any) -> str:
    """Write the settings of a signal, apart from its seed: ``rank 32, k 8``; a dash if it has none."""
    hidden = ("seed", "fresh")
    named = {_LABELS.get(key, key): value for key, value in given.items() if value is not None and key not in hidden}
    return ", ".join(f"{name} {value if isinstance(value, str) else f'{value:,g}'}" for name, value in named.items()) or NOTHING


def give_or_take(over: Any) -> str:
    """Write a mean of cosines over seeds with its standard error: ``0.005 ± 0.004``."""
    if over is None:
        return NOTHING
    error = over.standard_error
    return (
        cosine(over.mean)
        if error is None
        else f"{cosine(over.mean)} ± {error:.3f}"
        if error >= 0.001
        else f"{cosine(over.mean)} ± {error:.1g}"
    )


def tiles(report: Any) -> list[Tile]:
    """Return the closest signal, random codes, the energy along the hidden state, and the time."""
    return [_closest(report), _random(report), _along(report), _time(report)]


def _closest(report: Any) -> Tile:
    name = report.closest
    best = report.methods[name].cosine if name else None
    label = "Closest signal"
    if name is None or best is None:
        return Tile(label=label, value="cannot tell", kind="undecided", detail="No token has an exact gradient.")
    tokens = plural(report.methods[name].tokens, "token")
    if name in CEILINGS:
        detail = f"Only ceilings were measured: {name} has a mean cosine of {cosine(best.mean)} over {tokens}."
        return Tile(label=label, value="not measured", kind="undecided", detail=detail)
    used = settings(report.methods[name].settings)
    detail = f"Mean cosine {cosine(best.mean)} over {tokens}, {spread(best)} for 80% of them{'' if used == NOTHING else f'; {used}'}."
    return Tile(label=label, value=name, kind="fact", detail=detail)


def _random(report: Any) -> Tile:
    name = next((each for each in ("dense", *RANDOM) if each in report.methods), None)
    over = report.methods[name].over_seeds if name else None
    if over is None:
        return Tile(label="Random codes", value="not measured", kind="undecided")
    noise = {True: "within noise of 0", False: "beyond noise", None: "too few to tell from noise"}[over.within_noise]
    detail = f"Mean cosine of {name} over {plural(len(over.values), 'seed')}, {noise}. Weights align with their codes only in training."
    return Tile(label="Random codes", value=give_or_take(over), kind="estimate", detail=detail)


def _along(report: Any) -> Tile:
    head, before = report.exact.parallel_energy, report.exact.parallel_energy_before_norm
    if head is None or before is None:
        return Tile(label="Along the hidden state", value="cannot tell", kind="undecided", detail="No token has an exact gradient.")
    detail = (
        "Share of the exact gradient's energy along the hidden state at the head: the most that parallel can hold; before the final norm "
        f"{energy_share(before)}."
    )
    return Tile(label="Along the hidden state", value=energy_share(head), kind="fact", detail=detail)


def _time(report: Any) -> Tile:
    rows = [row for row in report.cost.rows if row.method != EXACT and row.method not in CEILINGS and row.time_ratio is not None]
    if not rows:
        return Tile(label="Time", value="not measured", kind="undecided")
    row = min(rows, key=lambda each: each.seconds)
    ratio = row.time_ratio or 1.0
    value = f"{magnitude(ratio)} times as long" if ratio >= 1 else f"{magnitude(1 / ratio)} times faster"
    detail = f"{row.method}, the fastest signal that reads no row of the head's weight, compared with the fastest exact run."
    return Tile(label="Time", value="about as long" if 1 / SAME < ratio < SAME else value, kind="estimate", detail=detail)
