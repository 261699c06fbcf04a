"""Stores the items as files: those that are not in the dataset yet, and a copy of the dataset.

    unpublished/labels/ID.json          labels, one a file
    unpublished/own/ID.json             labels of the owner of an app of one's own, which are never published
    unpublished/results/N.jsonl         rows of results, one a line
    unpublished/reports/12/ID.json.gz   their reports, in folders by the first two digits of the id
    published/...                       the same, as in the dataset; published/hidden/ID hides the label or result ID

What is unpublished is on the disk before its method returns. Without a dataset everything stays unpublished.
"""

import fcntl
import gzip
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from analyzers.core import limits
from analyzers.core.atomic_files import append_line, replacing
from analyzers.core.errors import LibraryUnavailable
from analyzers.core.untrusted_json import parse_model
from components.library.items import OWNER, Label, ResultRow

LISTED = ("labels", "hidden", "results")  # folders of the dataset that are copied; reports are, once they are asked for
_OURS = ("labels", "own", "results")
NAMES = re.compile(r"labels/[0-9a-f]{64}\.json|hidden/[0-9a-f]{64}|results/[A-Za-z0-9_-]{1,80}\.jsonl")
ROWS_BYTES = 1_000_000  # A file of rows is ended at this size, since it is uploaded whole whenever it grows.
_LABELS, _RESULTS, _BYTES = 200, 200, 64_000_000  # Most of one commit.
_FREE_BYTES = 1_000_000_000  # Results are not stored on a disk with less.


class Batch(NamedTuple):
    """Items to publish in one commit. files: their contents by path in the dataset; rows: the file of rows, and how many bytes of it."""

    files: dict[str, bytes]
    rows: Path | None
    taken: int


