"""Holds the reports of open pages in memory only, so that their visitors can download them."""

import threading
import zlib
from itertools import count
from typing import Any
from weakref import WeakSet

from analyzers.core.errors import LimitExceeded
from analyzers.core.report import Report
from components.results.downloads import GONE, File, file_of
from components.running.queue_limits import Caller, caller
from components.site import stored_results
from components.site.identity import Client

RESULTS_MEMORY = 100_000_000  # Most bytes of compressed reports held for downloads; the oldest are dropped first.

_lock = threading.Lock()
_numbers = count()
_all: "WeakSet[OpenReport]" = WeakSet()


class OpenReport:
    """A compressed report in the state of a session. It is dropped with the session, or earlier if newer reports need the memory.

    A report that was read with a visitor's token is given only to that visitor.
    """

    def __init__(self, report: Report, who: Caller | None = None) -> None:
        who = who or caller.get()
        self._owner = who.client.visitor if who.access.token is not None else None
        self._analyzer = report.analyzer
        self._content = zlib.compress(report.model_dump_json().encode(), 1)
        with _lock:
            self._number = next(_numbers)
            _all.add(self)
            total = sum(len(held._content) for held in _all)
            for oldest in sorted(_all, key=lambda held: held._number):
                if total <= RESULTS_MEMORY:
                    break
                total -= len(oldest._content)
                oldest._content = b""

    def report(self, client: Client) -> Any:
        """Return the report. Raises LimitExceeded if it is no longer held for this client."""
        content = self._content  # another thread may drop it meanwhile
        if not content or self._owner not in (None, client.visitor):
            raise LimitExceeded(GONE)
        return stored_results.read(self._analyzer, zlib.decompress(content))

    def file(self, ending: str, client: Client) -> File:
        """Return the report as the file with this extension. Raises LimitExceeded as `report` does."""
        return file_of(self.report(client), ending)
