"""Connections of the app's server: how long they wait for their clients, and how many there may be.

uvicorn waits without end for the head of a request, and for a client that does not read its answer. hypercorn and granian have a deadline
for one of these each, and no server lets others in where it has too many connections that do nothing.
"""

import asyncio
import math
import socket
import struct
import time
from collections import Counter
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

_CONNECTIONS = 1_000  # Each is an open file; at most half of the files that the app may open.
CLIENT_SECONDS = 20  # A connection ends that asks for nothing, or of whose answer nobody reads 64 kB, for so long.

try:
    from resource import RLIMIT_NOFILE, getrlimit
except ImportError:  # Windows has no such limit
    MOST = _CONNECTIONS
else:
    # Half of the files that this process may open: the others are for the library, for analyses and for what they read.
    MOST = min(_CONNECTIONS, getrlimit(RLIMIT_NOFILE)[0] // 2)
# Read at once: what h11 makes of it holds everybody else up. A head may be many requests, each to be answered.
_HEAD_BYTES, _BODY_BYTES = 1 << 11, 1 << 16
# A connection may wait that long before it ends to let others in: else whoever connects in a flood would be the one.
_NEW_SECONDS = 1


class Connection(H11Protocol, asyncio.BufferedProtocol):
    """A connection that ends once it has waited for its client for CLIENT_SECONDS: for the whole head of a request, for more of a body, or
    for the client to read. Where there are too many, in all or of one address, that one ends which has waited for longest.
    """

    _buffer = bytearray()
    _waiting_since: float | None = None
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._begin()
        known = [each for each in self.connections if isinstance(each, Connection) and not each.transport.is_closing()]
        others = [each for each in known if each is not self]
        own = [each for each in others if each._address() == self._address()]
        # A proxy has the connections of all its visitors.
        if len(own) >= MOST // 4 and self._address() not in getattr(self.app, "trusted_hosts", ()):
            _end_one([*own, self])
        elif len(others) >= MOST:
            late = time.monotonic() - _NEW_SECONDS
            waiting = [each for each in others if (each._waiting_since or math.inf) < late]
            _end_one(waiting or _of_one_address(others))

    def get_buffer(self, sizehint: int) -> bytearray:
        """Where to put what the client sends next."""
        self._buffer = bytearray(_BODY_BYTES if self._is_asked() and self.cycle.more_body else _HEAD_BYTES)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take what the client sent."""
        data, self._buffer = bytes(self._buffer[:nbytes]), bytearray()
        if len(self.conn.trailing_data[0]) > _HEAD_BYTES and self._is_asked() and not self.cycle.more_body:
            self._end()  # it asks and asks, and does not wait for answers
        else:
            self.data_received(data)

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

    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def _begin(self) -> None:
        """Begin to wait, if it is the client's turn."""
        self._stop()
        if not self._is_asked() or self.cycle.more_body or self.flow.write_paused:
            self._waiting_since = time.monotonic()
            self._deadline = self.loop.call_later(CLIENT_SECONDS, self._end)

    def _end(self) -> None:
        """End it at once. What was sent and not read is lost: the system would go on trying."""
        self._stop()
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._waiting_since = None


def _end_one(connections: list[Connection]) -> None:
    """End the one that has waited for longest, or any if none waits."""
    min(connections, key=lambda each: each._waiting_since or math.inf)._end()


def _of_one_address(connections: list[Connection]) -> list[Connection]:
    """Those of the address that has the most."""
    address = Counter(each._address() for each in connections).most_common(1)[0][0]
    return [each for each in connections if each._address() == address]
