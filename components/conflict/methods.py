"""Renders the conflict section of the methods page: every definition, its limits and its source."""

from analyzers import limits
from components.text.render import render

# A copy of the constant in the rates of `analyzers.gradient_conflict`, since importing that would load torch.
TAU = {"float32": 1e-3, "float16": 5e-3, "bfloat16": 2e-2}
SOURCE = "https://github.com/ZeroYuHuang/DynamicK-Tuning"


def methods() -> str:
    """Render the section as HTML."""
    taus = ", ".join(f"{tau:g} in {name}" for name, tau in TAU.items())
    return render("conflict/templates/methods.html", limits=limits, taus=taus, source=SOURCE)