class Folder:
    """The files in ``path``, created if necessary, for one process at a time. Raises LibraryUnavailable for a second one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ours, self.copy = path / "unpublished", path / "published"
        with disk():
            for name in (*(f"unpublished/{each}" for each in _OURS), "unpublished/reports", *(f"published/{each}" for each in LISTED)):
                (path / name).mkdir(parents=True, exist_ok=True)
            (self.copy / "reports").mkdir(exist_ok=True)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._lock)
                raise LibraryUnavailable(
                    "Another process uses the library in this folder: end that app or import first, or set MANTISSA_DATA to another folder."
                ) from None
            named = path / "name"  # of this folder's own files of rows, which no other instance writes
            if not named.exists():
                with replacing(named) as file:
                    file.write_text(secrets.token_hex(4))
            self._name = named.read_text()

    def close(self) -> None:
        """Let another process use the folder. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def check_open(self) -> None:
        """Raise LibraryUnavailable after `close`: another process may use the folder."""
        if self._lock < 0:
            raise LibraryUnavailable("The library is closed.")

    def files(self) -> dict[str, int]:
        """Return the sizes of the files with labels, rows and names of what is hidden, by their path in this folder."""
        self.check_open()
        with disk():
            return {
                f"{half}/{name}/{entry.name}": entry.stat().st_size
                for half, name in (*(("published", name) for name in LISTED), *(("unpublished", name) for name in _OURS))
                for entry in os.scandir(self.path / half / name)
                if not entry.name.startswith(".") and entry.is_file()
            }

    def add_label(self, label: Label) -> None:
        """Save a label."""
        folder = self.ours / ("own" if label.contributor == OWNER else "labels")
        with disk(), replacing(folder / f"{label.id}.json") as file:
            file.write_text(label.model_dump_json(), encoding="utf-8")

    def is_published(self, identifier: str) -> bool:
        """Return whether a label is in the dataset."""
        return (self.copy / "labels" / f"{identifier}.json").exists()

    def add_result(self, row: ResultRow, report: str) -> None:
        """Save a result: first its report, then its row."""
        with disk():
            if shutil.disk_usage(self.path).free < _FREE_BYTES:
                raise LibraryUnavailable("The disk of the library is almost full: results are not stored.")
            path = self.ours / report_path(row.id)
            path.parent.mkdir(exist_ok=True)
            with replacing(path) as file:
                file.write_bytes(gzip.compress(report.encode(), 6, mtime=0))
            append_line(_growing(self.ours / "results", ""), row.model_dump_json(exclude_defaults=True))

    def report(self, identifier: str) -> bytes | None:
        """Return the JSON of a report; None if it is not here, or is damaged."""
        for half in (self.ours, self.copy):
            if (path := half / report_path(identifier)).exists():
                return unpacked(path.read_bytes())
        return None

    def keep_report(self, identifier: str, packed: bytes) -> None:
        """Keep a copy of a published report."""
        _write(self.copy / report_path(identifier), packed)

    def batch(self) -> Batch | None:
        """Return some unpublished items; None if there are none."""
        labels = sorted((self.ours / "labels").glob("*.json"))[:_LABELS]
        files = {f"labels/{path.name}": path.read_bytes() for path in labels}
        rows = next(iter(sorted((self.ours / "results").glob("*.jsonl"))), None)
        new: list[bytes] = []
        taken = size = 0
        for line in rows.read_bytes().splitlines(keepends=True) if rows else ():
            if len(new) == _RESULTS or size > _BYTES or not line.endswith(b"\n"):
                break
            taken += len(line)
            try:
                path = report_path(parse_model(ResultRow, line).id)
                files[path] = (self.ours / path).read_bytes()
            except (ValueError, FileNotFoundError):  # a line that was cut, or whose report was published with another one
                continue
            size += len(files[path])
            new.append(line)
        if new:
            growing = _growing(self.copy / "results", f"{self._name}-")
            old = growing.read_bytes() if growing.exists() else b""
            known = set(old.splitlines())
            files[f"results/{growing.name}"] = old + b"".join(line for line in new if line.rstrip(b"\n") not in known)
        return Batch(files, rows, taken) if files or taken else None

    def settle(self, batch: Batch) -> None:
        """Move the items of a batch that has been committed to the copy of the dataset. Safe to repeat after an interruption."""
        self.check_open()
        for path, content in batch.files.items():
            if path.startswith("results/"):
                _write(self.copy / path, content)
            elif (source := self.ours / path).exists():
                (self.copy / path).parent.mkdir(exist_ok=True)
                source.replace(self.copy / path)
        if batch.rows and (rest := batch.rows.read_bytes()[batch.taken :]):
            with replacing(batch.rows) as file:
                file.write_bytes(rest)
        elif batch.rows:
            batch.rows.unlink()

    def follow(self, listed: Mapping[str, int], read: Callable[[list[str]], Iterator[tuple[str, bytes]]]) -> None:
        """Make the copy equal to the dataset. listed: sizes by path; read: yields the contents of files."""
        copied = {path.removeprefix("published/"): size for path, size in self.files().items() if path.startswith("published/")}
        for path in copied.keys() - listed.keys():
            (self.copy / path).unlink()
        hidden = [path for path in listed.keys() - copied.keys() if path.startswith("hidden/")]
        for path in hidden:
            _write(self.copy / path, b"")
        changed = [path for path, size in listed.items() if copied.get(path) != size and not path.startswith("hidden/")]
        for path, content in read(sorted(changed, reverse=True)):
            self.check_open()
            _write(self.copy / path, content)


def report_path(identifier: str) -> str:
    """Return the path of a report in the dataset."""
    return f"reports/{identifier[:2]}/{identifier}.json.gz"


def unpacked(packed: bytes) -> bytes | None:
    """Decompress a report, of at most RESULT_BYTES; None if it is damaged or larger."""
    stream = zlib.decompressobj(wbits=31)
    try:
        text = stream.decompress(packed, limits.RESULT_BYTES)
    except zlib.error:
        return None
    return text if stream.eof and not stream.unused_data else None


@contextmanager
def disk() -> Iterator[None]:
    """Convert errors of the disk to LibraryUnavailable."""
    try:
        yield
    except OSError as error:
        raise LibraryUnavailable(f"The library's folder cannot be used ({error.strerror}): check MANTISSA_DATA and its disk.") from None


def _growing(folder: Path, prefix: str) -> Path:
    """Return the file of rows in ``folder`` that is not full: PREFIX000001.jsonl, and so on."""
    last = max(folder.glob(f"{prefix}[0-9]*.jsonl"), default=None)
    number = int(last.stem.rpartition("-")[2]) if last else 1
    if last and last.stat().st_size >= ROWS_BYTES:
        number += 1
    return folder / f"{prefix}{number:06}.jsonl"


def _write(path: Path, content: bytes) -> None:
    """Write a file of the copy. A power failure may lose it, and it is read again."""
    path.parent.mkdir(exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content)
    part.replace(path)
