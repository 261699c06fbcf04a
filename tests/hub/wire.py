"""Reads requests and sends answers in HTTP/1.1 on raw sockets, with throttles, cuts and delays if scripted.

The implementation is custom because it must answer thousands of range requests per second on a shared core, send without copying, and
break the protocol on purpose.
"""

import asyncio
import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qs, unquote

from .faults import Fault
from .repositories import Contents, InMemory, OnDisk

PIECE = 1 << 20  # bytes passed to the kernel at once
THROTTLED_PIECE = 1 << 18  # small enough that connections share a throttle evenly
MAX_HEAD = 1 << 16
MAX_BODY = 1 << 28
REASONS = {status.value: status.phrase for status in HTTPStatus}


@dataclass
class Request:
    """A request as received, and the answer (status 0: no HTTP answer).

    origin: "hub" or "cdn"; target: path and query as sent; path: decoded; segments: decoded one by one, so that an
    encoded slash stays inside its segment; range: the Range header; token: from Authorization; sent: body bytes.
    """

    origin: str
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes = b""
    status: int = 0
    sent: int = 0
    started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        path, _, query = self.target.partition("?")
        self.path = unquote(path)
        self.segments = [unquote(segment) for segment in path.split("/")[1:]]
        self.query = parse_qs(query) if query else {}
        self.range = self.headers.get("range")
        authorization = self.headers.get("authorization")
        self.authorized = authorization is not None
        self.token = authorization.removeprefix("Bearer ") if authorization is not None else None


@dataclass
class Answer:
    """An answer: status, headers and ``length`` bytes of ``contents`` from ``offset``."""

    status: int
    headers: dict[str, str]
    contents: Contents
    offset: int = 0
    length: int = -1  # -1: to the end

    def __post_init__(self) -> None:
        if self.length < 0:
            self.length = self.contents.size - self.offset


class Throttle:
    """A limit in bytes per second shared by all connections. ``rate`` None: no limit; may be changed at any time."""

    def __init__(self) -> None:
        self.rate: float | None = None
        self._free = 0.0

    async def wait(self, nbytes: int) -> None:
        """Wait until ``nbytes`` may be sent. At most 0.1 s of unused time is made up for."""
        if self.rate:
            now = time.perf_counter()
            start = max(self._free, now - 0.1)
            self._free = start + nbytes / self.rate
            if start > now:
                await asyncio.sleep(start - now)


class Connection:
    """A client's connection, used by one task."""

    def __init__(self, sock: socket.socket, origin: str, throttle: Throttle) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._origin = origin
        self._throttle = throttle
        self._buffer = b""

    async def receive(self) -> Request | None:
        """Read the next request; None if the client has disconnected or does not send HTTP."""
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > MAX_HEAD or not await self._more():
                return None
        head, self._buffer = self._buffer[:end], self._buffer[end + 4 :]
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3:
            return None
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY:
            return None
        while len(self._buffer) < int(length):
            if not await self._more():
                return None
        body, self._buffer = self._buffer[: int(length)], self._buffer[int(length) :]
        return Request(self._origin, words[0], words[1], headers, body)

    async def _more(self) -> bool:
        data = await self._loop.sock_recv(self._sock, 1 << 16)
        self._buffer += data
        return bool(data)

    async def send(self, request: Request, answer: Answer, fault: Fault | None) -> bool:
        """Send the answer as changed by the fault. Returns False if the connection cannot be used any more."""
        if fault is not None and fault.garbage is not None:
            await self._loop.sock_sendall(self._sock, fault.garbage)
            return False
        request.status = answer.status
        lines = [f"HTTP/1.1 {answer.status} {REASONS.get(answer.status, 'Unknown')}", f"Content-Length: {answer.length}"]
        lines += [f"{name}: {value}" for name, value in answer.headers.items()]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
        length = 0 if request.method == "HEAD" else answer.length
        if fault is not None and (fault.cut_after is not None or fault.rate is not None):
            return await self._send_harmed(request, head, answer, length, fault)
        if length <= PIECE and self._throttle.rate is None:  # a single system call for typical range requests
            request.sent = length  # counted first, since a test may read it as soon as its client has the bytes
            await self._loop.sock_sendall(self._sock, b"".join((head, answer.contents.read(answer.offset, length))))
            return True
        await self._loop.sock_sendall(self._sock, head)
        if isinstance(answer.contents, OnDisk) and self._throttle.rate is None:
            request.sent = length
            with answer.contents.path.open("rb") as file:
                await self._loop.sock_sendfile(self._sock, file, answer.offset, length)
            return True
        while request.sent < length:
            piece = min(length - request.sent, THROTTLED_PIECE if self._throttle.rate else PIECE)
            await self._throttle.wait(piece)
            request.sent += piece
            await self._loop.sock_sendall(self._sock, answer.contents.read(answer.offset + request.sent - piece, piece))
        return True

    async def _send_harmed(self, request: Request, head: bytes, answer: Answer, length: int, fault: Fault) -> bool:
        await self._loop.sock_sendall(self._sock, head)
        end = length if fault.cut_after is None else min(length, fault.cut_after)
        while request.sent < end:
            piece = min(end - request.sent, PIECE)
            if fault.rate is not None:
                piece = min(piece, max(1, int(fault.rate / 20)))
                await asyncio.sleep(piece / fault.rate)
            request.sent += piece
            await self._loop.sock_sendall(self._sock, answer.contents.read(answer.offset + request.sent - piece, piece))
        return end == length


def plain(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
    """Make an answer from bytes, JSON unless ``headers`` set another type."""
    return Answer(status, {"Content-Type": "application/json", **(headers or {})}, InMemory(body))


def answer_json(value: object, status: int = 200) -> Answer:
    """Make a JSON answer."""
    return plain(status, json.dumps(value).encode())
