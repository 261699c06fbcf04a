"""One client cannot keep others waiting: unread calls, floods, and bodies that never end."""

import socket
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from analyzers.language_models.samples import sample_folder
from tests.attacks.conftest import BODY, LABELS, READER, process_of
from tests.attacks.http_calls import inspect, post, read, result
from tests.hub import LocalHub
from tests.hub.architectures import llama
from tests.hub.faults import Fault

SEARCH = ["llama", "", "", "", "", "", None, "updated", True, 1]
# Of the Hub for the files of org/slow, in seconds.
DELAY = 3


@pytest.fixture(autouse=True, scope="module")
def _models(hub: LocalHub) -> None:
    hub.add("org/name", {path.name: path for path in sample_folder("tiny-bf16").iterdir()})
    hub.add("org/slow", llama(lineage="bf16"))
    hub.fault(Fault("org/slow/resolve", times=None, method="GET", delay=DELAY))


def _asked_last(hub: LocalHub) -> float:
    return max((request.started for request in hub.requests if "slow" in request.path), default=0.0)


def test_unread_calls_on_a_slow_repository_refuse_nobody(app: str, hub: LocalHub) -> None:
    sent = [post(app, "dtype", inspect("org/slow", seed)) for seed in range(36)]
    assert {status for status, _ in sent} <= {200, 503}
    time.sleep(1)  # so many calls of one client are accepted in a second
    # from the same address and without a cookie: nobody reads those calls, so they take no share
    for model in ("sample:tiny-bf16", "sample:tiny-bf16", "org/name"):
        result(app, "dtype", inspect(model))
    assert not _asked_last(hub)


@pytest.mark.exhaustive
def test_a_call_that_nobody_reads_ends(app: str, hub: LocalHub) -> None:
    _, sent = post(app, "dtype", inspect("org/slow", 100))
    time.sleep(READER + 4)
    assert "nobody was reading" in read(app, "dtype", sent["event_id"])
    assert not _asked_last(hub)


@pytest.mark.exhaustive
def test_a_reader_who_leaves_ends_the_call(app: str, hub: LocalHub) -> None:
    _, sent = post(app, "dtype", inspect("org/slow", 101))
    with urllib.request.urlopen(f"{app}/gradio_api/call/dtype/{sent['event_id']}", timeout=120) as answer:
        assert answer.readline()
    end = time.monotonic() + 60
    while time.perf_counter() - _asked_last(hub) < 2 * DELAY:  # a call that goes on asks again once it is answered
        assert time.monotonic() < end
        time.sleep(0.5)


def test_one_client_has_half_of_the_slots_and_a_quarter_of_the_queue(app: str) -> None:
    greedy = {"Cookie": "mantissa=greedy"}
    over = threading.Event()

    def watch(event: str) -> None:
        with urllib.request.urlopen(f"{app}/gradio_api/call/dtype/{event}", timeout=120) as answer:
            while answer.readline() and not over.is_set():
                pass

    with ThreadPoolExecutor(40) as clients:
        watched = []
        for seed in range(200, 240):
            status, said = post(app, "dtype", inspect("org/slow", seed), greedy)
            if status != 200:
                break
            watched.append(clients.submit(watch, said["event_id"]))
            time.sleep(0.1)  # a call counts once it is read
        try:
            assert (status, said["detail"]) == (503, "Too many calls are waiting already: try again later.")
            for model in ("sample:tiny-tuned", "org/name"):
                result(app, "dtype", inspect(model, 7), {"Cookie": "mantissa=other"})
            assert not any(each.done() for each in watched), "the other client waited for the greedy one"
        finally:
            over.set()


def test_300_unread_posts_delay_nobody(app: str) -> None:
    process = process_of(app)
    before = process.cpu_times()
    with ThreadPoolExecutor(50) as attackers:
        posts = [attackers.submit(post, app, "dtype", inspect("org/slow", 400 + number)) for number in range(300)]
        while not all(each.done() for each in posts):
            result(app, "find_models", SEARCH)
    time.sleep(1)  # so many calls of one client are accepted in a second
    for _ in range(3):
        result(app, "dtype", inspect("sample:tiny-bf16"))
    assert {each.result()[0] for each in posts} <= {200, 503}
    after = process.cpu_times()
    # The event loop answers everybody: 17 s of it where each post copies the pages' descriptions, 6 s where each is accepted.
    assert after.user + after.system - before.user - before.system < 4


def test_a_body_that_does_not_end_is_closed(app: str) -> None:
    with ThreadPoolExecutor() as attackers:
        paths = ("call/dtype", "queue/join", "run/predict", "cancel")
        assert list(attackers.map(lambda path: _closed(app, f"/gradio_api/{path}"), paths)) == [True] * len(paths)


def _closed(app: str, path: str) -> bool:
    """Whether a body that does not end is refused once its time is over."""
    there = urlsplit(app)
    with socket.create_connection((there.hostname, there.port), timeout=120) as half:
        head = f"POST {path} HTTP/1.1\r\nHost: {there.netloc}\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
        half.sendall(head.encode() + b'{"data": [')
        began = time.monotonic()
        said = b""
        while part := half.recv(4096):
            said += part
        return time.monotonic() - began > BODY / 2 and b" 408 " in said and b"must arrive within" in said


def test_an_address_has_one_share_of_labels_whatever_it_says_of_itself(app: str) -> None:
    def label(number: int) -> str:
        made_up = {"Cookie": f"mantissa=made-up-{number}", "X-Forwarded-For": f"198.51.100.{number}"}
        _, sent = post(app, "add_label", ["org/name", "bf16", f"https://example.org/{number}", ""], made_up)
        return read(app, "add_label", sent["event_id"], made_up)

    answers = [label(number) for number in range(LABELS + 2)]
    assert ["event: complete" in answer for answer in answers] == [True] * LABELS + [False] * 2, answers
    assert all("MANTISSA_LABELS_PER_ADDRESS" in answer for answer in answers[LABELS:])
