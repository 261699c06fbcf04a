"""The navigation bar at the top of every page."""

import gradio as gr

# Page addresses, relative to one another so that they work under any proxy prefix.
PAGES = {
    "Passport": "./",
    "Sparsity": "sparsity",
    "Conflict": "conflict",
    "Precision": "precision",
    "Exit": "exit",
    "Library": "library",
    "Methods": "methods",
}


def build_navigation(current: str) -> None:
    """The product's name and a link to each page; ``current`` is highlighted."""
    mark = ' aria-current="page"'
    links = "".join(f'<a href="{address}"{mark if name == current else ""}>{name}</a>' for name, address in PAGES.items())
    gr.HTML(f'<nav class="m-nav" aria-label="Pages"><b>Mantissa</b>{links}</nav>', elem_classes="m-plain")
