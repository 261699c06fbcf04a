"""Withdraws results of repositories that are no longer public, when they are next requested or in a sweep twice a day."""

import time
from collections.abc import Callable, Sequence

from analyzers.checkpoints import summands
from analyzers.core.errors import MantissaError
from components.library import result_rows
from components.library.database import Database

AVAILABLE_SECONDS = 900  # Whether a stored result's repository is still public is asked once in this time.
_SWEEP_SECONDS = 12 * 3600
_SWEPT_AT_ONCE = 20  # repositories per turn of the publisher; the Hub answers 500 anonymous requests in 5 minutes
_PAUSE_SECONDS = 60  # pause after the Hub did not answer


class Availability:
    """Asks the Hub, without a token, whether the repositories of stored results are still public. Safe to use from several threads.

    clock: returns the time in seconds.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._seen: dict[str, float] = {}
        self._paused = self._listed = float("-inf")
        self._waiting: list[str] = []

    def look(self, models: Sequence[str]) -> bool:
        """Return whether all ``models`` are public, as far as the Hub says; withdraw the results of those that are not.

        The Hub is asked about each once in AVAILABLE_SECONDS, and is given 3 seconds.
        """
        return False not in {self._is_public(model) for model in models if _repositories(model)}

    def sweep(self) -> None:
        """Check some repositories with results; all of them within 12 hours, up to 14,000."""
        if not self._waiting and self._clock() - self._listed > _SWEEP_SECONDS:
            self._listed = self._clock()
            with self._database.read() as connection:
                self._waiting = result_rows.repositories(connection)
        now, self._waiting = self._waiting[:_SWEPT_AT_ONCE], self._waiting[_SWEPT_AT_ONCE:]
        self.look(now)

    def _is_public(self, model: str) -> bool:
        from analyzers.checkpoints.hub.hub_repository import is_public

        now = self._clock()
        if now - self._paused < _PAUSE_SECONDS or now - self._seen.get(model, float("-inf")) < AVAILABLE_SECONDS:
            return True
        try:
            public = all(is_public(each) for each in _repositories(model))
        except MantissaError:
            self._paused = now
            return True
        if public:
            self._seen[model] = now
        elif not self._database.read_only:
            with self._database.write() as connection:
                result_rows.withdraw(connection, model.lower())
        return public


def _repositories(model: str) -> list[str]:
    """Return the repositories of a result's model: its own, or those of a base and its adapters; none for samples."""
    return [part.text for part in summands(model, local=False) if not part.text.startswith("sample:")]
