"""Offers a pull request with a narrower copy of a model: what it would do, and the command that does the same."""

from typing import NamedTuple

from analyzers.core.formatting import share, size
from analyzers.core.report import CheckpointFacts

GO = "Open a pull request with the {} copy"


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
        return GO.format(self.held or "smaller")

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


def on_hub(checkpoint: CheckpointFacts) -> bool:
    """Return whether a checkpoint that the page has read is a repository of the Hub, not a sample or a combination of several."""
    return not checkpoint.ref.startswith("sample:") and "+" not in checkpoint.ref
