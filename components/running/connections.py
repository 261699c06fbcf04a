"""Connections of the app's server: how long they wait for their clients, and how many there may be.

uvicorn waits without end for the head of a request, and for a client that does not read its answer. hypercorn and granian have a deadline
for one of these each, and no server lets others in where it has too many connections that do nothing.
"""

import asyncio
import socket
import struct
import time
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from analyzers import limits

try:
    from resource import RLIMIT_NOFILE, getrlimit
except ImportError:  # Windows has no such limit
    _MOST = limits.CONNECTIONS
else:
    # Half of the files that this process may open: the others are for the library, for analyses and for what they read.
    _MOST = min(limits.CONNECTIONS, getrlimit(RLIMIT_NOFILE)[0] // 2)


class Connection(H11Protocol):
    """A connection that ends once it has waited for its client for CLIENT_SECONDS: for the whole head of a request, for more of a body, or
    for the client to read. Where there are too many, that one ends which has waited for longest.
    """

    _waiting_since: float | None = None
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._begin()
        if len(self.connections) > _MOST:
            waiting = [each for each in self.connections if isinstance(each, Connection) and each._waiting_since is not None]
            min(waiting, key=lambda each: each._waiting_since or 0.0)._end()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_asked():
            self._begin()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._begin()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._begin()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _is_asked(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _begin(self) -> None:
        """Begin to wait, if it is the client's turn."""
        self._stop()
        if not self._is_asked() or self.cycle.more_body or self.flow.write_paused:
            self._waiting_since = time.monotonic()
            self._deadline = self.loop.call_later(limits.CLIENT_SECONDS, self._end)

    def _end(self) -> None:
        """End it at once. What was sent and not read is lost: the system would go on trying."""
        self._stop()
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._waiting_since = None
