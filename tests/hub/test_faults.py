"""The local Hub misbehaves as scripted, and only then."""

import gc
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx2
import pytest
from huggingface_hub import HfApi, get_session
from huggingface_hub.errors import HfHubHTTPError

from . import Fault, Generated, LocalHub

WEIGHTS = bytes(range(256)) * 40
PATH = "org/tiny/resolve/main/model.safetensors"


def get(hub: LocalHub, timeout: float | httpx2.Timeout = 30.0, **headers: str) -> httpx2.Response:
    return get_session().get(f"{hub.url}/{PATH}", headers=headers, timeout=timeout)


@pytest.fixture(autouse=True)
def tiny(hub: LocalHub) -> None:
    hub.add("org/tiny", {"model.safetensors": WEIGHTS, "config.json": b"{}"})


@pytest.mark.parametrize("status", [401, 403, 404, 416, 429, 500, 503])
def test_status_codes_are_answered_as_often_as_asked(hub: LocalHub, status: int) -> None:
    fault = hub.fault(Fault(r"\.safetensors$", times=2, skip=1, status=status, headers={"Retry-After": "7"}))
    assert [get(hub).status_code for _ in range(4)] == [200, status, status, 200]
    assert fault.hits == 2
    assert [request.status for request in hub.requests] == [200, status, status, 200]


def test_the_client_reads_the_rate_limit(hub: LocalHub) -> None:
    hub.fault(Fault("^/api/models/", status=429, headers={"Retry-After": "7", "RateLimit": '"api";r=0;t=7'}))
    with pytest.raises(HfHubHTTPError, match="Retry after 7 seconds"):
        HfApi().model_info("org/tiny")
    assert HfApi().model_info("org/tiny").id == "org/tiny"


def test_faults_choose_by_method_and_range_and_are_cleared(hub: LocalHub) -> None:
    hub.fault(Fault("tiny", times=None, method="HEAD", status=500))
    hub.fault(Fault("tiny", times=None, ranged=True, status=503))
    assert get_session().head(f"{hub.url}/{PATH}").status_code == 500
    assert get(hub, Range="bytes=0-1").status_code == 503
    assert get(hub).status_code == 200
    hub.clear_faults()
    assert get(hub, Range="bytes=0-1").status_code == 206


def test_an_ignored_range_is_the_whole_file(hub: LocalHub) -> None:
    hub.fault(Fault("tiny", ignore_range=True))
    reply = get(hub, Range="bytes=0-1")
    assert (reply.status_code, reply.content) == (200, WEIGHTS)
    assert hub.requests[-1].range == "bytes=0-1"


def test_headers_are_replaced_and_removed(hub: LocalHub) -> None:
    hub.fault(Fault("tiny", skip=1, headers={"ETag": '"other"', "Content-Range": "bytes 5-6/99", "X-Repo-Commit": None}))
    honest, wrong = get(hub, Range="bytes=0-1"), get(hub, Range="bytes=0-1")
    assert honest.headers["ETag"] != wrong.headers["ETag"] == '"other"'
    assert wrong.headers["Content-Range"] == "bytes 5-6/99"
    assert "X-Repo-Commit" in honest.headers and "X-Repo-Commit" not in wrong.headers


def test_a_cut_delivers_so_many_bytes(hub: LocalHub) -> None:
    hub.fault(Fault("tiny", cut_after=1000))
    received: list[bytes] = []
    with get_session().stream("GET", f"{hub.url}/{PATH}") as reply, pytest.raises(httpx2.TransportError):
        received.extend(reply.iter_raw())
    assert b"".join(received) == WEIGHTS[:1000]
    assert get(hub).content == WEIGHTS


def test_garbage_instead_of_http_and_instead_of_json(hub: LocalHub) -> None:
    hub.fault(Fault("tiny/resolve", garbage=b"\x00\xffSSH-2.0\r\n\r\n"))
    with pytest.raises(httpx2.RemoteProtocolError):
        get(hub)
    hub.fault(Fault("^/api/models/org/tiny", body=b'{"id": '))
    with pytest.raises(ValueError, match="Expecting value"):
        HfApi().model_info("org/tiny")


def test_no_answer_at_all(hub: LocalHub) -> None:
    hub.fault(Fault("tiny", garbage=b""))
    with pytest.raises(httpx2.RemoteProtocolError, match="without sending a response"):
        get(hub)


def test_a_huge_answer_is_made_while_it_is_sent(hub: LocalHub) -> None:
    hub.fault(Fault("^/api/models/", body=Generated(10**12, lambda offset, length: b" " * length, "spaces")))
    with get_session().stream("GET", f"{hub.url}/api/models/org/tiny") as reply:
        assert reply.headers["Content-Length"] == str(10**12)
        assert next(reply.iter_raw(1 << 20)) == b" " * (1 << 20)


def test_a_hang_ends_with_the_clients_patience(hub: LocalHub) -> None:
    hub.fault(Fault("tiny", hang=True))
    with pytest.raises(httpx2.ReadTimeout):
        get(hub, timeout=httpx2.Timeout(30, read=0.1))
    assert hub.requests[-1].status == 0
    assert get(hub).status_code == 200


def test_delays_and_trickles(hub: LocalHub) -> None:
    hub.fault(Fault("tiny", delay=0.2))
    hub.fault(Fault("tiny", rate=50.0))
    start = time.perf_counter()
    get(hub)
    assert time.perf_counter() - start >= 0.2
    start = time.perf_counter()
    assert get(hub, Range="bytes=0-9").content == WEIGHTS[:10]
    assert time.perf_counter() - start >= 0.2
    hub.delay = 0.2
    start = time.perf_counter()
    get(hub)
    assert time.perf_counter() - start >= 0.2


def test_the_throttle_is_shared_by_all_connections(hub: LocalHub) -> None:
    hub.add("org/large", {"model.safetensors": Generated(2_000_000, lambda offset, length: bytes(length), "zeros")})
    hub.rate = 10e6
    start = time.perf_counter()
    with ThreadPoolExecutor(4) as pool:
        urls = [f"{hub.url}/org/large/resolve/main/model.safetensors"] * 4
        sizes = list(pool.map(lambda url: len(get_session().get(url).content), urls))
    assert sizes == [2_000_000] * 4
    assert time.perf_counter() - start > 0.5  # 8 MB at 10 MB/s, less 0.1 s that may be caught up with


def test_a_client_that_leaves_harms_nobody(hub: LocalHub) -> None:
    hub.add("org/large", {"model.safetensors": Generated(1 << 40, lambda offset, length: bytes(length), "zeros")})
    with get_session().stream("GET", f"{hub.url}/org/large/resolve/main/model.safetensors") as reply:
        next(reply.iter_raw(1024))
    assert get(hub).content == WEIGHTS


@pytest.mark.parametrize("sent", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"x" * 200_000])
def test_what_is_no_http_closes_the_connection(hub: LocalHub, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", int(hub.url.rpartition(":")[2])), timeout=60) as connection:
        connection.sendall(sent)
        try:
            answer = connection.recv(1)
        except ConnectionResetError:
            answer = b""
    assert answer == b""
    assert get(hub).status_code == 200


@pytest.mark.exhaustive
def test_connections_of_the_last_moment_are_closed_with_the_hub() -> None:
    for _ in range(20):
        with ExitStack() as clients, LocalHub() as hub:
            for _ in range(4):
                clients.enter_context(socket.create_connection(("127.0.0.1", int(hub.url.rpartition(":")[2])), timeout=60))
    gc.collect()  # a socket left open warns when it goes, and warnings are errors here
