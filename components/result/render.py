"""Renders a result as HTML, once for every place: the fragment of a page, in a document of its own, in a frame and in a notebook."""

import base64
import gzip
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from analyzers import ANALYZERS
from analyzers.core.atomic_files import replacing
from analyzers.core.columns import Column
from analyzers.core.report import CheckpointFacts, Report
from components import theme
from components.result.layout import COVERAGE_TAB, Figure, Layout, Table, layout_of
from components.result.links import badge, command_of, next_page, page_of
from components.text import numbers, render, shown

FOLDER = Path(__file__).parent
# Rows of a table that a page has at once; the others are requested when they are needed.
FIRST_ROWS = 200
# What hangs below the address of a result.
ENDINGS = {"json": "JSON", "zip": "Tables (CSV)", "html": "Page (HTML)", "png": "Card (PNG)", "md": "Markdown"}


class ShownTable(NamedTuple):
    """A table as it is drawn. place: of the part among the tabs, for the address of all its rows; total: rows in all."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    total: int
    place: str

    def cells(self) -> Iterator[list[tuple[str, Any]]]:
        """Yield for each row its cells: the text, and the number to sort by; None in a column of text, "" for a missing number."""
        for row in self.rows:
            yield [(shown(column.text_of(row), column.longest), _exact(column, row)) for column in self.columns]


class ShownFigure(NamedTuple):
    """A figure as it is drawn. data: its JSON for Plotly."""

    title: str
    caption: str
    data: str
    height: int


class ShownTab(NamedTuple):
    """A tab with content."""

    title: str
    parts: list[ShownTable | ShownFigure]


def fragment(report: Report, home: str = "./", address: str = "", small: bool = False, every_row: bool = False) -> str:
    """Render a result.

    home: the address of the first page, relative to the page that shows this; address: of the result, relative to the first page, for
    links and for rows on demand; small: without tabs; every_row: leave no row to demand.
    """
    layout = layout_of(report)
    return render(
        "result/templates/fragment.html",
        report=report,
        layout=layout,
        key=report.id[:12],
        subject=" → ".join(report.subject().values()),
        facts=_facts(report),
        tiles=[(tile, report.tag(tile)) for tile in layout.tiles(report)],
        tabs=[] if small else list(_tabs(layout, report, None if every_row or not address else FIRST_ROWS)),
        notes=list(dict.fromkeys(note.text for note in report.notes)),
        links=[(name, f"{home}{link}") for name, link in layout.links(report)],
        next=(ANALYZERS[report.advice.analyzer].title, f"{home}{next_page(report)}") if address else None,
        again=f"{home}{page_of(report)}",
        address=f"{home}{address}" if address else "",
        command=command_of(report),
        badge=f"{home}{_badge(report)}" if _badge(report) else "",
        endings=ENDINGS,
        methods=f"{home}methods/{ANALYZERS[report.analyzer].shown_by or report.analyzer}" if address else "",
    )


def document(
    reports: Sequence[Report], home: str = "", address: str = "", above: str = "", small: bool = False, head: str = "", plots: str = ""
) -> str:
    """Render a page of its own with these results, of one analyzer.

    Without ``home`` and ``address`` it needs no server: Plotly's script (1.9 MB) and every row are in it. above: HTML above the results;
    small: without tabs; head: more HTML for its head; plots: the address of Plotly's script.
    """
    alone = not address
    fragments = [fragment(each, home or "./", address, small, every_row=alone) for each in reports]
    title = layout_of(reports[0]).title
    return page(
        f"{title}: {', '.join(' → '.join(each.subject().values()) for each in reports[:3])}",
        above + "".join(fragments),
        head=head,
        plots=plots,
        packed=_packed_plotly() if alone and any("data-figure" in each for each in fragments) else "",
        heading="" if above or small else title,
    )


def page(title: str, body: str, head: str = "", plots: str = "", packed: str = "", heading: str = "", status: str = "") -> str:
    """Render a page outside Gradio. body, head: HTML; plots: the address of Plotly's script; packed: the script itself, compressed."""
    return render(
        "result/templates/document.html",
        title=title,
        heading=heading,
        body=body,
        head=head,
        css=theme.document_css(),
        script=(FOLDER / "result.js").read_text(encoding="utf-8"),
        plots=plots,
        packed=packed,
        status=status,
    )


