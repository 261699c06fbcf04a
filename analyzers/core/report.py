"""The report of an analyzer: facts, as codes and values, and what is drawn from them for every analyzer alike."""

import hashlib
import html
import json
import math
import platform
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import PrivateAttr

from analyzers.core import limits, rows
from analyzers.core.columns import Column, Table
from analyzers.core.coverage import COVERAGE, Coverage, coverage_lines
from analyzers.core.errors import InvalidRequest, LimitExceeded, MissingExtra
from analyzers.core.extras import extras_explained
from analyzers.core.formatting import abbreviated, listed, plural, size
from analyzers.core.notes import Advice, Note, Tile
from analyzers.core.records import Record
from analyzers.core.terminal import columns, joined, printable

if TYPE_CHECKING:
    import pandas
    from plotly.graph_objects import Figure

# What a terminal shows unless everything is asked for.
_LINES, _CHARACTERS = 40, 2_500


class CheckpointFacts(Record):
    """Facts about a whole checkpoint. ``parameters`` excludes buffers; ``bytes`` and ``files`` count its weights."""

    ref: str
    commit: str
    parameters: int
    bytes: int
    files: int
    tensors: int
    public: bool
    quantization: str | None

    def short_commit(self, digits: int = 12) -> str:
        """Return the commit, abbreviated."""
        return abbreviated(self.commit, digits)


class Environment(Record):
    """The software and hardware of a run; not part of a report's id or of its equality."""

    python: str
    machine: str
    device: str
    libraries: dict[str, str]


class Timing(Record):
    """Duration of a run; not part of a report's id or of its equality.

    seconds: total; reading_seconds: time for reading and processing weights; bytes_per_second: the rate over reading_seconds.
    """

    seconds: float
    reading_seconds: float
    bytes_per_second: float | None

    @classmethod
    def since(cls, start: float, nbytes: int, reading: float) -> Self:
        """Return the timing of a run that began at ``start`` (`perf_counter`) and read ``nbytes`` in ``reading`` seconds."""
        return cls(seconds=perf_counter() - start, reading_seconds=reading, bytes_per_second=nbytes / reading if reading > 0 else None)


