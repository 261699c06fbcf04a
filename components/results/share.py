"""Sharing a result: a link, the command line, and the files. Used for one model and for several."""

from pathlib import Path
from typing import Any

import gradio as gr
from gradio.utils import get_upload_folder

from analyzers.base import Report
from analyzers.terminal import joined
from components.results.downloads import Downloads, Files
from components.site import addresses
from components.site.embed import HERE, Embed

downloads = Downloads(Path(get_upload_folder()))


class Share:
    """The parts that a finished run fills, laid out when made; element ids begin with ``prefix``.

    embeds: with embedding code; markdown: with the result as Markdown.
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
                self.json = gr.DownloadButton("JSON", size="md", elem_id=f"{prefix}-json")
                self.csv = gr.DownloadButton("Tables (CSV)", size="md", elem_id=f"{prefix}-csv")
                self.html = gr.DownloadButton("Page (HTML)", size="md", elem_id=f"{prefix}-html")
            self.embed = Embed(prefix) if embeds else None

    def components(self) -> list[Any]:
        """All components, as the outputs of an event."""
        own = [self.summary, self.link, self.command, self.markdown, self.json, self.csv, self.html]
        return own + (self.embed.components() if self.embed is not None else [])

    def show(self, link: str, command: str, files: Files, report: Report | None = None, markdown: str = "") -> dict[Any, Any]:
        """Updates that fill the components. report: the report to embed and to summarize; None for several. markdown: of the result."""
        embedded = self.embed.show(report) if self.embed is not None and report is not None else {}
        return {
            self.summary: "" if report is None else summary(report),
            self.link: link,
            self.command: command,
            self.markdown: markdown,
            self.json: gr.update(value=files.json),
            self.csv: gr.update(value=files.csv),
            self.html: gr.update(value=files.html),
            **embedded,
        }


def summary(report: Report) -> str:
    """The subject, the answer with what the library knows, and the address of the page."""
    answer = addresses.layout(report.analyzer).summary(report)
    return joined([f"{' -> '.join(report.subject().values())}: {answer}", f"{HERE}{addresses.again(report)}"])
