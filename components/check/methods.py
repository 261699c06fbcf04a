"""Renders the check section of the methods page: every rule and its limits."""

from analyzers.check.report import RULES, WITH_BASE
from components.text import render


def methods() -> str:
    """Render the section as HTML."""
    return render("check/templates/methods.html", rules=RULES, with_base=WITH_BASE)
