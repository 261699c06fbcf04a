"""The report of an analyzer: facts, as codes and values, and what is drawn from them for every analyzer alike."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import PrivateAttr

from analyzers import base, limits
from analyzers.columns import Column, Table
from analyzers.core import rows
from analyzers.core.notes import Advice, Note, Tile
from analyzers.coverage import COVERAGE, Coverage, coverage_lines
from analyzers.formatting import listed, plural, size
from analyzers.terminal import columns

if TYPE_CHECKING:
    import pandas

# What a terminal shows unless everything is asked for.
_LINES, _CHARACTERS = 40, 2_500


class Report(base.Report):
    """The result of an analyzer.

    answer: the verdict, whose sentence is the headline; advice: what to do about it; notes: what changes how the numbers are to be read.
    A field ``Annotated`` with `rows.Rows` is a table. The analyzer's module ``words`` has its templates and ``tiles(report)``, and may name
    the table that a terminal shows first, as ``FRONT`` (else the tiles).
    """

    # Tables that are computed from fields, beside those that `rows.Rows` declares.
    DERIVED: ClassVar[tuple[Table, ...]] = ()
    # Fields whose figures are in tables of their own, and not in ``summary``.
    APART: ClassVar[tuple[str, ...]] = ()

    answer: Note
    advice: Advice
    notes: tuple[Note, ...] = ()
    coverage: tuple[Coverage, ...] = ()

    _all_rows: dict[str, Callable[[], Any]] = PrivateAttr(default_factory=dict)

    def keep_rows(self, name: str, every: Callable[[], Any]) -> None:
        """Store the function that makes a field with all its rows, of which the report has the first `limits.REPORT_TENSORS`."""
        self._all_rows = {**self._all_rows, name: every}  # a copy of a report keeps its own

    def every(self, name: str) -> Any:
        """Return a field with all its rows, if the analyzer made this object; a report read from JSON may have fewer."""
        return self._all_rows[name]() if name in self._all_rows else vars(self)[name]

    @property
    def sampled(self) -> bool:
        """Return whether only a sample of the weights covered was read."""
        return vars(self).get("mode") == "quick" and self.bytes_of_sample() is not None

    def bytes_of_sample(self) -> tuple[int, int] | None:
        """Return the bytes read and those of the checkpoint, if fewer were read; None by default."""
        read, of = vars(self).get("bytes_read"), vars(self).get("checkpoint")
        return (read, of.bytes) if read is not None and of is not None and read < of.bytes else None

    def suffix(self) -> str:
        """Say how far the report reaches: of a sample, and of a part of the weights; "" if it covers everything."""
        said = []
        if self.sampled and (found := self.bytes_of_sample()) is not None:
            said.append(f"Sample: {size(found[0])} of {size(found[1])} read, shares have 95% intervals.")
        if parts := self._partial():
            said.append(parts[0].suffix(parts[0].ref if len(self.accounts()) > 1 else ""))
        return " ".join(said)

    def reach(self) -> str:
        """Return `suffix`."""
        return self.suffix()

    def short_reach(self) -> str:
        """Shorten `suffix` to two or three words, for a badge or a cell."""
        return ", ".join([part.short() for part in self._partial()[:1]] + ["sample"] * self.sampled)

    def headline(self) -> str:
        """Return the answer in a sentence, ending with how far it reaches."""
        return f"{self.answer.text} {self.suffix()}".rstrip()

    def next_step(self) -> base.NextStep:
        """Return the advice with the analyzer that answers the next question."""
        return base.NextStep(self.advice.text, self.advice.analyzer, self.advice.model)

    def more_findings(self) -> list[str]:
        """Return nothing: further findings are rows of tables."""
        return []

    def tiles(self) -> list[Tile]:
        """Return the short answers to the questions of the analyzer."""
        tiles: list[Tile] = self._module("words").tiles(self)
        return tiles

    def tag(self, tile: Tile) -> str:
        """Write the kind of a tile's evidence, and how far it reaches."""
        kind = "not decided" if tile.kind == "undecided" else tile.kind
        return ", ".join(filter(None, (kind, "" if tile.whole else self.short_reach())))

    def declared_tables(self) -> list[Table]:
        """Return the tables of the analyzer: those that people see first, then those that are only in files."""
        return [*rows.tables(type(self)), *self.DERIVED]

    def tables(self) -> "dict[str, pandas.DataFrame]":
        """Return every table by name, as DataFrames; ``summary`` has one row."""
        return {table.key: table.frame(self) for table in (*self._summary(), *self.declared_tables(), *COVERAGE)}

    def full_tables(self) -> "dict[str, pandas.DataFrame]":
        """Return `tables` with every row, as far as `every` has them."""
        return self.full().tables()

    def full(self) -> Self:
        """Return the report with every row of its tables, as far as `every` has them."""
        return self.model_copy(update={name: self.every(name) for name in self._all_rows})

    def _summary(self) -> tuple[Table, ...]:
        """Return the table of one row: the report's plain fields but those of reports in it, and its verdict in words."""
        said = (
            *(Column(name, value=partial(_subject, name=name)) for name in self.subject()),
            Column("answer", value="answer.text"),
            Column("advice", value="advice.text"),
            Column("covered_share"),
        )
        known = {column.key for column in said}
        apart = (*_NOT_IN_SUMMARY, *self.APART)
        own = [column for column in rows.columns(type(self)) if not column.key.startswith(apart) and column.key not in known]
        return (Table("summary", lambda report: [report], (*said, *own)),)

    def lines(self, full: bool = False) -> list[str]:
        """Return the answer for a terminal: headline, advice and one table; with ``full`` everything."""
        front = getattr(self._module("words"), "FRONT", "")
        shown = {table.key: table for table in self.declared_tables() if any(column.title for column in table.columns_of(self))}
        first = shown[front].lines(self) if front else []
        lines = [" -> ".join(self.subject().values()), "", self.headline(), f"What now: {self.advice.text}", ""]
        if not full:
            notes = [plural(len(self.notes), "note")] * bool(self.notes)
            more = [f"--full shows {listed([plural(len(shown), 'table'), *notes])}."]
            return [*lines, *_fitting(first or self._tile_lines(), len(lines) + len(more) + 2, sum(map(len, (*lines, *more)))), "", *more]
        lines += [*self._tile_lines(), *(["", *first] if first else [])]
        for table in (each for key, each in shown.items() if key != front):
            lines += ["", *drawn] if (drawn := table.lines(self)) else []
        lines += coverage_lines(self)
        lines += ["", *(note.text for note in self.notes)] if self.notes else []
        return [*lines, "", f"report {self.id}"]

    @staticmethod
    def compared(reports: "Sequence[Report]") -> list[str]:
        """Draw several reports of one analyzer as a table: a row for each, with the values of its tiles."""
        labels = [tile.label for tile in reports[0].tiles()]
        rows = [(" -> ".join(each.subject().values()), *(tile.value for tile in each.tiles()), each.short_reach()) for each in reports]
        return columns([("Model", *labels, "Reach" if any(row[-1] for row in rows) else ""), *rows])

    def _tile_lines(self) -> list[str]:
        return columns([(tile.label, tile.value, self.tag(tile), tile.detail) for tile in self.tiles()])


def _subject(report: Report, name: str) -> str:
    return report.subject()[name]


_NOT_IN_SUMMARY = ("answer", "advice", "timing", "environment", "request", "id", "analyzer", "schema_version", "analysis_version")


def _fitting(lines: Sequence[str], used: int, characters: int) -> list[str]:
    """Return as many lines of a table as a short answer has space for, and how many more there are."""
    kept: list[str] = []
    for line in lines:
        characters += len(line) + 1
        if used + len(kept) >= _LINES - 1 or characters > _CHARACTERS - 40:
            return [*kept, f"... and {len(lines) - len(kept):,} more"]
        kept.append(line)
    return kept


def first_rows(every: Sequence[Any]) -> Sequence[Any]:
    """Return the rows that a report holds of a table with one per tensor."""
    return every[: limits.REPORT_TENSORS]


def needs_the_whole(code: str, coverage: Sequence[Coverage], otherwise: str) -> str:
    """Return a verdict that speaks of whole checkpoints, or ``otherwise`` where the coverage is below 1. The one place for that rule."""
    return code if all(each.whole for each in coverage) else otherwise
