"""Requests made to hold the app up: for everybody else it answers at once, its memory stays small, and its log too.

The attacker has addresses of its own, from 127.0.0.2 on.
"""

import json
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple
from urllib.parse import urlsplit

import psutil
import pytest

from analyzers.language_models.samples import sample_folder
from components.server.routes import plots_version
from tests.attacks.conftest import CLIENT, process_of
from tests.attacks.http_calls import inspect, result
from tests.hub import LocalHub

HEALTH_SECONDS, STORED_SECONDS = 1.0, 3.0
MOST_BYTES, MORE_BYTES, LOG_BYTES = 1.2e9, 100e6, 20_000


class Site(NamedTuple):
    """An app, where it keeps its log, and the address of a stored result."""

    url: str
    folder: Path
    stored: str


class Seen(NamedTuple):
    """What another visitor had during an attack: seconds until an answer, in the middle of all, for other tests
    run meanwhile; the app's memory, at most, and the log's growth."""

    health: float
    stored: float
    memory: float
    log: int


@pytest.fixture(scope="module")
def site(hub: LocalHub, app: str, app_folder: Path) -> Site:
    """The app, with a stored result."""
    hub.add("org/name", {path.name: path for path in sample_folder("tiny-bf16").iterdir()})
    found = re.search(r"[0-9a-f]{64}", json.dumps(result(app, "dtype", inspect("org/name"))))
    assert found is not None
    return Site(app, app_folder, f"{app}/result/{found[0]}.json")


