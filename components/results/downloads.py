"""Provides results as downloads: the card, JSON, a zip of CSV tables, and the self-contained page, each made on request."""

import io
import re
import zipfile
from collections.abc import Sequence
from typing import NamedTuple

from analyzers.core.report import Report
from analyzers.core.tables import safe_text
from analyzers.core.terminal import printable_json
from components.results.html_documents import document
from components.site.share_card import of_report

_TYPES = {"png": "image/png", "json": "application/json", "zip": "application/zip", "html": "text/html; charset=utf-8"}
GONE = "This result is no longer kept here: open its link in a new tab to compute it again."
_NAME_LENGTH = 80
_BETWEEN = "-to-"


class File(NamedTuple):
    """A file for the visitor. kind: its media type."""

    name: str
    kind: str
    content: bytes


def file_of(report: Report, ending: str) -> File:
    """Make the file of a report with this ending: png, json, zip or html."""
    name = file_name([*report.subject().values()], report.analyzer)
    match ending:
        case "png":
            content = of_report(report)
        case "json":
            content = (printable_json(report.model_dump_json(indent=2)) + "\n").encode()
        case "zip":
            content = tables_zip([report])
        case _:
            content = document([report]).encode()
    return named(name, ending, content)


def named(name: str, ending: str, content: bytes) -> File:
    """Return the file of an analysis called ``name``; the name of a zip says that it contains the tables."""
    return File(f"{name}-tables.zip" if ending == "zip" else f"{name}.{ending}", _TYPES[ending], content)


def file_name(refs: Sequence[str], analyzer: str) -> str:
    """Make a file name from references and analyzer: letters, digits, dots, dashes; never hidden, at most 80 characters of references."""
    longest = (_NAME_LENGTH - len(_BETWEEN) * (len(refs) - 1)) // len(refs)
    plain = (re.sub(r"[^A-Za-z0-9._-]+", "-", ref).strip(".-_")[:longest].strip(".-_") for ref in refs)
    return f"{_BETWEEN.join(filter(None, plain)) or 'report'}-{analyzer}"


def tables_zip(reports: Sequence[Report], failed: Sequence[tuple[str, str]] = ()) -> bytes:
    """Pack all tables of the reports as CSV in one zip; no text cell can be interpreted as a formula.

    The reports' rows share each table, with their subjects in its first columns; ``failed`` (model, error) becomes ``errors.csv``.
    """
    import pandas

    gathered: dict[str, list[pandas.DataFrame]] = {}
    for report in reports:
        for name, frame in report.tables().items():
            if len(reports) > 1 and name != "summary":
                for column, value in reversed(report.subject().items()):
                    frame.insert(0, column, value)
            gathered.setdefault(name, []).append(frame)
    if failed:
        gathered["errors"] = [pandas.DataFrame(failed, columns=["model", "error"])]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, frames in gathered.items():
            filled = [frame for frame in frames if not frame.empty] or frames[:1]
            archive.writestr(f"{name}.csv", safe_text(pandas.concat(filled, ignore_index=True)).to_csv(index=False))
    return packed.getvalue()
