"""Limits how long connections wait for their clients, and how many connections there are.

uvicorn waits indefinitely for the head of a request, and for a client that does not read its response. hypercorn and granian have a
deadline for one of the two, and no server closes idle connections to accept new ones.
"""

import asyncio
import math
import socket
import struct
import time
from collections import Counter
from resource import RLIMIT_NOFILE, getrlimit
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

_CONNECTIONS = 1_000  # Most open connections. Each is an open file.
CLIENT_SECONDS = 20  # A connection ends after this time without a request, or without 64 kB of its response being read.

# Half of the files that this process may open: the other half is for the library, analyses, and the files that they read.
MOST = min(_CONNECTIONS, getrlimit(RLIMIT_NOFILE)[0] // 2)
# Most bytes read at once, since h11 parses them on the event loop. The bytes of a head may contain many requests, each with a response.
_HEAD_BYTES, _BODY_BYTES = 1 << 11, 1 << 16
# A connection is not closed for others in its first second, or a flood of connections would close each visitor's new one.
_NEW_SECONDS = 1


class Connection(H11Protocol, asyncio.BufferedProtocol):
    """A connection that ends after waiting CLIENT_SECONDS for its client: for the whole head of a request, for more of a body, or for the
    client to read. If there are too many connections, in total or from one address, the one that has waited longest ends.
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
        # Connections of all visitors of a trusted proxy have the proxy's address.
        if len(own) >= MOST // 4 and self._address() not in getattr(self.app, "trusted_hosts", ()):
            _end_one([*own, self])
        elif len(others) >= MOST:
            late = time.monotonic() - _NEW_SECONDS
            waiting = [each for each in others if (each._waiting_since or math.inf) < late]
            _end_one(waiting or _of_one_address(others))

    def get_buffer(self, sizehint: int) -> bytearray:
        """Return the buffer for the next bytes from the client."""
        self._buffer = bytearray(_BODY_BYTES if self._is_asked() and self.cycle.more_body else _HEAD_BYTES)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Process the bytes received from the client."""
        data, self._buffer = bytes(self._buffer[:nbytes]), bytearray()
        if len(self.conn.trailing_data[0]) > _HEAD_BYTES and self._is_asked() and not self.cycle.more_body:
            self._end()  # the client sends further requests without waiting for responses
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
        """Start the deadline if the next action is the client's."""
        self._stop()
        if not self._is_asked() or self.cycle.more_body or self.flow.write_paused:
            self._waiting_since = time.monotonic()
            self._deadline = self.loop.call_later(CLIENT_SECONDS, self._end)

    def _end(self) -> None:
        """Close the connection at once and discard unread data, which the system would otherwise try to deliver."""
        self._stop()
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._waiting_since = None


def _end_one(connections: list[Connection]) -> None:
    """End the connection that has waited longest, or any if none waits."""
    min(connections, key=lambda each: each._waiting_since or math.inf)._end()


def _of_one_address(connections: list[Connection]) -> list[Connection]:
    """Return the connections of the address that has the most."""
    address = Counter(each._address() for each in connections).most_common(1)[0][0]
    return [each for each in connections if each._address() == address]