def _memory(site: Site) -> int:
    """Of the app and its children; pages that they share count once."""
    app = process_of(site.url)
    total = 0
    for process in (app, *app.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total


def _connect(site: Site, address: str = "127.0.0.2") -> socket.socket:
    there = urlsplit(site.url)
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    opened.settimeout(10)
    opened.bind((address, 0))
    with suppress(ConnectionError):  # it was closed at once
        opened.connect((there.hostname, there.port))
    return opened


def _head(site: Site, request: str, *more: str) -> bytes:
    return "\r\n".join((f"{request} HTTP/1.1", f"Host: {urlsplit(site.url).netloc}", *more, "", "")).encode()


def _left(site: Site) -> int:
    """How many connections of attackers the app has not closed, or not yet accepted."""
    port, held = urlsplit(site.url).port, ("ESTABLISHED", "CLOSE_WAIT")
    return sum(each.laddr.port == port and each.status in held and each.raddr.ip != "127.0.0.1" for each in psutil.net_connections("tcp4"))


def _until_closed(site: Site) -> None:
    """Wait until the app has closed them, by itself: one that never does is found by the test's limit of time."""
    while _left(site):
        time.sleep(0.2)


@contextmanager
def _watched(site: Site) -> Iterator[list[Seen]]:
    """Ask as another visitor while this is open; what was seen is added at its end."""
    over = threading.Event()
    log = site.folder / "log"
    health, stored, memory, size = list[float](), list[float](), [0], log.stat().st_size

    def ask(url: str, times: list[float]) -> None:
        while not over.is_set():
            began = time.monotonic()
            with urllib.request.urlopen(url, timeout=120) as answer:
                answer.read()
            times.append(time.monotonic() - began)
            over.wait(0.2)

    def measure() -> None:
        while not over.is_set():
            memory.append(_memory(site))
            over.wait(0.5)

    seen: list[Seen] = []
    with ThreadPoolExecutor(3) as visitors:
        asking = [visitors.submit(ask, f"{site.url}/healthz", health), visitors.submit(ask, site.stored, stored), visitors.submit(measure)]
        try:
            yield seen
        finally:
            over.set()
        for each in asking:
            each.result()
    seen.append(Seen(median(health), median(stored), max(memory), log.stat().st_size - size))
    print(seen, f"then {_memory(site) / 1e6:.0f} MB")


def _many_values(site: Site, posts: int) -> None:
    """Bodies of as many empty lists as fit."""
    body = b'{"data": [' + b"[]," * 2_600_000 + b"[]]}"
    head = _head(site, "POST /gradio_api/call/dtype", "Content-Type: application/json", f"Content-Length: {len(body)}")

    def post(_: int) -> bytes:
        with _connect(site) as opened:
            opened.settimeout(60)
            with suppress(OSError):  # it had no turn in time
                opened.sendall(head + body)
                return opened.recv(4096)
            return b""

    with ThreadPoolExecutor(posts) as attackers:
        answers = list(attackers.map(post, range(posts)))
    said = {answer.split(b" ")[1] for answer in answers if answer}
    assert b"422" in said and said <= {b"422", b"503"}


def _unread(site: Site, connections: int) -> None:
    """Answers of megabytes that nobody reads."""
    with ExitStack() as stack:
        opened = [stack.enter_context(_connect(site)) for _ in range(connections)]
        for each in opened:
            with suppress(OSError):  # the address has too many
                each.sendall(_head(site, f"GET /plotly-{plots_version()}.js"))
        _until_closed(site)


def _half_a_head(site: Site, connections: int) -> None:
    with ExitStack() as stack:
        opened = [stack.enter_context(_connect(site)) for _ in range(connections)]
        for each in opened:
            with suppress(OSError):  # it was closed, to let others in
                each.sendall(_head(site, "GET /healthz")[:-2])
        _until_closed(site)


def _slow_bodies(site: Site, connections: int) -> None:
    """Bodies that arrive byte by byte."""
    head = _head(site, "POST /gradio_api/call/dtype", "Content-Type: application/json", "Content-Length: 1000")
    with ExitStack() as stack:
        opened = [stack.enter_context(_connect(site)) for _ in range(connections)]
        piece = head
        while piece is head or _left(site):
            for each in opened:
                with suppress(OSError):
                    each.sendall(piece)
            time.sleep(0.5)
            piece = b" "


def _stalled_bodies(site: Site, connections: int) -> None:
    """Bodies of which the last byte does not arrive; whoever sends a short one is answered."""
    body = b"[" * 7_999_999
    head = _head(site, "POST /gradio_api/call/dtype", "Content-Type: application/json", "Content-Length: 8000000")

    def send(opened: socket.socket) -> None:
        with suppress(OSError):
            opened.sendall(head + body)

    with ExitStack() as stack:
        opened = [stack.enter_context(_connect(site)) for _ in range(connections)]
        attackers = stack.enter_context(ThreadPoolExecutor(connections))
        sending = [attackers.submit(send, each) for each in opened]
        time.sleep(1)
        assert result(site.url, "dtype", inspect("org/name"))
        _until_closed(site)
        for each in sending:
            each.result()


def _endless_answers(site: Site, connections: int) -> None:
    """Streams that end when their clients leave, for as many connections as there may be."""
    with ExitStack() as stack:
        for number in range(connections):
            opened = stack.enter_context(_connect(site, f"127.0.0.{2 + number % 5}"))
            with suppress(OSError):
                opened.sendall(_head(site, f"GET /gradio_api/heartbeat/{number}"))
        time.sleep(5)  # longer than it takes the app to begin them, while others wait


def _flood(site: Site, stack: ExitStack, connections: int, sent: bytes) -> None:
    opened = [stack.enter_context(_connect(site)) for _ in range(connections)]
    for each in opened:
        each.settimeout(0.5)
        with suppress(OSError):
            each.sendall(sent)


def _chunks_of_a_byte(site: Site, connections: int) -> None:
    head = _head(site, "POST /gradio_api/call/dtype", "Transfer-Encoding: chunked")
    with ExitStack() as stack:
        _flood(site, stack, connections, head + b"1\r\n[\r\n" * 40_000)
        _until_closed(site)


def _many_at_once(site: Site, connections: int) -> None:
    """Requests that do not wait for the answers to those before."""
    with ExitStack() as stack:
        _flood(site, stack, connections, _head(site, "GET /healthz") * 1000)
        time.sleep(CLIENT)


@pytest.mark.parametrize(
    ("attack", "size"),
    [
        (_many_values, 1),
        (_unread, 100),
        (_half_a_head, 100),
        (_stalled_bodies, 100),
        (_chunks_of_a_byte, 5),
        pytest.param(_many_values, 12, marks=pytest.mark.exhaustive),
        pytest.param(_unread, 300, marks=pytest.mark.exhaustive),
        pytest.param(_half_a_head, 1100, marks=pytest.mark.exhaustive),
        pytest.param(_slow_bodies, 300, marks=pytest.mark.exhaustive),
        pytest.param(_endless_answers, 600, marks=pytest.mark.exhaustive),
        pytest.param(_many_at_once, 20, marks=pytest.mark.exhaustive),
    ],
)
def test_others_notice_nothing_of_an_attack(site: Site, attack: Callable[[Site, int], None], size: int) -> None:
    before = _memory(site)
    with _watched(site) as seen:
        attack(site, size)
    (found,) = seen
    assert found.health < HEALTH_SECONDS and found.stored < STORED_SECONDS
    assert found.memory < MOST_BYTES and found.log < LOG_BYTES
    assert _memory(site) < before + MORE_BYTES
