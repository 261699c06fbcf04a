"""Makes the files that hang below the address of a result: JSON, tables, page, card and Markdown."""

import io
import re
import zipfile
from typing import NamedTuple

from analyzers.core.report import Report
from analyzers.core.tables import safe_text
from analyzers.core.terminal import printable_json
from components.result.card import card
from components.result.markdown import markdown
from components.result.render import document

_TYPES = {
    "json": "application/json",
    "zip": "application/zip",
    "html": "text/html; charset=utf-8",
    "png": "image/png",
    "md": "text/markdown; charset=utf-8",
}
_NAME_LENGTH = 80


class File(NamedTuple):
    """A file for the visitor. kind: its media type."""

    name: str
    kind: str
    content: bytes


def file_of(report: Report, ending: str, address: str) -> File:
    """Make the file of a report with this ending. address: of the result, absolute. Raises KeyError for another ending."""
    match ending:
        case "json":
            content = (printable_json(report.model_dump_json(indent=2)) + "\n").encode()
        case "zip":
            content = tables_zip(report)
        case "html":
            content = document([report]).encode()
        case "png":
            content = card(report)
        case "md":
            content = markdown(report, address).encode()
    return File(f"{file_name(report)}{'-tables' if ending == 'zip' else ''}.{ending}", _TYPES[ending], content)


def file_name(report: Report) -> str:
    """Make a file name from subject and analyzer: letters, digits, dots, dashes; never hidden, at most 80 characters of the subject."""
    subject = "-to-".join(re.sub(r"[^A-Za-z0-9._-]+", "-", ref).strip(".-_") for ref in report.subject().values())
    return f"{subject[:_NAME_LENGTH].strip('.-_') or 'report'}-{report.analyzer}"


def tables_zip(report: Report) -> bytes:
    """Pack all tables as CSV in one zip; no text cell can be interpreted as a formula."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, frame in report.tables().items():
            archive.writestr(f"{name}.csv", safe_text(frame).to_csv(index=False))
    return packed.getvalue()