def rows(report: Report, place: str) -> str:
    """Render all rows of the table at this place. Raises KeyError if there is none."""
    layout = layout_of(report)
    try:
        tab, part = (
            [*layout.tabs, COVERAGE_TAB][int(number)] if index == 0 else int(number) for index, number in enumerate(place.split("."))
        )
        inner, table = tab.part(report), tab.parts[part]  # type: ignore[union-attr,index]
    except (ValueError, IndexError) as error:
        raise KeyError(place) from error
    found = _table(table, inner, place, None) if isinstance(table, Table) and inner is not None else None
    if found is None:
        raise KeyError(place)
    return render("result/templates/rows.html", part=found)


def _exact(column: Column, row: Any) -> Any:
    if column.text is None:
        return None
    value = column.value_of(row)
    return "" if value is None else value


def _tabs(layout: Layout, report: Report, first: int | None) -> Iterator[ShownTab]:
    for number, tab in enumerate((*layout.tabs, COVERAGE_TAB)):
        if (inner := tab.part(report)) is None:
            continue
        parts: list[ShownTable | ShownFigure] = []
        for index, part in enumerate(tab.parts):
            found = _figure(part, inner) if isinstance(part, Figure) else _table(part, inner, f"{number}.{index}", first)
            if found is not None:
                parts.append(found)
        if parts:
            yield ShownTab(tab.title, parts)


def _table(part: Table, report: Report, place: str, first: int | None) -> ShownTable | None:
    declared = part.declared(report)
    every = list(declared.rows(report))
    if not every:
        return None
    return ShownTable(declared.title, declared.shown(report, "page"), every[:first], len(every), place)


def _figure(part: Figure, report: Report) -> ShownFigure | None:
    drawn = part.draw(report)
    return None if drawn is None else ShownFigure(part.title, part.caption, drawn.to_json(remove_uids=True), drawn.layout.height)


def _badge(report: Report) -> str:
    """Return the address of the badge of the model of a passport, "" if it has none."""
    checkpoint = getattr(report, "checkpoint", None)
    if report.analyzer != "dtype" or checkpoint is None or not checkpoint.public or checkpoint.ref.startswith("sample:"):
        return ""
    return "" if "+" in checkpoint.ref else badge(checkpoint.ref)


def _facts(report: Report) -> str:
    """Return what stands beside the subject: commit, size, duration."""
    checkpoint = getattr(report, "checkpoint", None)
    if not isinstance(checkpoint, CheckpointFacts):
        return numbers.duration(report.timing.seconds)
    commit = "" if checkpoint.ref.startswith("sample:") else f"@ {checkpoint.short_commit(7)}, "
    size = f"{numbers.parameters(checkpoint.parameters)} parameters, {numbers.size(checkpoint.bytes)}"
    return f"{commit}{size}, {numbers.duration(report.timing.seconds)}"


@cache
def plotly_gzip() -> bytes:
    """Return Plotly's script, compressed."""
    import plotly

    return gzip.compress((Path(plotly.__file__).parent / "package_data/plotly.min.js").read_bytes(), 6, mtime=0)


@cache
def _packed_plotly() -> str:
    return base64.b64encode(plotly_gzip()).decode()


def write_html(reports: Sequence[Report], path: str | Path) -> None:
    """Write one page with the tables and figures of each report, all of one analyzer, to ``path``. Raises OSError if writing fails."""
    with replacing(Path(path)) as file:
        file.write_text(document(reports), encoding="utf-8")
