"""Manages the folder of a scan: its journal and, in the end, the tables."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from analyzers.core.errors import InvalidRequest, MantissaError
from analyzers.core.untrusted_json import parse_json
from analyzers.dtype_detection import DtypeRequest
from analyzers.dtype_detection.report import ANALYSIS_VERSION
from analyzers.scan.journal import Journal, writable
from analyzers.scan.listing import Listed
from analyzers.scan.request import ScanRequest
from analyzers.scan.tables import CHECKPOINTS, TENSORS, write_tables

JOURNAL = "scan.sqlite"


class ScanFolder:
    """An open folder of a scan, created if it does not exist; only one scan at a time has it open.

    Raises InvalidRequest for a folder that cannot be used, that another scan is writing to, that contains tables of the same names not
    written by a scan, or whose checkpoints were scanned with other options.
    """

    def __init__(self, path: Path, request: ScanRequest) -> None:
        self.path = path
        self._existed = os.path.lexists(path / JOURNAL)
        self._created = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
        with writable(path):
            path.mkdir(parents=True, exist_ok=True)
        for table in (CHECKPOINTS, TENSORS):
            if not self._existed and os.path.lexists(path / table):
                raise InvalidRequest(f"The folder has a {table} that no scan made and that would be lost: choose another one with --out.")
        self.journal = Journal(path / JOURNAL)
        try:
            self.merge_shards()
            self._check_options(request)
        except BaseException:
            self.journal.close()
            raise

    def merge_shards(self) -> None:
        """Move the outcomes that the processes of a launch wrote into the journal. Raises InvalidRequest."""
        with writable(self.path):
            for shard in sorted(self.path.glob("scan-rank-*.sqlite")):
                self.journal.absorb(shard)

    def _check_options(self, request: ScanRequest) -> None:
        """Refuse options that differ from those of the stored outcomes."""
        asked = request.each.model_dump(mode="json", exclude={"model"}) | {"analysis_version": ANALYSIS_VERSION}
        stored = self.journal.setting("options")
        new = DtypeRequest(model="").model_dump(mode="json", exclude={"model"})  # an option added later had its default
        options = new | parse_json(stored) if stored is not None else {}
        if options != asked and self.journal.entries:
            changed = sorted(name for name in options.keys() | asked.keys() if options.get(name) != asked.get(name))
            named = ", ".join(f"{name} was {options.get(name)!r}, now {asked.get(name)!r}" for name in changed)
            raise InvalidRequest(f"The checkpoints in this folder were scanned with other options ({named[:300]}): choose another folder.")
        if options != asked:
            self.journal.set("options", json.dumps(asked))

    def find(self, ask: Callable[[str, str, int], list[str]], kind: str, text: str, limit: int) -> list[str]:
        """Return the Hub's first answer to this question: a continued scan keeps its list."""
        name = f"list {kind}:{text} {limit}"
        if (stored := self.journal.setting(name)) is None:
            self.journal.set(name, stored := json.dumps(ask(kind, text, limit)))
        return [str(each) for each in parse_json(stored)]

    def missing(self, listed: Sequence[Listed]) -> list[str]:
        """Return the keys of the checkpoints to scan: those without an outcome, or with a transient error."""
        found = dict.fromkeys(one.key for one in listed if one.problem is None)
        return [key for key in found if (entry := self.journal.entries.get(key)) is None or entry.transient]

    def write_tables(self, listed: Sequence[Listed]) -> bool:
        """Write the Parquet files unless they are up to date; return whether they were written."""
        digest = hashlib.sha256()
        for one in listed:
            outcome = self.journal.entries[one.key].digest if one.problem is None else one.problem
            digest.update(json.dumps([one.line, one.asked, outcome]).encode())
        name = digest.hexdigest()
        if self.journal.setting("tables") == name and all((self.path / table).is_file() for table in (CHECKPOINTS, TENSORS)):
            return False
        self.journal.set("tables", "")  # between the two replacements, the files belong to different lists
        with writable(self.path):
            write_tables(self.path, listed, self.journal)
        self.journal.set("tables", name)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        empty = not self.journal.entries
        self.journal.close()
        if isinstance(error, MantissaError) and not self._existed and empty:
            with suppress(OSError):  # an unreadable list leaves no folder behind, unless another program wrote there
                (self.path / JOURNAL).unlink()
                for folder in self._created:
                    folder.rmdir()
