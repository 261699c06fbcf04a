"""Precision variants on the methods page: every definition, its limits and its source."""

from analyzers import limits
from analyzers.precision_variants.request import CLIP
from components.precision.text import PRESETS
from components.text.markup import table
from components.text.render import render

# Anchor -> the section, for the contents of the page.
CONTENTS = {
    "precision": "what is compared",
    "variants": "variants",
    "logprobs": "log-probabilities and ratios",
    "headroom": "headroom",
    "precision-limits": "what is run",
}


def methods() -> str:
    """The text in HTML."""
    presets = table(("Variant", "Settings"), PRESETS.items())
    return render("precision/templates/methods.html", limits=limits, clip=CLIP, presets=presets)
