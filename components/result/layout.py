"""Declares the layout of a result, once per analyzer: its tabs, with tables and figures computed from the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analyzers import ANALYZERS
from analyzers.core import columns
from analyzers.core.coverage import COVERAGE
from analyzers.core.notes import Tile
from analyzers.core.report import Report

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot


@dataclass(frozen=True, slots=True)
class Table:
    """A table that the report declares. key: its name."""

    key: str

    def declared(self, report: Any) -> columns.Table:
        """Return the declaration. Raises KeyError if the report has no such table."""
        declared: dict[str, columns.Table] = {table.key: table for table in (*report.declared_tables(), *COVERAGE)}
        return declared[self.key]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure. draw: returns it, or None where a report has nothing to draw; caption: what to see in it."""

    title: str
    draw: Callable[[Any], Plot | None]
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Tab:
    """A tab, which is shown if one of its parts has content. part: the report within a report that the parts are about, or None."""

    title: str
    parts: Sequence[Table | Figure]
    part: Callable[[Any], Report | None] = lambda report: report


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of an analyzer's results.

    title: of the result; tabs: in reading order; tiles: of a report, with what the library knows; links: names and addresses of further
    pages about its subject, relative to the first page; narrower: the bytes of a lossless copy of its model in fewer bytes, and what is
    known of its values, or None.
    """

    title: str
    tabs: Sequence[Tab]
    tiles: Callable[[Any], list[Tile]] = Report.tiles
    links: Callable[[Any], Sequence[tuple[str, str]]] = lambda report: ()
    narrower: Callable[[Any], tuple[int, str] | None] = lambda report: None

    def figures(self, report: Report) -> dict[str, Plot]:
        """Draw every figure of a report that has something to draw, by its title."""
        parts = [(part, inner) for tab in self.tabs if (inner := tab.part(report)) is not None for part in tab.parts]
        drawn = {part.title: part.draw(inner) for part, inner in parts if isinstance(part, Figure)}
        return {title: figure for title, figure in drawn.items() if figure is not None}


# Only where something was left out: else the suffix and this tab would say that nothing was.
COVERAGE_TAB = Tab(
    "Coverage",
    [Table(table.key) for table in COVERAGE],
    lambda report: None if report.whole and not any(each.files_not_read for each in report.coverage) else report,
)


def layout_of(report: Report) -> Layout:
    """Return the layout of a report's analyzer."""
    layout: Layout = ANALYZERS[report.analyzer].component("layout").LAYOUT
    return layout
