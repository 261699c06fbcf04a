"""Shares a result: a link, the command line, and the files. Used for one model and for several."""

from base64 import b64encode
from typing import Any, Protocol

import gradio as gr

from analyzers.base import Report
from analyzers.errors import LimitExceeded, MantissaError
from analyzers.terminal import joined
from components.results.downloads import GONE, File
from components.site import addresses
from components.site.embed import HERE, Embed
from components.site.identity import Client, client_of

_LABELS = {"json": "JSON", "zip": "Tables (CSV)", "html": "Page (HTML)"}


class Source(Protocol):
    """The part of a result that a session keeps in memory to make its files."""

    def file(self, ending: str, client: Client) -> File:
        """Make the file with this ending, for a client. Raises MantissaError."""


class Share:
    """The sharing components that a finished run fills, laid out on construction; element ids begin with ``prefix``.

    embeds: include embedding code; markdown: include the result as Markdown.
    """

    def __init__(self, prefix: str, embeds: bool = True, markdown: bool = False) -> None:
        with gr.Column(elem_classes="m-share"):
            self.summary = gr.Textbox(
                label="Summary", interactive=False, lines=2, max_lines=6, buttons=["copy"], elem_id=f"{prefix}-summary", visible=embeds
            )
            self.link = gr.Textbox(label="Link to this analysis", interactive=False, lines=1, buttons=["copy"], elem_id=f"{prefix}-link")
            self.command = gr.Textbox(
                label="The same on the command line", interactive=False, lines=1, buttons=["copy"], elem_id=f"{prefix}-command"
            )
            self.markdown = gr.Textbox(
                label="Markdown, for an issue",
                interactive=False,
                lines=3,
                max_lines=8,
                buttons=["copy"],
                elem_id=f"{prefix}-markdown",
                visible=markdown,
            )
            with gr.Row(elem_classes="m-downloads"):
                self.buttons = {ending: gr.Button(label, size="md", elem_id=f"{prefix}-{ending}") for ending, label in _LABELS.items()}
            self.embed = Embed(prefix) if embeds else None
        self.source = gr.State()
        self.file = gr.JSON(visible=False)

    def components(self) -> list[Any]:
        """Return all components, as the outputs of an event."""
        own = [self.summary, self.link, self.command, self.markdown, self.source]
        return own + (self.embed.components() if self.embed is not None else [])

    def show(self, link: str, command: str, source: Source, report: Report | None = None, markdown: str = "") -> dict[Any, Any]:
        """Return updates that fill the components.

        source: source of the downloads; report: the report to embed and to summarize, None for several; markdown: the result as Markdown.
        """
        embedded = self.embed.show(report) if self.embed is not None and report is not None else {}
        return {
            self.summary: "" if report is None else share_summary(report),
            self.link: link,
            self.command: command,
            self.markdown: markdown,
            self.source: source,
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
