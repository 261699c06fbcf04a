"""Shares a result: a link, the command line, and the files. Used for one model and for several."""

from base64 import b64encode
from typing import Any, Protocol

import gradio as gr

from analyzers.core.errors import LimitExceeded, MantissaError
from analyzers.core.report import Report
from analyzers.core.terminal import joined
from components.forms.fields import build_copied
from components.forms.form import as_read
from components.results.discussion import discussion
from components.results.downloads import GONE, File
from components.results.layout import Layout
from components.site import addresses, stored_results
from components.site.embed import HERE, Embed
from components.site.identity import Client, client_of

_LABELS = {"png": "Card (PNG)", "json": "JSON", "zip": "Tables (CSV)", "html": "Page (HTML)"}


class Source(Protocol):
    """The part of a result that a session keeps in memory to make its files."""

    def file(self, ending: str, client: Client) -> File:
        """Make the file with this ending, for a client. Raises MantissaError."""


class Share:
    """The sharing components that a finished run fills, laid out on construction; element ids begin with ``prefix``.

    single: of one report, with its summary, its short link, its card, its Markdown and embedding code.
    """

    def __init__(self, prefix: str, single: bool = True) -> None:
        with gr.Column(elem_classes="m-share"):
            self.short = build_copied("Short link to the stored result", f"{prefix}-short", visible=single)
            self.summary = build_copied("Summary", f"{prefix}-summary", 2, 6, single)
            self.link = build_copied("Link to this analysis", f"{prefix}-link")
            self.command = build_copied("The same on the command line", f"{prefix}-command")
            self.markdown = build_copied("Markdown, for a discussion", f"{prefix}-markdown", 3, 8, single)
            with gr.Row(elem_classes="m-downloads"):
                endings = [ending for ending in _LABELS if single or ending != "png"]
                self.buttons = {ending: gr.Button(_LABELS[ending], size="md", elem_id=f"{prefix}-{ending}") for ending in endings}
                self.text = gr.Button("Discussion (Markdown)", size="md", elem_id=f"{prefix}-md", visible=single)
            self.embed = Embed(prefix) if single else None
        self.source = gr.State()
        self.file = gr.JSON(visible=False)

    def components(self) -> list[Any]:
        """Return all components, as the outputs of an event."""
        own = [self.short, self.summary, self.link, self.command, self.markdown, self.source]
        return own + (self.embed.components() if self.embed is not None else [])

    def codes(self) -> list[Any]:
        """Return the fields that contain this app's address."""
        return [self.short, self.summary, self.markdown, *(self.embed.codes() if self.embed is not None else [])]

    def show(self, link: str, command: str, source: Source) -> dict[Any, Any]:
        """Return updates that fill the components of several reports. source: source of the downloads."""
        return {self.link: link, self.command: command, self.source: source}

    def show_report(self, layout: Layout[Any], report: Report, source: Source) -> dict[Any, Any]:
        """Return updates that fill the components of one report. source: source of the downloads."""
        link, command = layout.permalink(as_read(report)), layout.command(as_read(report, found=True))
        short = addresses.short(report.id) if stored_results.is_stored(report) else ""
        embedded = self.embed.show(report) if self.embed is not None else {}
        return {
            **self.show(link, command, source),
            self.short: gr.update(value=HERE + short if short else "", visible=bool(short)),
            self.summary: share_summary(report),
            self.markdown: discussion(layout, report, HERE + (short or addresses.recompute(report)), command),
            **embedded,
        }

    def taken(self, source: Source | None, request: gr.Request, event: gr.EventData) -> dict[str, str]:
        """Return the file that the pressed button requests, for the browser to save. Raises gr.Error with a sentence."""
        ending = next(ending for ending, button in self.buttons.items() if button == event.target)
        try:
            if source is None:
                raise LimitExceeded(GONE)
            file = source.file(ending, client_of(request))
        except MantissaError as error:
            raise gr.Error(str(error), print_exception=False) from None
        return {"name": file.name, "type": file.kind, "content": b64encode(file.content).decode("ascii")}


def share_summary(report: Report) -> str:
    """Write the subject, the answer with the library's knowledge, and the address of the page."""
    answer = addresses.layout(report.analyzer).summary(report)
    return joined([f"{' -> '.join(report.subject().values())}: {answer}", f"{HERE}{addresses.recompute(report)}"])
