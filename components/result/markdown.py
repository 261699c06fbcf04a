"""Writes a result as GitHub Markdown, for a discussion or an issue: the answer, the tiles, the short tables, the link and the command."""

from analyzers.core import markdown as md
from analyzers.core.report import Report
from analyzers.core.terminal import joined, printable
from components.result.layout import Table, layout_of
from components.result.links import command_of

# Most rows of a table that is still read as text.
_LONGEST = 20


def markdown(report: Report, address: str) -> str:
    """Return the Markdown of a report. address: of the result, absolute.

    Names from checkpoints are untrusted: they cannot contain markup or links, or notify anybody.
    """
    layout = layout_of(report)
    lines = [f"### {layout.title}: {md.plain(' → '.join(report.subject().values()))}", "", md.plain(report.headline), ""]
    lines += [md.plain(f"What now: {report.advice.text}"), ""]
    tiles = [(tile.label, tile.value, report.tag(tile), tile.detail) for tile in layout.tiles(report)]
    lines += [*md.table(("", "", "", ""), tiles), ""] if tiles else []
    for tab in layout.tabs[:1]:
        if (inner := tab.part(report)) is None:
            continue
        for part in (part for part in tab.parts if isinstance(part, Table)):
            declared = part.declared(inner)
            rows, columns = list(declared.rows(inner)), declared.shown(inner, "page")
            if 0 < len(rows) <= _LONGEST:
                right = frozenset(index for index, column in enumerate(columns) if column.text is not None)
                cells = [[column.text_of(row) for column in columns] for row in rows]
                lines += [f"**{declared.title}**", "", *md.table([column.title for column in columns], cells, right), ""]
    lines += [f"- {md.plain(note.text)}" for note in report.notes]
    return joined([*lines, "", f"[The whole result]({address}), computed with Mantissa:", "", f"    {printable(command_of(report))}"])
