"""Renders the exit section of the methods page: every definition, its limits and its source."""

from analyzers.core import limits
from analyzers.exit_feedback.signals import SIGNALS, TOPMASS_TOKENS
from components.text import render, table


def methods() -> str:
    """Render the section as HTML."""
    signals = table(("Signal", "What it is"), [(name, facts.about) for name, facts in SIGNALS.items()])
    return render("exit/templates/methods.html", limits=limits, signals=signals, most=TOPMASS_TOKENS)
