"""The folder of a scan: its journal, what it was asked, a log, and at last the tables."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from analyzers.dtype_detection.analyze import ANALYSIS_VERSION
from analyzers.errors import InvalidRequest, MantissaError
from analyzers.scan.journal import Journal
from analyzers.scan.listing import Listed
from analyzers.scan.outcome import Outcome
from analyzers.scan.request import ScanRequest
from analyzers.scan.tables import CHECKPOINTS, TENSORS, replace_durably, write_tables

_SETTINGS, _JOURNAL, _LOG = "scan.json", "scan.journal", "scan.log.jsonl"


class ScanFolder:
    """An open folder, made where it is missing; one process has it open at a time.

    Raises InvalidRequest for a folder that cannot be used, that another scan is writing into, that has tables of somebody
    else, or whose checkpoints were scanned with other options.
    """

    def __init__(self, path: Path, request: ScanRequest) -> None:
        self.path = path
        self._begun = os.path.lexists(path / _SETTINGS)
        self._made = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
        try:
            path.mkdir(parents=True, exist_ok=True)
            _refuse_tables_of_others(path)
            self.journal = Journal(path / _JOURNAL)
        except (OSError, ValueError) as error:
            raise unusable(path, error) from None
        try:
            self._settings = self._agree(request)
            self._log = (path / _LOG).open("a", encoding="utf-8")
        except OSError as error:
            self.journal.close()
            raise unusable(path, error) from None
        except BaseException:
            self.journal.close()
            raise

    def _agree(self, request: ScanRequest) -> dict[str, Any]:
        """The settings of this folder, written where it has none."""
        asked = request.each.model_dump(mode="json", exclude={"model"}) | {"analysis_version": ANALYSIS_VERSION}
        file = self.path / _SETTINGS
        if not file.exists():
            if self.journal.entries:
                raise InvalidRequest(f"{file} is missing, so that nobody knows how the scan in this folder was made: choose another one.")
            self._settings = {"options": asked, "lists": {}, "tables": ""}
            self._save()
            return self._settings
        try:
            settings: dict[str, Any] = json.loads(file.read_bytes())
            options, lists, tables = settings["options"], settings["lists"], settings["tables"]
            whole = isinstance(options, dict) and isinstance(lists, dict) and isinstance(tables, str)
        except (ValueError, KeyError, TypeError, RecursionError):
            whole = False
        if not whole:
            raise InvalidRequest(f"{file} is damaged: choose another folder.")
        if options != asked and not self.journal.entries:  # nothing was scanned with them
            self._settings = settings | {"options": asked}
            self._save()
            return self._settings
        if options != asked:
            changed = sorted(name for name in options.keys() | asked.keys() if options.get(name) != asked.get(name))
            said = ", ".join(f"{name} {options.get(name)!r} there, {asked.get(name)!r} now" for name in changed)
            raise InvalidRequest(f"The checkpoints in this folder were scanned with other options ({said[:300]}): choose another folder.")
        return settings

    def _save(self) -> None:
        unfinished = self.path / f".{_SETTINGS}.unfinished"
        unfinished.write_text(json.dumps(self._settings, indent=1), encoding="utf-8")
        replace_durably(unfinished, self.path / _SETTINGS)

    def find(self, ask: Callable[[str, str, int], list[str]], kind: str, text: str, limit: int) -> list[str]:
        """What the Hub listed when this folder was first asked for it: a scan that goes on has the list it began with."""
        name = f"{kind}:{text} {limit}"
        if name not in self._settings["lists"]:
            self._settings["lists"][name] = ask(kind, text, limit)
            self._save()
        return [str(each) for each in self._settings["lists"][name]]

    def missing(self, listed: Sequence[Listed]) -> list[Listed]:
        """What is still to be done: never finished, or ended by an error that may have passed."""
        found: dict[str, Listed] = {}
        for one in listed:
            entry = self.journal.entries.get(one.key)
            if one.problem is None and (entry is None or entry.passing):
                found.setdefault(one.key, one)
        return list(found.values())

    def keep(self, outcome: Outcome, **log: Any) -> None:
        """Write an outcome to the journal, through to the disk; ``log`` goes into the log beside it. Raises InvalidRequest."""
        entry = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "checkpoint": outcome.key, "error": outcome.error or None, **log}
        try:
            self.journal.append(outcome)
            self._log.write(json.dumps(entry) + "\n")
            self._log.flush()
        except OSError as error:
            raise unusable(self.path, error) from None

    def tables(self, listed: Sequence[Listed]) -> bool:
        """Write the Parquet files, unless those there are of this very list and journal; returns whether they were written."""
        digest = hashlib.sha256()
        for one in listed:
            checksum = self.journal.entries[one.key].checksum if one.problem is None else one.problem
            digest.update(json.dumps([one.line, one.asked, checksum]).encode())
        name = digest.hexdigest()
        if self._settings["tables"] == name and all((self.path / table).is_file() for table in (CHECKPOINTS, TENSORS)):
            return False
        try:
            self._settings["tables"] = ""  # for a while one may be of this list and the other of the last one
            self._save()
            write_tables(self.path, listed, self.journal)
            self._settings["tables"] = name
            self._save()
        except OSError as error:
            raise unusable(self.path, error) from None
        return True

    def close(self) -> None:
        """Close the files and unlock the folder."""
        self._log.close()
        self.journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, MantissaError) and not self._begun and not self.journal.entries:
            self._leave_nothing()
        self.close()

    def _leave_nothing(self) -> None:
        """Take away what opening the folder made, where nothing came of it: a list that cannot be read leaves no folder behind."""
        with suppress(OSError):  # somebody else may have put something there meanwhile
            for name in (_SETTINGS, _LOG, _JOURNAL):
                (self.path / name).unlink()
            for folder in self._made:
                folder.rmdir()


def _refuse_tables_of_others(path: Path) -> None:
    """Raises InvalidRequest where the scan's tables would replace files that no scan wrote."""
    if not any(os.path.lexists(path / name) for name in (_SETTINGS, _JOURNAL)):
        for table in (CHECKPOINTS, TENSORS):
            if os.path.lexists(path / table):
                raise InvalidRequest(f"The folder has a {table} that no scan made, and that would be lost: choose another one with --out.")


def unusable(path: Path, error: OSError | ValueError) -> InvalidRequest:
    """What the system said about the folder, as advice."""
    reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "its name cannot be used"
    return InvalidRequest(
        f"The folder {str(path)[:200]} cannot be written to ({reason}): mend that and run the same again, or choose another one with --out."
    )
