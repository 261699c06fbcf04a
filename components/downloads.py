"""A report as files a visitor can take along: JSON, a zip of CSV tables, and the self-contained page.

The files lie in Gradio's own temporary folder, from which it serves them, in one folder per run. Only the newest
``DOWNLOADS`` folders are kept, so that visitors cannot fill the disk.
"""

import io
import re
import shutil
import tempfile
import threading
import zipfile
from collections import deque
from pathlib import Path

from analyzers import limits
from analyzers.dtype_detection import DtypeReport
from analyzers.dtype_detection.tables import formula_safe
from components.export import write_html

_NAME_LENGTH = 80


class Downloads:
    """The folders of the latest runs below ``root``. Safe to use from several threads."""

    def __init__(self, root: Path, keep: int = limits.DOWNLOADS) -> None:
        self._root = root
        self._keep = keep
        self._folders: deque[Path] = deque()
        self._lock = threading.Lock()

    def write(self, report: DtypeReport) -> tuple[str, str, str]:
        """Write the files of one report; their paths: JSON, CSV, HTML. Raises OSError when the disk refuses."""
        self._root.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="mantissa-", dir=self._root))
        with self._lock:
            self._folders.append(folder)
            outdated = [self._folders.popleft() for _ in range(len(self._folders) - self._keep)]
        for old in outdated:
            shutil.rmtree(old, ignore_errors=True)
        name = file_name(report.checkpoint.ref)
        paths = folder / f"{name}.json", folder / f"{name}-tables.zip", folder / f"{name}.html"
        paths[0].write_text(report.model_dump_json(indent=2) + "\n", encoding="utf-8")
        paths[1].write_bytes(tables_zip(report))
        write_html([report], paths[2])
        return str(paths[0]), str(paths[1]), str(paths[2])


def file_name(ref: str) -> str:
    """A file name made of a reference: letters, digits, dots, dashes; never hidden, never empty, at most 80 characters."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", ref)[:_NAME_LENGTH].strip(".-_")
    return f"{plain or 'report'}-dtype"


def tables_zip(report: DtypeReport) -> bytes:
    """Every table of the report as CSV, in one zip; no cell of text can be taken for a formula."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, frame in report.tables().items():
            archive.writestr(f"{name}.csv", formula_safe(frame).to_csv(index=False))
    return packed.getvalue()
