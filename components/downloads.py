"""Reports as files a visitor can take along: JSON, a zip of CSV tables, and the self-contained page.

The files lie in Gradio's own temporary folder, from which it serves them, in one folder per run. Only the ``DOWNLOADS``
folders used last are kept, so that visitors cannot fill the disk.
"""

import io
import json
import re
import shutil
import tempfile
import threading
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from analyzers import limits
from analyzers.dtype_detection import DtypeReport
from analyzers.dtype_detection.tables import formula_safe
from components.export import write_html
from components.outcomes import Outcome

_NAME_LENGTH = 80


class Files(NamedTuple):
    """Paths of the files of one run."""

    json: str
    csv: str
    html: str


class Downloads:
    """The folders of the latest runs below ``root``. Safe to use from several threads. Raises OSError when the disk refuses."""

    def __init__(self, root: Path, keep: int = limits.DOWNLOADS) -> None:
        self._root = root
        self._keep = keep
        self._folders: dict[Path, None] = {}
        self._lock = threading.Lock()

    def folder(self) -> Path:
        """A new folder; the one unused for longest goes when there are too many."""
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
        """Count ``folder`` as the one used last. No effect on a folder that is gone."""
        with self._lock:
            if folder in self._folders:
                del self._folders[folder]
                self._folders[folder] = None

    def write(self, report: DtypeReport) -> Files:
        """Write the files of one report, into a folder of their own."""
        folder = self.folder()
        name = file_name(report.checkpoint.ref)
        return _write(folder, name, report.model_dump_json(indent=2), [report], [])

    def write_several(self, folder: Path, outcomes: Sequence[Outcome]) -> Files:
        """Write the files of a run over several models into its ``folder``; the JSON is a list, ``{"model", "error"}`` where one failed."""
        self.used(folder)
        wholes = [None if outcome.report is None else outcome.whole() for outcome in outcomes]
        pairs = list(zip(outcomes, wholes, strict=True))
        each = [
            whole.model_dump_json(indent=2) if whole else json.dumps({"model": outcome.model, "error": outcome.error})
            for outcome, whole in pairs
        ]
        failed = [(outcome.model, outcome.error) for outcome, whole in pairs if not whole]
        others = f"-and-{len(outcomes) - 1}-more" if len(outcomes) > 1 else ""
        name = file_name(f"{outcomes[0].model}{others}")
        return _write(folder, name, "[" + ",\n".join(each) + "]", [whole for whole in wholes if whole], failed)


def file_name(ref: str) -> str:
    """A file name made of a reference: letters, digits, dots, dashes; never hidden, never empty, at most 80 characters."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", ref)[:_NAME_LENGTH].strip(".-_")
    return f"{plain or 'report'}-dtype"


def tables_zip(reports: Sequence[DtypeReport], failed: Sequence[tuple[str, str]] = ()) -> bytes:
    """Every table of the reports as CSV, in one zip; no cell of text can be taken for a formula.

    Several reports share each table, with the model in its first column; ``failed`` (model, error) becomes ``errors.csv``.
    """
    import pandas

    gathered: dict[str, list[pandas.DataFrame]] = {}
    for report in reports:
        for name, frame in report.tables().items():
            if len(reports) > 1 and name != "summary":
                frame.insert(0, "model", report.checkpoint.ref)
            gathered.setdefault(name, []).append(frame)
    if failed:
        gathered["errors"] = [pandas.DataFrame(failed, columns=["model", "error"])]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, frames in gathered.items():
            filled = [frame for frame in frames if not frame.empty] or frames[:1]
            archive.writestr(f"{name}.csv", formula_safe(pandas.concat(filled, ignore_index=True)).to_csv(index=False))
    return packed.getvalue()


def _write(folder: Path, name: str, text: str, reports: Sequence[DtypeReport], failed: Sequence[tuple[str, str]]) -> Files:
    files = Files(str(folder / f"{name}.json"), str(folder / f"{name}-tables.zip"), str(folder / f"{name}.html"))
    Path(files.json).write_text(text + "\n", encoding="utf-8")
    Path(files.csv).write_bytes(tables_zip(reports, failed))
    write_html(reports, files.html, failed)
    return files
