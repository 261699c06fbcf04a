"""Offers a pull request with a narrower copy of a model: what it would do, the button, and the command for those who cannot use it."""

from typing import Any, NamedTuple

import gradio as gr

from analyzers import limits
from analyzers.base import CheckpointFacts
from analyzers.formatting import share, size
from components.site.identity import may_open_pull_requests
from components.text.render import macros

_PIECES = macros("results/templates/copy.html")
_GO = "Open a pull request with the {} copy"


class CopyOffer(NamedTuple):
    """A lossless copy of a public model on the Hub in fewer bytes.

    after: most bytes of its tensors; known: a sentence on what is known of its values; held: the format of the copy, "" if there may be
    several.
    """

    checkpoint: CheckpointFacts
    after: int
    known: str
    held: str = ""

    @property
    def command(self) -> str:
        """Return the command that does the same."""
        return f"mantissa shrink {self.checkpoint.ref} --out FOLDER --pull-request"

    @property
    def button(self) -> str:
        """Return the label of the button."""
        return _GO.format(self.held or "smaller")

    @property
    def said(self) -> str:
        """Say what the pull request would do, and what is known of its values."""
        model = self.checkpoint
        files = "the weight file" if model.files == 1 else f"the {model.files:,} weight files"
        saved = share(1 - self.after / model.bytes)
        return (
            f"A pull request in your name would replace {files} of {model.ref}: {size(model.bytes)} of tensors become {size(self.after)} "
            f"or less ({saved} saved), and config.json follows. {self.known} The copy is read back and compared before anything is opened."
        )

    @property
    def why_not(self) -> str:
        """Say why the page cannot open it; "" if it can."""
        if not may_open_pull_requests():
            return "This app opens no pull requests: the command does, with your own login."
        if not self.checkpoint.public:
            return "The page copies public models only; the command does the same, with your own login."
        if self.checkpoint.bytes > limits.PULL_REQUEST_BYTES:
            most = size(limits.PULL_REQUEST_BYTES)
            return f"The page copies at most {most} (MANTISSA_PULL_REQUEST_BYTES); the command does the same, with your own login."
        return ""


def on_hub(checkpoint: CheckpointFacts) -> bool:
    """Return whether a checkpoint that the page has read is a repository of the Hub, not a sample or a combination of several."""
    return not checkpoint.ref.startswith("sample:") and "+" not in checkpoint.ref


class CopyBox:
    """The components of the offer, laid out hidden by the constructor."""

    def __init__(self) -> None:
        with gr.Column(visible=False, elem_id="m-copy", elem_classes="m-fields m-form") as self.box:
            self.about = gr.HTML(elem_classes="m-plain")
            self.command = gr.Textbox(
                label="Command", interactive=False, lines=1, buttons=["copy"], elem_id="m-copy-command", visible=False
            )
            with gr.Row(elem_classes="m-downloads"):
                self.go = gr.Button(_GO.format("smaller"), size="md", elem_id="m-copy-go")
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
            self.about: str(_PIECES.offer(offer.said, offer.why_not)),
            self.command: gr.update(value=offer.command, visible=bool(offer.why_not)),
            self.go: gr.update(value=offer.button, visible=not offer.why_not),
            self.stop: gr.update(visible=False),
            self.status: "",
        }

    def busy(self, running: bool) -> dict[Any, Any]:
        """Return updates for when the work starts (``running``) or ends."""
        return {self.go: gr.update(visible=not running), self.stop: gr.update(visible=running)}
