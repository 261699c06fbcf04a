"""Reports as downloads: JSON, a zip of CSV tables, and the self-contained page.

The files are in Gradio's temporary folder, from which it serves them, one folder per run. Only the ``DOWNLOADS`` most recently used folders
are kept, so that visitors cannot fill the disk.
"""

import hashlib
import io
import re
import shutil
import tempfile
import threading
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from analyzers import limits
from analyzers.base import Report
from analyzers.tables import safe_text
from analyzers.terminal import printable_json
from components.results.export import document

_NAME_LENGTH = 80
_BETWEEN = "-to-"


class Files(NamedTuple):
    """Paths of the files of one run."""

    json: str
    csv: str
    html: str


class Downloads:
    """The folders of the latest runs below ``root``. Thread-safe. Raises OSError if writing fails."""

    def __init__(self, root: Path, keep: int = limits.DOWNLOADS) -> None:
        self._root = root
        self._keep = keep
        self._folders: dict[Path, None] = {}
        self._written: dict[Path, tuple[str, Files]] = {}
        self._lock = threading.Lock()

    def folder(self) -> Path:
        """Create a folder; the least recently used one is deleted if there are too many."""
        self._root.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="mantissa-", dir=self._root))
        with self._lock:
            self._folders[folder] = None
            outdated = list(self._folders)[: len(self._folders) - self._keep]
            for old in outdated:
                del self._folders[old]
        for old in outdated:
            shutil.rmtree(old, ignore_errors=True)
        return folder

    def used(self, folder: Path) -> None:
        """Mark ``folder`` as most recently used. No effect if it was deleted."""
        with self._lock:
            if folder in self._folders:
                del self._folders[folder]
                self._folders[folder] = None

    def write(self, report: Report) -> Files:
        """Write the files of a report into a new folder; reuse the files if the same report was written before."""
        name, text = file_name([*report.subject().values()], report.analyzer), report.model_dump_json(indent=2)
        digest = hashlib.sha256(text.encode()).hexdigest()
        with self._lock:
            known = next((files for of, files in self._written.values() if of == digest), None)
        if known is not None and all(Path(path).is_file() for path in known):
            self.used(Path(known.json).parent)
            return known
        folder = self.folder()
        files = write_files(folder, name, text, tables_zip([report]), document([report]))
        with self._lock:
            self._written = {each: written for each, written in self._written.items() if each in self._folders} | {folder: (digest, files)}
        return files


def write_files(folder: Path, name: str, text: str, tables: bytes, page: str) -> Files:
    """Write JSON, zip and page under ``name`` into ``folder``. Raises OSError if writing fails."""
    files = Files(str(folder / f"{name}.json"), str(folder / f"{name}-tables.zip"), str(folder / f"{name}.html"))
    Path(files.json).write_text(printable_json(text) + "\n", encoding="utf-8")
    Path(files.csv).write_bytes(tables)
    Path(files.html).write_text(page, encoding="utf-8")
    return files


def file_name(refs: Sequence[str], analyzer: str) -> str:
    """A file name from references and analyzer: letters, digits, dots, dashes; never hidden, at most 80 characters of references."""
    longest = (_NAME_LENGTH - len(_BETWEEN) * (len(refs) - 1)) // len(refs)
    plain = (re.sub(r"[^A-Za-z0-9._-]+", "-", ref).strip(".-_")[:longest].strip(".-_") for ref in refs)
    return f"{_BETWEEN.join(filter(None, plain)) or 'report'}-{analyzer}"


def tables_zip(reports: Sequence[Report], failed: Sequence[tuple[str, str]] = ()) -> bytes:
    """All tables of the reports as CSV in one zip; no text cell can be interpreted as a formula.

    Reports share each table, with their subjects in its first columns; ``failed`` (model, error) becomes ``errors.csv``.
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
