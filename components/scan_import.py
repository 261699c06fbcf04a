"""Imports the results of a scan into the library."""

import json
import os
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from analyzers.checkpoints import quoted
from analyzers.core import limits
from analyzers.core.errors import InvalidRequest
from analyzers.core.report import Environment, Timing
from analyzers.core.untrusted_json import parse_json, parse_model
from analyzers.dtype_detection import DtypeReport
from analyzers.dtype_detection.report import ANALYSIS_VERSION
from analyzers.scan import JOURNAL, Journal
from components.library import Library
from components.library.item_checks import hub_id, timestamp
from components.site.stored_results import key_of


class Imported(NamedTuple):
    """The numbers of checkpoints of a scan: added, already in the library, without a result of a public model, and invalid."""

    imported: int
    known: int
    skipped: int
    refused: int

    @property
    def text(self) -> str:
        """The numbers as one line of text."""
        return f"{self.imported:,} imported, {self.known:,} known, {self.skipped:,} skipped, {self.refused:,} refused."


def import_scan(library: Library, folder: Path, refuse: Callable[[str], None]) -> Imported:
    """Add the results of the scan in ``folder`` to ``library``, with the commits, analysis version and times that the scan recorded.

    Existing results are not replaced. Skipped: samples, local files, models that could not be scanned, and models that were or are not
    public. The folder is untrusted: ``refuse`` receives a sentence for each invalid result. Raises InvalidRequest if the folder has no
    readable scan, LibraryUnavailable.
    """
    if not os.access(folder / JOURNAL, os.R_OK):
        raise InvalidRequest(f"{quoted(str(folder))} is not the folder of a scan: it has no {JOURNAL}.")
    counts = Counter[str]()
    with Journal(folder / JOURNAL) as journal:
        for key in journal.entries:
            try:
                counts[_import(library, journal, key)] += 1
            except (InvalidRequest, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
                counts["refused"] += 1
                refuse(f"{quoted(str(key))}: this is not the result of a public model as scan writes it, and is not imported.")
    return Imported(*(counts[name] for name in Imported._fields))


def _import(library: Library, journal: Journal, key: str) -> str:
    """Import one checkpoint; return the field of `Imported` that counts it. Raises various errors for an invalid report."""
    if journal.entries[key].error:
        return "skipped"
    text, finished, seconds = journal.dated(key, limits.RESULT_BYTES)
    # A scan stores its reports without the fields that differ between two runs; the journal keeps only the duration.
    unrecorded = {
        "timing": Timing(seconds=seconds, reading_seconds=seconds, bytes_per_second=None).model_dump(),
        "environment": Environment(python="", machine="", device="", libraries={}).model_dump(),
    }
    report = parse_model(DtypeReport, json.dumps(parse_json(text) | unrecorded))
    ref = report.checkpoint.ref
    if not report.checkpoint.public or ref.startswith("sample:"):
        return "skipped"
    if library.result_row(report.id) is not None:
        return "known"
    if not library.is_available([hub_id(ref)]):
        return "skipped"
    created = timestamp(datetime.fromisoformat(finished).astimezone(UTC))
    # Only a report of this version answers current requests.
    key_now = key_of(report) if report.analysis_version == ANALYSIS_VERSION else ""
    if library.add_result(report, key_now, public=True, created=created) is None:
        raise InvalidRequest("the library does not take it")
    return "imported"
