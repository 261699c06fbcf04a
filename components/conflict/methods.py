"""Renders the conflict section of the methods page: every definition, its limits and its source."""

from analyzers.core import limits
from analyzers.gradient_conflict.published import SOURCE
from analyzers.gradient_conflict.rows import TAU
from components.text import render


def methods() -> str:
    """Render the section as HTML."""
    taus = ", ".join(f"{tau:g} in {name}" for name, tau in TAU.items() if name != "float64")  # of batches of a caller alone
    return render("conflict/templates/methods.html", limits=limits, taus=taus, source=SOURCE)
