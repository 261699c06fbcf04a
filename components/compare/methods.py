"""Renders the compare section of the methods page."""

from components.text.render import render


def methods() -> str:
    """Render the section as HTML."""
    return render("compare/templates/methods.html")
