"""Scripts faults of the local Hub: the misbehaviour, the requests, and how often."""

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from .repositories import Contents


@dataclass
class Fault:
    """A kind of misbehaviour. Only the first fault that matches a request applies, with all its fields.

    pattern: regular expression searched in the decoded path (without query) on the Hub and on its CDN.
    times: number of requests that it applies to, None for all; skip: number of matching requests before those.
    method: only this method; ranged: only requests with a Range header (True) or without (False).
    status, body: replace the file in the answer, with ``headers`` added; the default status is 200.
    headers: added to the answer, replacing those of the same name (a wrong ETag or Content-Range); None removes one.
    delay: seconds to wait before answering; rate: bytes per second of the answer's body.
    cut_after: body bytes after which the connection is closed (not reset, which could discard bytes not yet read).
    ignore_range: answer 200 with the whole file; hang: never answer; garbage: these bytes instead of an HTTP answer
        (none: the connection is closed without one).
    hits: number of requests that it has applied to.
    """

    pattern: str
    times: int | None = 1
    skip: int = 0
    method: str | None = None
    ranged: bool | None = None
    status: int | None = None
    body: bytes | Contents | None = None
    headers: Mapping[str, str | None] = field(default_factory=dict)
    delay: float = 0.0
    rate: float | None = None
    cut_after: int | None = None
    ignore_range: bool = False
    hang: bool = False
    garbage: bytes | None = None
    hits: int = 0

    def matches(self, method: str, path: str, ranged: bool) -> bool:
        """Return whether a request matches this fault, regardless of counts."""
        return (
            (self.method is None or self.method == method)
            and (self.ranged is None or self.ranged == ranged)
            and re.search(self.pattern, path) is not None
        )


class Script:
    """The current faults, changed by the test's thread and read by the server's."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> None:
        """Append a fault; earlier ones have priority."""
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        """Remove all faults."""
        with self._lock:
            self._faults.clear()

    def take(self, method: str, path: str, ranged: bool) -> Fault | None:
        """Return the fault that applies to this request, and count it."""
        if not self._faults:
            return None
        with self._lock:
            for fault in self._faults:
                if (fault.times is None or fault.hits < fault.times) and fault.matches(method, path, ranged):
                    if fault.skip:
                        fault.skip -= 1
                        continue
                    fault.hits += 1
                    return fault
        return None
