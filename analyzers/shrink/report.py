"""Defines the report of `shrink`, and what reports of written folders share. Field names are the JSON contract."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import Field

from analyzers.core.columns import Column, Table
from analyzers.core.formatting import count
from analyzers.core.notes import Note
from analyzers.core.records import Record


class WrittenReport(Record):
    """The report of a folder that was written, or that there was nothing to write.

    written: files that differ from the checkpoint's, none if nothing was written; answer: what was done; notes: what was left out or lost.
    """

    TABLE: ClassVar[Table]

    model: str
    commit: str
    out: str
    written: tuple[str, ...]
    answer: Note
    notes: tuple[Note, ...]

    def to_json(self) -> str:
        """Return the report as JSON."""
        return self.model_dump_json(indent=2, by_alias=True)

    def lines(self) -> list[str]:
        """Return the answer, the table and the notes for a terminal."""
        table = self.TABLE.lines(self)
        return [self.answer.text, *(["", *table] if table else []), *(["", *(note.text for note in self.notes)] if self.notes else [])]


class ShrunkTensor(Record):
    """One tensor. from, to: its dtype before and after; null for a copy of a tied weight, which is left out."""

    name: str
    from_: str = Field(serialization_alias="from")
    to: str | None


def _changes(report: Any) -> Iterator[dict[str, Any]]:
    """Count the tensors of each change of dtype."""
    for (before, after), tensors in Counter((each.from_, each.to) for each in report.tensors).items():
        yield {"tensors": tensors, "before": before, "after": after or "left out: a copy of another"}


class ShrinkReport(WrittenReport):
    """The result of a shrink.

    bytes_before, bytes_after: bytes of all tensors. config_dtype: dtype in the new config.json. replaced: files of the checkpoint that are
    not in the folder. pull_request: its address.
    """

    TABLE = Table("tensors", _changes, (Column("tensors", "Tensors", count), Column("before", "Stored as"), Column("after", "Now")))

    bytes_before: int
    bytes_after: int
    config_dtype: str | None = None
    tensors: tuple[ShrunkTensor, ...] = ()
    replaced: tuple[str, ...] = ()
    pull_request: str | None = None

    def lines(self) -> list[str]:
        """Return the report for a terminal, ending with the address of a pull request."""
        return [*super().lines(), *([f"pull request: {self.pull_request}"] if self.pull_request else [])]
