"""Defines the reports of `shrink` and `merge`. Field names are the JSON contract."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from analyzers.core.columns import Column, Table
from analyzers.core.formatting import count
from analyzers.core.notes import Note
from analyzers.core.records import Record

ShrinkTo = Literal["auto", "bf16", "fp16"]
MergeTo = Literal["fp32", "bf16", "fp16"]


class WrittenReport(Record):
    """The report of a folder that was written, or that there was nothing to write.

    written: files that differ from the checkpoint's, none if nothing was written; answer: what was done; notes: what was left out or lost.
    """

    TABLE: ClassVar[Table | None] = None

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
        table = self.TABLE.lines(self) if self.TABLE is not None else []
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
    not in the folder.
    """

    TABLE = Table("tensors", _changes, (Column("tensors", "Tensors", count), Column("before", "Stored as"), Column("after", "Now")))

    bytes_before: int
    bytes_after: int
    config_dtype: str | None = None
    tensors: tuple[ShrunkTensor, ...] = ()
    replaced: tuple[str, ...] = ()


class MergeReport(WrittenReport):
    """The result of a merge.

    model: the base and its adapters, canonical; commit: theirs, joined by "+". tensors: number written, of which ``computed`` are
    W + s B A, and ``replaced`` are whole tensors of the adapters. touched: computed weights with a nonzero update; changed_share: share of
    these whose stored value differs from that of the base in the same dtype; lost_norm: |round(W + D) - round(W) - D| / |D| over the
    updates D of all computed tensors, where both are finite in the dtype; both null if there is no update. overflowed: finite weights
    stored as infinite. bytes: of all files.
    """

    to: MergeTo
    bytes: int
    tensors: int
    computed: int
    replaced: int
    touched: int
    changed_share: float | None
    lost_norm: float | None
    overflowed: int
