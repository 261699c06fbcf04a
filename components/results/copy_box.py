"""Shows the offer of a pull request: what it would do, the button, and the command for those who cannot use it."""

from typing import Any

import gradio as gr

from analyzers.core import limits
from analyzers.core.formatting import size
from components.forms.fields import build_copied
from components.results.copy_offer import GO, CopyOffer
from components.site.identity import may_open_pull_requests
from components.text import macros

_PIECES = macros("results/templates/copy.html")


def why_not(offer: CopyOffer) -> str:
    """Say why the page cannot open it; "" if it can."""
    if not may_open_pull_requests():
        return "This app opens no pull requests: the command does, with your own login."
    if not offer.checkpoint.public:
        return "The page copies public models only; the command does the same, with your own login."
    if offer.checkpoint.bytes > limits.PULL_REQUEST_BYTES:
        most = size(limits.PULL_REQUEST_BYTES)
        return f"The page copies at most {most} (MANTISSA_PULL_REQUEST_BYTES); the command does the same, with your own login."
    return ""


class CopyBox:
    """The components of the offer, laid out hidden by the constructor."""

    def __init__(self) -> None:
        with gr.Column(visible=False, elem_id="m-copy", elem_classes="m-fields m-form") as self.box:
            self.about = gr.HTML(elem_classes="m-plain")
            self.command = build_copied("Command", "m-copy-command", visible=False)
            with gr.Row(elem_classes="m-downloads"):
                self.go = gr.Button(GO.format("smaller"), size="md", elem_id="m-copy-go")
                self.stop = gr.Button("Stop", size="md", visible=False, elem_id="m-copy-stop")
            self.status = gr.HTML(elem_classes="m-plain", elem_id="m-copy-status")

    def components(self) -> list[Any]:
        """List all components, as the outputs of an event."""
        return [self.box, self.about, self.command, self.go, self.stop, self.status]

    def show(self, offer: CopyOffer | None) -> dict[Any, Any]:
        """Return updates that show ``offer``; hidden without one."""
        if offer is None:
            return {self.box: gr.update(visible=False), self.status: ""}
        return {
            self.box: gr.update(visible=True),
            self.about: _PIECES.offer(offer.said, why_not(offer)),
            self.command: gr.update(value=offer.command, visible=bool(why_not(offer))),
            self.go: gr.update(value=offer.button, visible=not why_not(offer)),
            self.stop: gr.update(visible=False),
            self.status: "",
        }

    def busy(self, running: bool) -> dict[Any, Any]:
        """Return updates for when the work starts (``running``) or ends."""
        return {self.go: gr.update(visible=not running), self.stop: gr.update(visible=running)}
