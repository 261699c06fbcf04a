"""The bar at the top of every page."""

import gradio as gr

# The address of each page, relative to any other: it holds behind whatever prefix a proxy adds.
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
    """The product's name and a link to each page; ``current`` is marked as such."""
    mark = ' aria-current="page"'
    links = "".join(f'<a href="{address}"{mark if name == current else ""}>{name}</a>' for name, address in PAGES.items())
    gr.HTML(f'<nav class="m-nav" aria-label="Pages"><b>Mantissa</b>{links}</nav>', elem_classes="m-plain")
