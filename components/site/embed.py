"""Embeds a result in another site: the code of a frame, of Gradio's own element, and of a badge for a README."""

from html import escape
from typing import Any

import gradio as gr

from analyzers.core.report import Report
from components.forms.fields import build_copied
from components.site import addresses, stored_results
from components.text import macros, shown

_PARTS = macros("site/templates/result.html")
# Placeholder for the address of this app, which only the browser knows: behind a proxy the server sees another one.
HERE = "{here}"
# Analyzers whose facts are on a badge: the badge's name, and the query for its parts.
_BADGES = {"dtype": ("precision", ""), "check": ("checked", "?show=checked"), "precision": ("fp16", "?show=activations")}
_HEIGHT, _SMALL_HEIGHT = 720, 520  # pixels
WHOLE_CODE = "(code) => (code ? code.replaceAll('{here}', new URL('.', location.href).href) : code)"


class Embed:
    """The embedding fields that a finished run fills, folded when built. page: the link to the stored result."""

    def __init__(self, prefix: str) -> None:
        with gr.Accordion("Embed it", open=False, elem_classes="m-embeds", elem_id=f"{prefix}-embed"):
            self.page = build_copied("Link to the stored result", f"{prefix}-stored", 1)
            self.frame = build_copied("As a frame", f"{prefix}-frame", 3)
            self.small = build_copied("As a small frame, without figures", f"{prefix}-small", 3)
            self.element = build_copied("As Gradio's element", f"{prefix}-element", 4)
            self.badge = build_copied("Badge, for a README", f"{prefix}-badge", 2)
            self.picture = gr.HTML(elem_classes="m-plain")

    def components(self) -> list[Any]:
        """Return all fields, as the outputs of an event."""
        return [*self.codes(), self.picture]

    def codes(self) -> list[Any]:
        """Return the fields that contain this app's address."""
        return [self.page, self.frame, self.small, self.element, self.badge]

    def show(self, report: Report) -> dict[Any, Any]:
        """Return updates that fill the fields."""
        kept = stored_results.is_stored(report)
        model = next(iter(report.subject().values()))
        return {
            self.page: gr.update(value=HERE + addresses.stored(report.id) if kept else "", visible=kept),
            self.frame: frame(report, kept),
            self.small: gr.update(value=small_frame(report) if kept else "", visible=kept),
            self.element: gr.update(value=element(report), visible=report.analyzer == "dtype"),
            self.badge: gr.update(value=badge(report.analyzer, model), visible=report.analyzer in _BADGES),
            self.picture: _PARTS.badge(*_image(report.analyzer, model)),
        }


def frame(report: Report, kept: bool) -> str:
    """Return the HTML of a frame with the stored result, which loads at once, or with the page that computes it."""
    return _frame(report, f"{addresses.stored(report.id)}?embed=1" if kept else f"{addresses.recompute(report)}&embed=1", _HEIGHT)


def small_frame(report: Report) -> str:
    """Return the HTML of a frame with the headline of the stored result, for a blog: it loads no script."""
    return _frame(report, f"{addresses.stored(report.id)}?embed=small", _SMALL_HEIGHT)


def _frame(report: Report, address: str, height: int) -> str:
    title = shown(f"Mantissa: {', '.join(report.subject().values())}", 120)
    return (
        f'<iframe src="{HERE}{escape(address)}" title="{escape(title)}" width="100%" height="{height}" loading="lazy" '
        'style="border: 1px solid #e4e4e1; border-radius: 14px"></iframe>'
    )


def element(report: Report) -> str:
    """Return the HTML of Gradio's element, which becomes part of the embedding page."""
    query = f"{addresses.recompute(report)}&embed=1"
    return (
        f'<script type="module" src="{HERE}gradio.js"></script>\n'
        f'<gradio-app src="{HERE}" data-query="{escape(query)}" initial_height="720px"></gradio-app>'
    )


def badge(analyzer: str, model: str) -> str:
    """Return the Markdown of the model's badge, which links to the analyzer's page; empty if the analyzer has no badge."""
    name, image = _image(analyzer, model)
    page = addresses.page(analyzer, model)
    return f"[![Mantissa: {name}]({HERE}{image})]({HERE}{page})" if name else ""


def _image(analyzer: str, model: str) -> tuple[str, str]:
    """Return the name of an analyzer's badge, and its address; empty if it has none."""
    name, query = _BADGES.get(analyzer, ("", ""))
    return name, f"{addresses.badge(model)}{query}" if name else ""
