"""Describes how far a report reaches: every stored tensor in one class, what was left out, which files were not read, and the tables."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from analyzers.core.columns import Column, Table
from analyzers.core.formatting import plural, share
from analyzers.core.records import Record
from analyzers.core.rows import Shown, columns

# compared: with another checkpoint; read: without one. The other classes are left out of the answer; tied copies and buffers are no loss.
Class = Literal["compared", "read", "tied", "buffer", "adapter", "unmatched", "undecoded", "excluded", "empty"]
# repeats: by its name it holds weights again that were read; format: of a format that is not read (docs/conversions.md); outside: other
# weights, in another folder, not in the index, in a part that is missing or in a file that cannot be opened.
FileCode = Literal["repeats", "format", "outside"]
# Why tensors are left out: their class; "layers": a whole layer is unmatched; "beside": no weights, such as an optimizer's state.
LeftOutCode = Literal["adapter", "unmatched", "undecoded", "excluded", "empty", "layers", "beside"]

NAMES: dict[str, str] = {
    "compared": "compared",
    "read": "read",
    "tied": "tied copies",
    "buffer": "buffers and scales",
    "adapter": "of an unmerged adapter",
    "unmatched": "no counterpart",
    "undecoded": "not decoded",
    "excluded": "excluded by the filter",
    "empty": "empty",
}
_WHY: dict[str, str] = {
    **NAMES,
    "layers": "no counterpart",
    "beside": "next to the weights",
    "repeats": "repeats what was read, by its name",
    "format": "a format that is not read",
    "outside": "not part of what was read",
}


def unseen(blocks: int, most: float | None) -> str:
    """Say what a sample of ``blocks`` did not show, to follow a colon. most: the share of the whole that may hold it (`Blocks.unseen`)."""
    bound = "" if most is None else f", so in at most {share(most)} of the whole with 95% confidence"
    return f"none in the {plural(blocks, 'block')} read{bound}"


class Counted(Record):
    """The tensors of a class, their elements and their bytes in the files."""

    tensors: Annotated[int, Shown("Tensors", "count")]
    parameters: Annotated[int, Shown("Values", "count", "Number of elements.")]
    bytes: Annotated[int, Shown("Bytes", "size")]


class LeftOut(Record):
    """Tensors of one kind that the answer does not cover. what: names them; parameters: null if unknown; code: why they are left out."""

    what: Annotated[str, Shown("What")]
    tensors: Annotated[int, Shown("Tensors", "count")]
    parameters: Annotated[int | None, Shown("Values", "count")]
    code: Annotated[LeftOutCode, Shown("Why", _WHY.__getitem__)]


class NotRead(Record):
    """A file that may hold weights and was not read. code: why, see `FileCode`; nobody has compared the values of one that ``repeats``."""

    path: Annotated[str, Shown("File")]
    code: Annotated[FileCode, Shown("Why", _WHY.__getitem__)]


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
    def missed_files(self) -> tuple[NotRead, ...]:
        """Files not read, except those that repeat what was read."""
        return tuple(each for each in self.files_not_read if each.code != "repeats")

    @property
    def whole(self) -> bool:
        """Return whether a sentence may speak of the whole checkpoint."""
        return self.covered == self.weights and self.read_as_a_whole

    @property
    def read_as_a_whole(self) -> bool:
        """Return whether every weight was read, if not all of them were compared."""
        unread = self.values_read is not None and self.values_read < self.weights
        return not unread and not {"empty", "undecoded"} & self.classes.keys() and not self.missed_files

    def suffix(self, of: str = "") -> str:
        """Say how far an answer reaches and what is left out, to end a headline; "" if it covers everything. of: names the checkpoint."""
        if self.whole:
            return ""
        weights = f"the weights{f' of {of}' if of else ''}{' in the files read' if self.missed_files else ''}"
        parts = [f"{part.what} ({plural(part.tensors, 'tensor')}, {_WHY[part.code]})" for part in self.left_out[:1]]
        parts += [plural(len(self.left_out) - 1, "more part")] * (len(self.left_out) > 1)
        parts += [f"{plural(len(self.missed_files), 'file')} not read"] * bool(self.missed_files)
        return f"Covers {share(self._reached)} of {weights}; left out: {', '.join(parts) or 'see coverage'}."

    def short(self) -> str:
        """Shorten `suffix` to two or three words, for a badge or a cell."""
        if self.whole:
            return ""
        return "partly covered" if self._reached == 1 else f"{share(self._reached)} covered"

    @property
    def _reached(self) -> float | None:
        """Return the smaller of the shares of the weights that were compared and read."""
        both = self.covered if self.values_read is None else min(self.covered, self.values_read)
        return both / self.weights if self.weights else None


def _parts(field: str) -> Callable[[Any], Iterator[dict[str, Any]]]:
    """Return the function that makes a table's rows from the list ``field`` of every checkpoint, each row with the checkpoint's name."""
    return lambda report: ({"checkpoint": each.ref, **vars(part)} for each in report.coverage for part in getattr(each, field))


def _classes(report: Any) -> Iterator[dict[str, Any]]:
    """Yield each class of each checkpoint with its share of all elements."""
    for each in report.coverage:
        for name, counted in each.classes.items():
            of = counted.parameters / each.parameters if each.parameters else None
            yield {"checkpoint": each.ref, "class": name, **vars(counted), "share": of}


_CHECKPOINT = Column("checkpoint", "Checkpoint")
# The tables of every report: the classes of each checkpoint, the parts left out, the files not read.
COVERAGE = (
    Table(
        "coverage",
        _classes,
        (
            _CHECKPOINT,
            Column(
                "class",
                "Class",
                cell=lambda row: NAMES[row["class"]],
                help="What became of the tensors; every stored tensor is in one class.",
            ),
            *columns(Counted),
            Column("share", "Share", share),
        ),
        title="Coverage",
    ),
    Table("left_out", _parts("left_out"), (_CHECKPOINT, *columns(LeftOut)), title="Left out"),
    Table("files_not_read", _parts("files_not_read"), (_CHECKPOINT, *columns(NotRead)), title="Files not read"),
)


def coverage_lines(report: Any) -> list[str]:
    """Draw the tables for a terminal if a checkpoint that the answer depends on is not covered as a whole; else nothing."""
    return [] if report.whole else [line for table in COVERAGE if (drawn := table.lines(report)) for line in ("", *drawn)]
