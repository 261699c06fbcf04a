"""Publishes items to the dataset and reads it, in a thread: labels as soon as they are saved, results in batches.

huggingface_hub's CommitScheduler does not fit: it cannot be opened while the Hub is away, uploads everything again after a restart, commits
on no parent, tells nobody what failed, and cannot be ended within a time.
"""

import logging
import threading
import time
from collections.abc import Callable

from analyzers.core import limits
from analyzers.core.errors import AccessDenied, HubError, HubUnreachable, MantissaError
from components.library.folder import Folder
from components.library.hub import CARD, Conflict, Dataset

_FIRST_PAUSE, _CONFLICTS = 0.5, 5
_log = logging.getLogger("mantissa")


class Publisher:
    """Publishes what is in ``folder`` to ``dataset`` until `close`.

    lock: held while unpublished files change; changed: called after each change. background: in a thread, else only in
    `turn`. restored: set once the dataset has been read. problem: why
    it cannot be read, or nothing be published, or "".
    """

    def __init__(self, dataset: Dataset, folder: Folder, lock: threading.RLock, changed: Callable[[], None], background: bool) -> None:
        self.dataset, self.restored, self.problem = dataset, threading.Event(), ""
        self._folder, self._lock, self._changed = folder, lock, changed
        self._head, self._has_card, self._may_write, self._read_at = "", True, False, float("-inf")
        self._turn, self._news, self._wake = threading.Lock(), threading.Condition(), threading.Event()
        self._awaited: dict[str, str] = {}  # labels by path, with the commit once there is one
        self._ending = self._closed = self._refused = False
        self._thread = threading.Thread(target=self._run, name="library", daemon=True)
        if background:
            self._thread.start()

    def close(self, seconds: float) -> None:
        """Publish what is left for at most ``seconds``; the rest follows when the library is next opened."""
        if self._ending:
            return
        self._ending = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(seconds)
        self._closed = True

    def publish_label(self, identifier: str, seconds: float) -> str:
        """Publish a saved label now, and return its commit; "" if the Hub does not take it within ``seconds``."""
        path = f"labels/{identifier}.json"
        with self._news:
            self._awaited[path] = ""
            self._wake.set()
            self._news.wait_for(lambda: self._awaited[path] or self._refused or self._ending, seconds)
            return self._awaited.pop(path)

    def turn(self) -> None:
        """Read the dataset, if that is due, and publish everything. Raises HubError and other MantissaErrors."""
        with self._turn:
            if time.monotonic() - self._read_at >= limits.PUBLISH_SECONDS or not self._head:
                self._read()
            if not self._may_write:
                self.dataset.check_writable()
                self._may_write = True
            for _ in range(_CONFLICTS):
                try:
                    self._publish()
                    return
                except Conflict:
                    self._read()
                except HubError:
                    self._read_at = float("-inf")  # the commit may exist nevertheless: read before the next one
                    raise
            raise HubUnreachable(f"The dataset {self.dataset.name} changes too often; it is tried again.")

    def _publish(self) -> None:
        while True:
            batch = self._folder.batch()
            if batch is None:
                return
            if batch.files:
                card = {} if self._has_card else {CARD: self.dataset.card()}
                self._head = self.dataset.commit("Add labels and results", card | batch.files, self._head)
                self._has_card = True
            with self._lock:
                self._folder.settle(batch)
                self._changed()
            with self._news:
                self._awaited |= dict.fromkeys(batch.files.keys() & self._awaited.keys(), self._head)
                self._news.notify_all()

    def _read(self) -> None:
        head = self.dataset.head()
        if head != self._head:
            listed = self.dataset.files(head)
            self._has_card = listed.pop(CARD, None) is not None
            self._folder.follow(listed, lambda paths: self.dataset.read(paths, head))
            self._changed()
            self._head = head
        self._read_at = time.monotonic()
        self.restored.set()

    def _run(self) -> None:
        pause, failures = 0.0, 0
        while True:
            ending = self._ending
            if self._closed:
                return
            self._wake.clear()
            try:
                self.turn()
                failures, pause, self.problem, self._refused = 0, float(limits.PUBLISH_SECONDS), "", False
            except MantissaError as error:
                failures, self.problem = failures + 1, str(error)
                pause = min(_FIRST_PAUSE * 2.0 ** min(failures - 1, 20), float(limits.PUBLISH_SECONDS))
                self._refused = isinstance(error, AccessDenied)
            except Exception as error:
                _log.exception("the library is not published: %s", type(error).__name__)
                failures, pause, self.problem = failures + 1, float(limits.PUBLISH_SECONDS), "The library is not published: see the log."
            with self._news:
                self._news.notify_all()
            if ending:
                return
            self._wake.wait(pause)
