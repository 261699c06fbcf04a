"""Headline and advice of exit feedback."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from analyzers.base import NextStep
from analyzers.exit_feedback.measurements import Method
from analyzers.exit_feedback.signals import CEILINGS

if TYPE_CHECKING:
    from analyzers.exit_feedback.report import ExitReport

# Mean cosines below this are reported as weak.
_SMALL = 0.1


def headline(report: "ExitReport") -> str:
    """Write the headline, `closest`."""
    return closest(report.methods)


def closest(methods: Mapping[str, Method]) -> str:
    """Write which signal has the largest mean cosine, among those whose backward pass does not read the head's weight."""
    cosines = {name: method.cosine for name, method in methods.items() if method.cosine is not None}
    free = {name: cosine for name, cosine in cosines.items() if name not in CEILINGS}
    if not cosines:
        return "No token has an exact gradient: there is nothing to compare."
    name, cosine = max((free or cosines).items(), key=lambda item: item[1].mean)
    weak = ", a weak approximation" if cosine.mean < _SMALL else ""
    if len(cosines) == 1:
        return f"{name} has a mean cosine of {cosine.mean:.2f} with the exact gradient{weak}."
    which = f"Among the signals without backpropagation, {name} is closest" if free else f"Among the ceilings, {name} is closest"
    spread = f"({cosine.p10:.2f} to {cosine.p90:.2f} for 80% of tokens)"
    return f"{which}, with a mean cosine of {cosine.mean:.2f} with the exact gradient {spread}{weak}."


def next_step(report: "ExitReport") -> NextStep:
    """Return advice, and the analyzer for conflict between the samples' exact gradients."""
    return NextStep(_advice(report), "conflict", report.checkpoint.ref)


def _advice(report: "ExitReport") -> str:
    """Write whether a signal is worth using."""
    cosines = {name: method.cosine.mean for name, method in report.methods.items() if method.cosine and name not in CEILINGS}
    best = max(cosines, key=cosines.__getitem__, default=None)
    if best is None or cosines[best] < _SMALL:
        return "Keep backpropagation: no signal without it points near the exact gradient on this frozen model."
    inside = report.methods[best].before_norm.cosine
    if inside is not None and inside.mean < _SMALL:
        return f"Use {best} at the head only: behind the final norm its mean cosine is {inside.mean:.2f}."
    return f"Try {best} before the others, in training: on a frozen model it is closest to the exact gradient."
