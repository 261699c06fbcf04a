"""Describes how far a report reaches: every stored tensor in one class, what was left out and why, and a sentence on it."""

from typing import Literal

from pydantic import Field

from analyzers.formatting import plural, share
from analyzers.records import Record

# compared: with another checkpoint; read: without one. The other classes are left out of the answer; tied copies and buffers are no loss.
CLASSES = ("compared", "read", "tied", "buffer", "adapter", "unmatched", "undecoded", "excluded", "empty")
Class = Literal["compared", "read", "tied", "buffer", "adapter", "unmatched", "undecoded", "excluded", "empty"]


def unseen(blocks: int, most: float | None) -> str:
    """Say what a sample of ``blocks`` did not show, to follow a colon. most: the share of the whole that may hold it (`Blocks.unseen`)."""
    bound = "" if most is None else f", so in at most {share(most)} of the whole with 95% confidence"
    return f"none in the {plural(blocks, 'block')} read{bound}"


class Counted(Record):
    """The tensors of a class, their elements and their bytes in the files."""

    tensors: int
    parameters: int
    bytes: int


class LeftOut(Record):
    """Tensors of one kind that the answer does not cover. what: names them; parameters: null if unknown; why: the reason."""

    what: str
    tensors: int
    parameters: int | None
    why: str

    @property
    def amount(self) -> str:
        """Write the number of tensors and of elements, if known. A packed integer holds several parameters, so elements are not these."""
        return plural(self.tensors, "tensor") + (f", {plural(self.parameters, 'value')}" if self.parameters else "")


class NotRead(Record):
    """A file that may hold weights and was not read. alternative: by its name it repeats weights that were read; not compared."""

    path: str
    why: str
    alternative: bool = False


class Coverage(Record):
    """The account of one checkpoint: ``classes`` add up to the elements and bytes of its headers.

    parameters: elements of all stored tensors; covered: those that were compared, or read, or in quick mode sampled; a tensor that is
    compared in part counts as compared, its other elements as unmatched. share: covered / (parameters without tied copies and buffers),
    null if there are none. Tensors of a pickled file that cannot be decoded count in ``undecoded``, with the known number of elements and
    no bytes. left_out: by kind, the largest first; last come tensors next to the weights in a pickled file, such as an optimizer's, which
    no class counts. files_not_read: at most as many as a report has tensors. values_read: of a checkpoint that was both read and compared,
    the weights that were read, with a counterpart or without; else null.
    """

    ref: str
    parameters: int
    covered: int
    share: float | None
    classes: dict[Class, Counted]
    left_out: tuple[LeftOut, ...] = ()
    files_not_read: tuple[NotRead, ...] = Field(default=())
    values_read: int | None = None

    def compared_as(self, compared: "Coverage") -> "Coverage":
        """Return the one account of a checkpoint that was read, as this account says, and then ``compared`` with another."""
        unread = self.weights - self.covered
        return compared.model_copy(update={"values_read": max(0, compared.weights - unread)})

    @property
    def weights(self) -> int:
        """Number of elements that are neither tied copies nor buffers."""
        return self.parameters - sum(self.classes[each].parameters for each in ("tied", "buffer") if each in self.classes)

    @property
    def verb(self) -> str:
        """Return what was done with the weights covered, where the classes tell: the accounts of a check are of both kinds."""
        return "compared" if "compared" in self.classes else ""

    @property
    def missed_files(self) -> tuple[NotRead, ...]:
        """Files not read, except alternatives to those read."""
        return tuple(each for each in self.files_not_read if not each.alternative)

    @property
    def whole(self) -> bool:
        """Return whether a sentence may speak of the whole checkpoint."""
        return self.covered == self.weights and self.read_as_a_whole

    @property
    def read_as_a_whole(self) -> bool:
        """Return whether every weight was read, if not all of them were compared."""
        unread = self.values_read is not None and self.values_read < self.weights
        return not unread and not {"empty", "undecoded"} & self.classes.keys() and not self.missed_files

    @property
    def reached(self) -> tuple[str, str]:
        """Return the share covered, and of what: of the bytes where integers were not decoded, for one may hold several weights."""
        parts = {kind: each for kind, each in self.classes.items() if kind not in ("tied", "buffer")}
        if not (undecoded := parts.get("undecoded")) or not undecoded.bytes:
            return share(self.share), "the weights"
        covered = sum(each.bytes for kind, each in parts.items() if kind in ("compared", "read"))
        return share(covered / sum(each.bytes for each in parts.values())), "the bytes of the weights"

    def short(self, verb: str = "read") -> str:
        """Shorten `sentence` to two or three words, for a badge or a cell; "" if the verdict covers everything."""
        if self.whole:
            return ""
        return f"{self.reached[0]} {self.verb or verb}" if self.covered < self.weights else f"not all {self.verb or verb}"

    def sentence(self, verb: str = "compared", subject: str = "", files: bool = True) -> str:
        """Say what a verdict covers, with the largest part left out; "" if it covers everything.

        subject: names the checkpoint; files: name a file that was not read, else give only the number of such files.
        """
        if self.whole:
            return ""
        of = f" of {subject}" if subject else ""
        said = []
        if self.covered < self.weights:
            said.append(f"{(self.verb or verb).capitalize()}: {' of '.join(self.reached)}{of}.")
        elif self.values_read is not None and self.values_read < self.weights:
            said.append(f"Read: {share(self.values_read / self.weights)} of the weights{of}.")
        if self.left_out:
            first, others = self.left_out[0], len(self.left_out) - 1
            more = f"; {plural(others, 'more part is', 'more parts are')} listed under coverage" if others else ""
            said.append(f"Left out{'' if said else of}: {first.what} ({first.amount}), {first.why}{more}.")
        if self.missed_files and not files:
            said.append(f"Not read{'' if said else of}: {plural(len(self.missed_files), 'file')}.")
        elif self.missed_files:
            first_file, why = self.missed_files[0], self.missed_files[0].why
            alike = sum(each.why == why for each in self.missed_files) - 1
            others = len(self.missed_files) - 1 - alike
            more = f" and {plural(alike, 'more file')}" if alike else ""
            rest = f"; {plural(others, 'more file is', 'more files are')} listed under coverage" if others else ""
            said.append(f"Not read{'' if said else of}: {first_file.path}{more}, {why}{rest}.")
        return " ".join(said)
