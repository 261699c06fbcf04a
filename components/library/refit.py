"""The classifier of the training precision, fitted again on the labels of the library."""

import hashlib
import json
import threading
from pathlib import Path

from pydantic import ValidationError

from analyzers.dtype_detection.classifier import Fit
from components.library.database import Database
from components.library.exports import training_set

_KEPT = "classifier.json"
_LABELS = "library-labels.csv"
_fitting = threading.Lock()


def refit(database: Database, folder: Path) -> Fit:
    """Fit on the training set as it is now, and keep what was found in ``folder`` until it changes. See `Library.refit`."""
    from analyzers.dtype_detection.fit_classifier import fit_all

    with _fitting:
        path = folder / _LABELS
        training_set(database, path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        kept = _read(folder)
        if kept is not None and kept[0] == digest:
            return kept[1]
        found = fit_all(path)
        unfinished = folder / f".{_KEPT}.unfinished"
        unfinished.write_text(json.dumps({"labels": digest, "fit": found.model_dump(mode="json")}), encoding="utf-8")
        unfinished.replace(folder / _KEPT)
        return found


def last_fit(folder: Path) -> Fit | None:
    """What `refit` found last in ``folder``; None where it was never called there."""
    kept = _read(folder)
    return None if kept is None else kept[1]


def _read(folder: Path) -> tuple[str, Fit] | None:
    try:
        kept = json.loads((folder / _KEPT).read_text(encoding="utf-8"))
        return kept["labels"], Fit.model_validate(kept["fit"])
    except (OSError, ValueError, LookupError, TypeError, ValidationError):  # of another version, or none
        return None
