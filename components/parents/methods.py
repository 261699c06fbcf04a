"""Renders the parents section of the methods page: every definition and its limits."""

from analyzers.core import limits
from analyzers.parents.analyze import FITTED
from analyzers.parents.combination import EXACT, SMALLEST
from analyzers.parents.facts import RELATED
from analyzers.parents.proof import GRID
from components.text import render


def methods() -> str:
    """Render the section as HTML."""
    values = {"fitted": FITTED, "smallest": SMALLEST, "exact": EXACT, "grid": GRID, "related": RELATED}
    return render("parents/templates/methods.html", limits=limits, **values)
