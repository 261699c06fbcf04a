"""Renders the precision section of the methods page: every definition, its limits and its source."""

from analyzers.core import limits
from analyzers.precision_variants import ABOUT
from analyzers.precision_variants.engine.comparison import BAND
from analyzers.precision_variants.request import CLIP
from components.text.markup import table
from components.text.render import render


def methods() -> str:
    """Render the section as HTML."""
    presets = table(("Variant", "Settings"), ABOUT.items())
    return render(
        "precision/templates/methods.html", limits=limits, band=BAND, visible=round((BAND**2 - 1) ** 0.5, 2), clip=CLIP, presets=presets
    )