class Report(Record):
    """The result of an analyzer.

    id: the content address of the resolved request (see `content_id`); answer: the verdict, whose sentence is the headline; advice: what to
    do about it; notes: what changes how the numbers are to be read; coverage: of each checkpoint. A field
    ``Annotated`` with `rows.Rows` is a table. The analyzer's module ``words`` has its templates and ``tiles(report)``, and may name the
    table that a terminal shows first, as ``FRONT`` (else the tiles).
    """

    # Tables that are computed from fields, beside those that `rows.Rows` declares.
    DERIVED: ClassVar[tuple[Table, ...]] = ()
    # Fields whose figures are in tables of their own, and not in ``summary``.
    APART: ClassVar[tuple[str, ...]] = ()

    analyzer: str
    schema_version: int
    analysis_version: int
    id: str
    answer: Note
    advice: Advice
    notes: tuple[Note, ...] = ()
    coverage: tuple[Coverage, ...] = ()
    timing: Timing
    environment: Environment

    _all_rows: dict[str, Callable[[], Any]] = PrivateAttr(default_factory=dict)

    def subject(self) -> dict[str, str]:
        """Return the checkpoints described, for the first columns of tables of several reports; by default the field ``checkpoint``."""
        return {"model": vars(self)["checkpoint"].ref}

    def parts(self) -> "Sequence[Report]":
        """Return the reports that this one is composed of, each complete in itself; none by default."""
        return ()

    def keep_rows(self, name: str, every: Callable[[], Any]) -> None:
        """Store the function that makes a field with all its rows, of which the report has the first `limits.REPORT_TENSORS`."""
        self._all_rows = {**self._all_rows, name: every}  # a copy of a report keeps its own

    def every(self, name: str) -> Any:
        """Return a field with all its rows, if the analyzer made this object; a report read from JSON may have fewer."""
        return self._all_rows[name]() if name in self._all_rows else vars(self)[name]

    @property
    def outdated(self) -> bool:
        """True if an older version of the analysis made this report, so that the present version may infer something else."""
        from analyzers import ANALYZERS

        return self.analysis_version < ANALYZERS[self.analyzer].analysis_version()

    def accounts(self) -> Sequence[Coverage]:
        """Return those of `coverage` that the answer depends on; all by default."""
        return self.coverage

    @property
    def whole(self) -> bool:
        """True if a sentence may speak of whole checkpoints."""
        return all(coverage.whole for coverage in self.accounts())

    @property
    def covered_share(self) -> float | None:
        """The smallest share of weights covered, among the report's checkpoints; None if no share is known."""
        shares = [coverage.share for coverage in self.accounts() if coverage.share is not None]
        return min(shares, default=None)

    def _partial(self) -> list[Coverage]:
        """Return the coverages that are not whole, the smallest share first."""
        partial = [coverage for coverage in self.accounts() if not coverage.whole]
        return sorted(partial, key=lambda coverage: 1.0 if coverage.share is None else coverage.share)

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

    def short_reach(self) -> str:
        """Shorten `suffix` to two or three words, for a badge or a cell."""
        return ", ".join([part.short() for part in self._partial()[:1]] + ["sample"] * self.sampled)

    @property
    def headline(self) -> str:
        """The answer in a sentence, ending with how far it reaches. Page, link preview, API and command line all show it."""
        return f"{self.answer.text} {self.suffix()}".rstrip()

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

    @property
    def summary(self) -> str:
        """The subject and the answer in one line."""
        return printable(f"{' -> '.join(self.subject().values())}: {self.headline}")

    def __repr__(self) -> str:
        """Return the `summary`."""
        return self.summary

    __str__ = __repr__

    def text(self) -> str:
        """Return `lines` as text, as the command line prints it."""
        return joined(self.lines())

    def lines(self, full: bool = False) -> list[str]:
        """Return the answer for a terminal: headline, advice and one table; with ``full`` everything."""
        front = getattr(self._module("words"), "FRONT", "")
        titled = [table for table in self.declared_tables() if any(column.title for column in table.columns_of(self))]
        shown = {table.key: table for table in titled if any(True for _ in table.rows(self))}
        first = shown[front].lines(self) if front in shown else []
        lines = [" -> ".join(self.subject().values()), "", self.headline, f"What now: {self.advice.text}", ""]
        if not full:
            notes = [plural(len(self.notes), "note")] * bool(self.notes)
            more = [f"--full shows {listed([plural(len(shown), 'table'), *notes])}."]
            return [*lines, *_fitting(first or self._tile_lines(), len(lines) + len(more) + 2, sum(map(len, (*lines, *more)))), "", *more]
        lines += [*self._tile_lines(), *(["", *first] if first else [])]
        for table in (each for key, each in shown.items() if key != front):
            lines += ["", *table.lines(self)]
        lines += coverage_lines(self)
        lines += ["", *(note.text for note in self.notes)] if self.notes else []
        return [*lines, "", f"report {self.id}"]

    @staticmethod
    def compared(reports: "Sequence[Report]") -> list[str]:
        """Draw several reports of one analyzer as a table, a row for each."""
        rows = [(" -> ".join(each.subject().values()), *each.beside().values(), each.short_reach()) for each in reports]
        return columns([("Model", *reports[0].beside(), "Reach" if any(row[-1] for row in rows) else ""), *rows])

    def beside(self) -> dict[str, str]:
        """Return the cells of this report's row in `compared`, by their titles: the values of the tiles."""
        return {tile.label: tile.value for tile in self.tiles()}

    def _tile_lines(self) -> list[str]:
        return columns([(tile.label, tile.value, self.tag(tile), tile.detail) for tile in self.tiles()])

    def plots(self) -> "dict[str, Figure]":
        """Draw every figure of the result; keys are the figures' names on the page. Raises MissingExtra without the extra ``plots``."""
        with extras_explained():
            figures: dict[str, Figure] = self._product("layout").layout_of(self).figures(self)
            return figures

    def plot(self, name: str) -> "Figure":
        """Draw the first figure whose name contains ``name``, ignoring case.

        Raises InvalidRequest, which lists the names; MissingExtra without the extra ``plots``.
        """
        known = self.plots()
        matching = [figure for label, figure in known.items() if name.lower() in label.lower()]
        if not matching:
            raise InvalidRequest(f"This report has no figure {json.dumps(name[:60])}, only: {', '.join(map(json.dumps, known))}.")
        return matching[0]

    def to_html(self) -> str:
        """Return one self-contained page with tables and figures, 2 MB with Plotly's script. Raises MissingExtra without ``plots``."""
        with extras_explained():
            page: str = self._product("render").document([self])
        return page

    def _repr_html_(self) -> str:
        """Return the result in a frame, for notebooks, with its figures; `text` if ``plots`` is missing."""
        try:
            page = self.to_html()
        except MissingExtra:
            return f"<pre>{html.escape(self.text())}</pre>"
        style = "width: 100%; height: 720px; border: 0"
        return f'<iframe sandbox="allow-scripts allow-downloads" style="{style}" srcdoc="{html.escape(page)}"></iframe>'

    def _module(self, name: str) -> Any:
        """Return a module of the analyzer, through the registry: a report does not import its words."""
        from analyzers import ANALYZERS

        return ANALYZERS[self.analyzer].module(name)

    @staticmethod
    def _product(name: str) -> Any:
        """Import a module of `components.result`, which draws results."""
        return import_module(f"components.result.{name}")


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


def finite(x: float) -> float | None:
    """Return ``x``, or None if it is not finite: JSON has no NaN or infinity."""
    return x if math.isfinite(x) else None


def check_size(nbytes: int, largest: int | None, instead: str = "quick mode, or the command line") -> None:
    """Raise LimitExceeded for a run that would read more than ``largest`` bytes. instead: the alternative that the message suggests."""
    if largest is not None and nbytes > largest:
        raise LimitExceeded(f"This would read {size(nbytes)}; the limit here is {size(largest)}. Use {instead}.")


def content_id(analyzer: str, analysis_version: int, resolved: dict[str, Any]) -> str:
    """Return the SHA-256 (hex) of the canonical JSON of analyzer, analysis version and *resolved* request.

    ``resolved`` has the canonical repository and commit in place of the user's reference, and omits every option at its default, so that a
    new option changes no old id.
    """
    content = {"analyzer": analyzer, "analysis_version": analysis_version, "request": resolved}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def environment(device: str, libraries: tuple[str, ...]) -> Environment:
    """Return the interpreter, the machine, and the versions of those ``libraries`` that are loaded."""
    versions = {name: str(sys.modules[name].__version__) for name in libraries if name in sys.modules}
    machine = f"{platform.system()} {platform.machine()}"
    return Environment(python=platform.python_version(), machine=machine, device=device, libraries=versions)
