"""Lays out the result of any analyzer from its report: the headline, the tiles, its tabs, the notes, and the coverage."""

from collections.abc import Callable, Sequence
from typing import Any

from analyzers.core import rows
from analyzers.core.notes import Tile
from analyzers.core.report import CheckpointFacts, Report
from components.forms import form
from components.results.coverage_tab import COVERAGE
from components.results.layout import Layout, Piece, Rows, Tab, Verdict
from components.results.tables import Sortable, listed
from components.text import head, html, notes, numbers, prose, shown, tag, tile
from components.text.headline import about_sample, answered, card, short
from components.text.headline import tiles as row_of_tiles


def layout_of(
    title: str,
    tabs: Sequence[Tab[Any]],
    *,
    permalink: Callable[[Any], str] = form.permalink,
    command: Callable[[Any], str] = form.command,
    more: Callable[[Any, bool], str] = lambda report, links: "",
    tiles: Callable[[Any], list[Tile]] = Report.tiles,
    **parts: Any,
) -> Layout[Any]:
    """Return the layout of an analyzer's results.

    title: of the page; tabs: after the headline and its tiles, before the coverage; more: HTML below the tiles; tiles: of a report, with
    what the library knows; parts: of `Layout`.
    """

    def headline(report: Report, links: bool) -> str:
        """Render the subject, the answer, the tiles and the notes. links: include those that work only on the app's pages."""
        said = answered(report, links)
        checkpoint = getattr(report, "checkpoint", None)
        sample = about_sample(checkpoint.ref, shows=True) if isinstance(checkpoint, CheckpointFacts) else ""
        below = more(report, links), notes(note.text for note in report.notes), sample
        return card(title, _head(report), said, measures(report, links, tiles(report)), *below)

    return Layout(
        title=title,
        name=lambda report: shown(" → ".join(report.subject().values()), 60),
        headline=headline,
        permalink=permalink,
        command=command,
        tabs=(*tabs, COVERAGE),
        verdicts=lambda report: verdicts(report, tiles(report)),
        **parts,
    )


def verdicts(report: Report, shown: Sequence[Tile]) -> list[Verdict]:
    """Return tiles as a card shows them."""
    return [Verdict(each.label, each.value, each.kind, report.tag(each)) for each in shown]


def table(report: type[Report], key: str) -> Rows[Any]:
    """Return a declared table of a class of reports, with sorting and search."""
    return Rows(Sortable(_declared(report, key), f"m-{key.replace('_', '-')}-table"))  # a field of the form may have the key as its name


def short_table(report: type[Report], key: str) -> Piece[Any]:
    """Return a declared table of a class of reports, without sorting."""
    declared = _declared(report, key)
    return Piece(lambda made: f'<div class="m-card">{drawn}</div>' if (drawn := listed(declared, made)) else "")


def _declared(report: type[Report], key: str) -> Any:
    return next(each for each in (*rows.tables(report), *report.DERIVED) if each.key == key)


def _head(report: Report) -> str:
    checkpoint = getattr(report, "checkpoint", None)
    if not isinstance(checkpoint, CheckpointFacts):
        return head(html(" → ".join(report.subject().values())), "")
    facts = f"{numbers.parameters(checkpoint.parameters)} parameters, {numbers.size(checkpoint.bytes)}"
    return head(f"{html(checkpoint.ref)}{short(checkpoint)}", f"{facts}. {numbers.duration(report.timing.seconds)}")


def measures(report: Report, links: bool, shown: Sequence[Tile] | None = None) -> str:
    """Render tiles, by default those of the report. links: include those to the methods."""
    each = [
        ("", tile(one.label, one.value, tag(one.kind, report.tag(one)), f"<p>{prose(one.detail)}</p>" if one.detail else ""))
        for one in (report.tiles() if shown is None else shown)
    ]
    return row_of_tiles(report, links, *each)
