"""Imports the results of a scan into the library."""

import json
import os
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from analyzers.checkpoints import quoted
from analyzers.checkpoints.hub.hub_repository import is_public
from analyzers.core.errors import InvalidRequest
from analyzers.core.report import Environment, Timing
from analyzers.core.untrusted_json import parse_model
from analyzers.dtype import DtypeReport
from analyzers.dtype.report import ANALYSIS_VERSION
from analyzers.scan.outcomes import FILE, Outcomes
from components.library import Library
from components.library.evidence import hub_id
from components.library.items import timestamp
from components.store import key_of

OUTCOMES = ("imported", "known", "skipped", "refused")


def import_scan(library: Library, folder: Path, refuse: Callable[[str], None]) -> Counter[str]:
    """Add the results of the scan in ``folder`` to ``library``, with the commits, analysis version and times that the scan recorded.

    Returns the numbers of checkpoints by outcome: imported; known already; skipped, as samples, local files, models that could not be
    scanned, and models that were or are not public; refused, as invalid, with a sentence for each to ``refuse``, since the folder is
    untrusted. Raises InvalidRequest if the folder has no readable scan, LibraryUnavailable.
    """
    if not os.access(folder / FILE, os.R_OK):
        raise InvalidRequest(f"{quoted(str(folder))} is not the folder of a scan: it has no {FILE}.")
    counts = Counter(dict.fromkeys(OUTCOMES, 0))
    outcomes = Outcomes(folder)
    for key in outcomes.entries:
        try:
            counts[_import(library, outcomes, key)] += 1
        except (InvalidRequest, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            counts["refused"] += 1
            refuse(f"{quoted(str(key))}: this is not the result of a public model as scan writes it, and is not imported.")
    return counts


def _import(library: Library, outcomes: Outcomes, key: str) -> str:
    """Import one checkpoint; return its outcome. Raises various errors for an invalid report."""
    if outcomes.entries[key].error:
        return "skipped"
    outcome, stored = outcomes.read(key)
    # A scan stores its reports without the fields that differ between two runs; an outcome has only the duration.
    unrecorded = {
        "timing": Timing(seconds=outcome.seconds, reading_seconds=outcome.seconds, bytes_per_second=None).model_dump(),
        "environment": Environment(python="", machine="", device="", libraries={}).model_dump(),
    }
    report = parse_model(DtypeReport, json.dumps(stored | unrecorded))
    if not report.checkpoint.public or report.checkpoint.ref.startswith("sample:"):
        return "skipped"
    if library.result_row(report.id) is not None:
        return "known"
    if not is_public(hub_id(report.checkpoint.ref)):
        return "skipped"
    # Only a report of this version answers current requests.
    key_now = key_of(report) if report.analysis_version == ANALYSIS_VERSION else ""
    library.add_result(report, key_now, public=True, created=timestamp(datetime.fromisoformat(outcome.finished)))
    if library.result_row(report.id) is None:
        raise InvalidRequest("the library does not take it")
    return "imported"
