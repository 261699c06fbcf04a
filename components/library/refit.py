"""Refits the classifier of the training precision on the labels of the library.

A fit takes ten seconds of CPU time and would block this process, so it runs in a separate process, with the command that also fits the
built-in classifier.
"""

import hashlib
import logging
import subprocess
import sys
import threading
import time
from pathlib import Path

from pydantic import ValidationError

import analyzers
from analyzers import limits
from analyzers.data import Data
from analyzers.dtype_detection.classifier import Fit, fitted
from analyzers.dtype_detection.labels import examples
from analyzers.errors import InvalidRequest, LibraryUnavailable, LimitExceeded, MantissaError
from analyzers.outside_json import parse_model
from analyzers.whole_files import scratch, whole
from components.library.checks import now
from components.library.database import Database
from components.library.exports import training_set

_KEPT = "classifier.json"
_LABELS, _FOUND = "library-labels.csv", "fitted.json"
_JOIN_SECONDS = 10
_log = logging.getLogger("mantissa")


class Fitting(Data):
    """The state of the library's classifier.

    fit: the last fit, or None; fitted: when it was last checked, UTC. outdated: something has been added to the library since then.
    running: a check or a fit is in progress. problem: why the last fit failed, as a sentence.
    """

    fit: Fit | None
    fitted: str
    outdated: bool
    running: bool
    problem: str


class _Kept(Data):
    """The contents of the file on disk. version: of the library; labels: SHA-256 of its training set."""

    version: str
    labels: str
    fitted: str
    fit: Fit


class Refit:
    """Fits the classifier for the library in ``folder``, one fit at a time."""

    def __init__(self, database: Database, folder: Path) -> None:
        self._database = database
        self._folder = folder
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._problem = ""
        self._fitting = threading.Lock()
        self._tried: float | None = None  # when the last fit began

    def standing(self) -> Fitting:
        """Return the current state. Does not wait."""
        kept = self._read()
        return Fitting(
            fit=kept.fit if kept else None,
            fitted=kept.fitted if kept else "",
            outdated=kept is None or kept.version != self._database.version(),
            running=self._fitting.locked() or (self._thread is not None and self._thread.is_alive()),
            problem=self._problem,
        )

    def start(self) -> None:
        """Fit in the background if the last fit is outdated, unless a fit is running or was tried within REFIT_SECONDS."""
        found = self.standing()
        if found.outdated and not found.running and not self._recent():
            self._thread = threading.Thread(target=self._run, name="library-refit", daemon=True)
            self._thread.start()

    def fit(self) -> Fit:
        """Fit on the current training set, unless the last fit used the same one. See `Library.refit`."""
        if not self._fitting.acquire(blocking=False):
            raise LibraryUnavailable("The classifier is being fitted on the library's labels just now: try again in a moment.")
        try:
            with scratch() as folder:
                return self._fit(folder)
        finally:
            self._fitting.release()

    def _fit(self, folder: Path) -> Fit:
        """Fit like `fit`, with its files in ``folder``."""
        self._tried = time.monotonic()
        seen, path = self._database.version(), folder / _LABELS
        training_set(self._database, path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        kept = self._read()
        if kept is not None and kept.labels == digest:
            found = kept.fit
        else:  # the built-in classifier was fitted on the built-in labels
            found = fitted() if examples(path) == fitted().classifier.examples else self._computed(path)
        with whole(self._folder / _KEPT) as file:
            file.write_text(_Kept(version=seen, labels=digest, fitted=now(), fit=found).model_dump_json(), encoding="utf-8")
        return found

    def close(self) -> None:
        """Stop a fit in progress. Idempotent."""
        self._closed = True
        if self._process is not None:
            self._process.kill()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        try:
            self.fit()
            self._problem = ""
        except MantissaError as error:
            self._problem = str(error)
        except Exception as error:
            self._problem = "Something went wrong on our side while the classifier was fitted; it is tried again."
            _log.error("the fit on the library's labels: unexpected %s", type(error).__name__)

    def _computed(self, labels: Path) -> Fit:
        """Fit with the command on ``labels``. Raises InvalidRequest with the command's message, LimitExceeded, LibraryUnavailable."""
        out = labels.with_name(_FOUND)
        command = [sys.executable, "-m", "analyzers.dtype_detection.fit_classifier"]
        command += ["--labels", str(labels.absolute()), "--out", str(out.absolute())]
        root = Path(analyzers.__file__).parents[1]
        with subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:  # noqa: S603 - ours
            self._process = process
            try:
                if self._closed:
                    process.kill()
                _, said = process.communicate(timeout=limits.FIT_SECONDS)
            except subprocess.TimeoutExpired:
                raise LimitExceeded(
                    f"Fitting on the library's labels took more than {limits.FIT_SECONDS:,} seconds (MANTISSA_FIT_SECONDS)."
                ) from None
            finally:
                process.kill()
                self._process = None
        if process.returncode == 2:
            raise InvalidRequest(said.decode(errors="replace").strip().splitlines()[-1])
        if process.returncode:
            raise LibraryUnavailable("The classifier could not be fitted on the library's labels: its process ended early.")
        return parse_model(Fit, out.read_bytes())

    def _recent(self) -> bool:
        return self._tried is not None and time.monotonic() - self._tried < limits.REFIT_SECONDS

    def _read(self) -> _Kept | None:
        try:
            return parse_model(_Kept, (self._folder / _KEPT).read_bytes())
        except (OSError, ValidationError):  # of another version, or missing
            return None
