"""Restores the library from the dataset and publishes to it, in a background thread.

A turn reads the newest commit, imports new items, and commits the waiting ones with that commit as parent. After any failure the next turn
starts by reading again: commits of this or another process on the same library are recognized by their file names.
"""

import logging
import random
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from analyzers.core import limits
from analyzers.core.errors import CheckpointNotFound, HubError, MantissaError
from components.library import pending_files
from components.library.availability import Availability
from components.library.counts import counts
from components.library.database import Database
from components.library.dataset import Conflict, Dataset, Retry, passes, reading
from components.library.dataset_card import CARD, MARK, card_files
from components.library.dataset_rows import known, take

if TYPE_CHECKING:
    from analyzers.checkpoints.hub.hub_repository import HubRepository

LIBRARY_ATTEMPTS = 20  # Attempts at one commit to the dataset before it waits for the next turn.
_WAIT_SECONDS = 600  # Longest single wait of the publisher for Retry-After and back-off.
_CARD_BYTES = 1_000_000  # A larger card is not ours.
_FIRST_WAIT = 0.2
_LONGEST_WAIT = 30
_LAST_WAIT = 0.5  # seconds between two tries before the program ends
_JOIN_SECONDS = 10
_log = logging.getLogger("mantissa")


class Publisher:
    """Synchronizes a database with a dataset repository.

    availability: swept between turns. restored: set once everything has been imported for the first time. head: the commit read last.
    problem: why the last turn failed, or "".
    """

    def __init__(self, database: Database, dataset: str, token: str | None) -> None:
        self.dataset = dataset
        self.restored = threading.Event()
        self.head = ""
        self.problem = ""
        self._database = database
        self._hub = Dataset(dataset, token)
        self.availability = Availability(database)
        self._may_write = token is not None
        self._proven = False  # whether a commit or a check has shown that the token may write the dataset
        self._setback = ""  # why the current turn is retrying
        self._began: float | None = None  # when the current turn began its last commit, or the checks before it
        self._closed = threading.Event()
        self._ending = threading.Event()
        self._urgent = threading.Event()
        self._turning = threading.Lock()
        self._served = threading.Condition()
        self._asked = self._answered = 0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Take turns in a thread, until `close`."""
        self._thread = threading.Thread(target=self._run, name="library-publisher", daemon=True)
        self._thread.start()

    def publish_last(self) -> None:
        """Commit waiting items immediately before the program ends, until `close`, even if the Hub asks a turn in progress to wait.

        The dataset is not read first: a commit without a parent cannot conflict with others, and its file names are unique. Raises the
        errors of `turn`.
        """
        self._ending.set()
        while self._may_write and not self._closed.is_set():
            try:
                if not self._add(None):
                    return
            except CheckpointNotFound:
                with self._database.write() as connection:
                    pending_files.send_again(connection)
                self._hub.create()
            except HubError as error:
                if not passes(error):
                    raise
                self._closed.wait(_LAST_WAIT)

    def close(self) -> None:
        """Stop after the current request. Idempotent."""
        self._ending.set()
        self._closed.set()
        self._urgent.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def at_once(self, seconds: float) -> str:
        """Publish now, in at most ``seconds``. Return "", or a sentence on why that was not possible."""
        if self._thread is None:
            try:
                self.turn()
            except MantissaError as error:
                return _not_yet(str(error))
            return self.problem and _not_yet(self.problem)
        with self._served:
            self._asked += 1
            mine = self._asked
            self._urgent.set()
            if not self._served.wait_for(lambda: self._answered >= mine, seconds):
                return _not_yet(self._setback or f"The Hub did not take it within {seconds:g} seconds.")
        return self.problem and _not_yet(self.problem)

    def overdue(self) -> str:
        """Return a sentence if added items have waited longer than PUBLISH_WAIT_SECONDS for the Hub, else ""."""
        began = self._began
        if began is None or time.time() - began <= limits.PUBLISH_WAIT_SECONDS or not self.restored.is_set():
            return ""
        with self._database.read() as connection:
            if not pending_files.waits(connection):
                return ""
        since = f"{datetime.fromtimestamp(began, UTC):%Y-%m-%d %H:%M:%S} UTC"
        return f"What was added is not published to the dataset {self.dataset} yet: the Hub has let it wait since {since}."

    def turn(self) -> None:
        """Import new items of the dataset, publish waiting ones, and merge small files. Raises MantissaError.

        Conflicts and temporary failures are retried, at most LIBRARY_ATTEMPTS times in a row.
        """
        failures = 0
        with self._turning:
            self._setback = ""
            while not self._ending.is_set():
                try:
                    self._began = time.time()
                    if not self._step():
                        return
                    failures = 0
                except HubError as error:
                    failures += 1
                    if not passes(error) or failures >= LIBRARY_ATTEMPTS:
                        raise
                    self._wait(error, failures)
                finally:
                    self._began = None

    def _step(self) -> bool:
        """Read, then make at most one commit; return whether there may be more to do."""
        try:
            head = self._hub.head()
        except CheckpointNotFound:
            if not self._may_write:
                raise
            self._hub.create()
            head = self._hub.head()
        with closing(head) as repository:
            with reading(self.dataset):
                self._take_in(repository)
            return self._publish(repository)

    def _take_in(self, repository: "HubRepository") -> None:
        """Import files that are not yet known. A file becomes known once all of it has been read.

        A dataset without any known file is a different or emptied one: items that are not found in it are published again.
        """
        sizes, commit = repository.files, repository.commit
        with self._database.read() as connection:
            seen = {path for (path,) in connection.execute("SELECT path FROM dataset_files")}
        if not seen & set(sizes):
            with self._database.write() as connection:
                if pending_files.send_again(connection):
                    _log.warning("the library: %s has none of the files that were published to it: all is published again", self.dataset)
        for table, path in known([path for path in sizes if path not in seen]):
            if self._ending.is_set():
                return
            batch = pending_files.Batch(table, path)
            with self._database.write() as connection:
                if pending_files.is_own(connection, batch):
                    pending_files.mark(connection, batch, commit)
                    continue
            items = refused = 0
            reason = ""
            with closing(repository.open(path)) as file:
                for part in take(table, file):
                    with self._database.write() as connection:
                        pending_files.take_in(connection, table, part.items, commit)
                    items, refused, reason = items + len(part.items), refused + part.refused, reason or part.reason
            with self._database.write() as connection:
                pending_files.known_file(connection, path, items, refused, reason)
        with self._database.write() as connection:
            pending_files.forget_files(connection, set(sizes))
        self.head = commit
        self.restored.set()

    def _publish(self, repository: "HubRepository") -> bool:
        if self._ending.is_set():
            return False
        if not self._may_write:
            self.problem = "Nothing is published: set MANTISSA_TOKEN to a token that may write the dataset."
            return False
        if self._add(repository):
            return True
        if not self._proven or self._hub.refused:
            self._hub.check_writable()
            self._proven = True
        self.problem = ""
        return self._rewrite(repository)

    def _add(self, repository: "HubRepository | None") -> bool:
        """Commit waiting items; return whether there were any. repository: the dataset, None if it was not read."""
        with self._database.write() as connection:
            batches = pending_files.settle(connection)
            files = {batch.path: pending_files.content(connection, batch) for batch in batches}
            contents = counts(connection).sentence
        if not batches:
            return False
        if repository is not None:
            files |= self._card(repository, files, contents)
        self._commit(f"Add {' and '.join(batch.table for batch in batches)}", files, repository.commit if repository else None)
        with self._database.write() as connection:
            for batch in batches:
                pending_files.mark(connection, batch, self.head)
        return True

    def _card(self, repository: "HubRepository", added: Collection[str], contents: str) -> dict[str, bytes]:
        """Return the files of the card that a commit of ``added`` files needs: none if the card is current, or somebody's own."""
        made = card_files(self.dataset, [*repository.files, *added], contents)
        if CARD not in repository.files:
            return made
        if repository.files[CARD] > _CARD_BYTES:
            return {}
        with reading(self.dataset), closing(repository.open(CARD)) as file:
            file.read_into(0, memoryview(card := bytearray(file.size)))
        return {CARD: made[CARD]} if MARK.encode() in card and card != made[CARD] else {}

    def _rewrite(self, repository: "HubRepository") -> bool:
        """Remove withdrawn results from one file, or else merge small files; return whether there was anything to do."""
        rewrite = pending_files.plan_removal(self._database, repository) or pending_files.plan_merge(self._database, repository)
        if rewrite is None:
            return False
        self._commit(rewrite.message, {rewrite.path: rewrite.content}, repository.commit, rewrite.old)
        with self._database.write() as connection:
            pending_files.known_file(connection, rewrite.path, rewrite.items, 0, "")
        return True

    def _commit(self, message: str, files: Mapping[str, bytes], parent: str | None, delete: tuple[str, ...] = ()) -> None:
        self.head = self._hub.commit(message, files, parent, delete)
        self._proven = True

    def _wait(self, error: HubError, failures: int) -> None:
        """Wait as long as the Hub asks, up to _WAIT_SECONDS or until the end; by default with exponential backoff and jitter."""
        asked = error.wait if isinstance(error, Retry) else None
        if asked is None:
            first = _FIRST_WAIT / 4 if isinstance(error, Conflict) else _FIRST_WAIT
            asked = min(first * 2 ** min(failures, 10), _LONGEST_WAIT) * random.uniform(0.5, 1)
        self.problem = self._setback = str(error)
        self._ending.wait(min(asked, _WAIT_SECONDS))

    def _run(self) -> None:
        while not self._ending.is_set():
            self._urgent.clear()
            with self._served:
                asked = self._asked
            try:
                try:
                    self.turn()
                finally:
                    if not self._ending.is_set():
                        self.availability.sweep()
            except MantissaError as error:
                self.problem = str(error)
                _log.warning("the library: %s", error)
            except Exception as error:
                self.problem = "Something went wrong on our side while the library was published; it is tried again."
                _log.error("the library: unexpected %s", type(error).__name__)
            with self._served:
                self._answered = asked
                self._served.notify_all()
            self._urgent.wait(limits.PUBLISH_SECONDS)


def _not_yet(why: str) -> str:
    return f"Saved here, but not published yet; it is lost if this server restarts before that. {why}"
