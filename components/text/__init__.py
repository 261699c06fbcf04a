"""Renders templates and numbers for display, and makes all external text safe."""

from analyzers.core import formatting as numbers
from components.text.plain_text import html, prose, shown
from components.text.render import render

__all__ = ["html", "numbers", "prose", "render", "shown"]
