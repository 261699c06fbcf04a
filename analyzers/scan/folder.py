"""The folder of a scan: its journal and, in the end, the tables."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from analyzers.dtype_detection.analyze import ANALYSIS_VERSION
from analyzers.errors import InvalidRequest, MantissaError
from analyzers.scan.journal import Journal, shards
from analyzers.scan.listing import Listed
from analyzers.scan.outcome import Outcome
from analyzers.scan.request import ScanRequest
from analyzers.scan.tables import CHECKPOINTS, TENSORS, write_tables

JOURNAL = "scan.sqlite"


class ScanFolder:
    """An open folder, created if it does not exist; one scan has it open at a time.

    Raises InvalidRequest for a folder that cannot be used, that another scan is writing into, that holds tables no scan
    made, or whose checkpoints were scanned with other options.
    """

    def __init__(self, path: Path, request: ScanRequest) -> None:
        self.path = path
        self._existed = os.path.lexists(path / JOURNAL)
        self._created = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not self._existed:
                _refuse_foreign_tables(path)
            self.journal = Journal(path / JOURNAL)
        except (OSError, ValueError) as error:
            raise unusable(path, error) from None
        try:
            self.merge_shards()
            self._check_options(request)
        except BaseException:
            self.journal.close()
            raise

    def merge_shards(self) -> None:
        """Move what the processes of a launch wrote into the journal. Raises InvalidRequest."""
        try:
            for shard in shards(self.path):
                self.journal.absorb(shard)
        except OSError as error:
            raise unusable(self.path, error) from None

    def _check_options(self, request: ScanRequest) -> None:
        """Refuse options that differ from those of the outcomes that are here."""
        asked = request.each.model_dump(mode="json", exclude={"model"}) | {"analysis_version": ANALYSIS_VERSION}
        stored = self.journal.setting("options")
        options = json.loads(stored) if stored is not None else {}
        if options != asked and self.journal.entries:
            changed = sorted(name for name in options.keys() | asked.keys() if options.get(name) != asked.get(name))
            named = ", ".join(f"{name} was {options.get(name)!r}, now {asked.get(name)!r}" for name in changed)
            raise InvalidRequest(f"The checkpoints in this folder were scanned with other options ({named[:300]}): choose another folder.")
        if options != asked:
            self._set("options", json.dumps(asked))

    def _set(self, name: str, value: str) -> None:
        try:
            self.journal.set(name, value)
        except OSError as error:
            raise unusable(self.path, error) from None

    def find(self, ask: Callable[[str, str, int], list[str]], kind: str, text: str, limit: int) -> list[str]:
        """The Hub's answer to the first such question in this folder: a scan that is continued keeps the list it began with."""
        name = f"list {kind}:{text} {limit}"
        if (stored := self.journal.setting(name)) is None:
            self._set(name, stored := json.dumps(ask(kind, text, limit)))
        return [str(each) for each in json.loads(stored)]

    def missing(self, listed: Sequence[Listed]) -> list[str]:
        """Keys of the checkpoints to scan: those without an outcome, or with an error that was transient."""
        found = dict.fromkeys(one.key for one in listed if one.problem is None)
        return [key for key in found if (entry := self.journal.entries.get(key)) is None or entry.transient]

    def keep(self, outcome: Outcome, seconds: float, worker: str) -> None:
        """Commit an outcome to the journal. Raises InvalidRequest."""
        try:
            self.journal.append(outcome, round(seconds, 3), worker)
        except OSError as error:
            raise unusable(self.path, error) from None

    def write_tables(self, listed: Sequence[Listed]) -> bool:
        """Write the Parquet files, unless they are of this very list and journal; returns whether they were written."""
        digest = hashlib.sha256()
        for one in listed:
            outcome = self.journal.entries[one.key].digest if one.problem is None else one.problem
            digest.update(json.dumps([one.line, one.asked, outcome]).encode())
        name = digest.hexdigest()
        if self.journal.setting("tables") == name and all((self.path / table).is_file() for table in (CHECKPOINTS, TENSORS)):
            return False
        try:
            self._set("tables", "")  # between the two replacements they are of different lists
            write_tables(self.path, listed, self.journal)
            self._set("tables", name)
        except OSError as error:
            raise unusable(self.path, error) from None
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        empty = not self.journal.entries
        self.journal.close()
        if isinstance(error, MantissaError) and not self._existed and empty:
            self._remove()

    def _remove(self) -> None:
        """Delete what opening the folder created: a list that cannot be read leaves no folder behind."""
        with suppress(OSError):  # another program may have put a file there meanwhile
            (self.path / JOURNAL).unlink()
            for folder in self._created:
                folder.rmdir()


def _refuse_foreign_tables(path: Path) -> None:
    """Raise InvalidRequest where the scan's tables would replace files that no scan wrote."""
    for table in (CHECKPOINTS, TENSORS):
        if os.path.lexists(path / table):
            raise InvalidRequest(f"The folder has a {table} that no scan made and that would be lost: choose another one with --out.")


def unusable(path: Path, error: OSError | ValueError) -> InvalidRequest:
    """What the system said about the folder, as advice."""
    reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "its name cannot be used"
    return InvalidRequest(
        f"The folder {str(path)[:200]} cannot be written to ({reason}): mend that and run the same again, or choose another one with --out."
    )
