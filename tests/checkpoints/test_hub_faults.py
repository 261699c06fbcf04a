"""What the Hub may do wrong, and that each ends in the right error, or the right bytes, in bounded time."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import pytest
from huggingface_hub import constants

from analyzers.checkpoints.hub import replies
from analyzers.checkpoints.hub.hub_repository import open_hub
from analyzers.checkpoints.hub.ranges import HubFile
from analyzers.checkpoints.repository import Access, read_range
from analyzers.core import limits
from analyzers.core.errors import (
    AccessDenied,
    CheckpointNotFound,
    HubError,
    HubMisbehaved,
    HubThrottled,
    HubUnreachable,
    MantissaError,
)
from tests.cases import few
from tests.hub import Fault, LocalHub

WEIGHTS = "model.safetensors"
DATA = random.Random(11).randbytes(600_000)
API = "^/api/models/"
FILE = f"{WEIGHTS}|/signed/"


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HUB_TIMEOUT_SECONDS", 2)
    monkeypatch.setattr(limits, "HUB_WAIT_SECONDS", 3)
    monkeypatch.setattr(replies, "HUB_ATTEMPTS", 3)
    monkeypatch.setattr(replies, "_BACKOFF_SECONDS", 0.02)


@pytest.fixture(params=few([False, True], {1}, ["hub", "cdn"]))
def file(hub: LocalHub, request: pytest.FixtureRequest) -> HubFile:
    hub.cdn = request.param
    hub.add("org/model", {WEIGHTS: DATA})
    return open_hub("org/model", None, Access()).open(WEIGHTS)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


# What any request may be answered with -> the error
BAD: list[tuple[dict[str, Any], type[MantissaError]]] = [
    ({"status": 401}, CheckpointNotFound),
    ({"status": 403}, AccessDenied),
    ({"status": 404}, CheckpointNotFound),
    ({"status": 403, "headers": {"X-Error-Code": "GatedRepo"}}, AccessDenied),
    ({"status": 416}, HubMisbehaved),
    ({"status": 418}, HubMisbehaved),
    ({"status": 429}, HubThrottled),
    ({"status": 429, "headers": {"Retry-After": "0"}}, HubThrottled),
    ({"status": 500}, HubUnreachable),
    ({"status": 503}, HubUnreachable),
    ({"status": 302, "headers": {"Location": "gopher://x/y"}}, HubError),
    ({"status": 302, "headers": {"Location": "http://[::bad/"}}, HubError),
    ({"status": 302}, HubMisbehaved),
    ({"status": 302, "headers": {"Location": "/api/models/org/model"}}, HubError),
    ({"garbage": b"\x00\xff\xfe garbage\r\n\r\n" * 20}, HubError),
    ({"garbage": b""}, HubUnreachable),
    ({"garbage": b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n[1, "}, HubError),
    ({"garbage": b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"}, HubError),
    ({"garbage": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000}, HubError),
    ({"hang": True}, HubUnreachable),
]
_STEPS = ("opening", "locating", "reading from the Hub", "reading from the storage")


@pytest.mark.parametrize(("step", "bad"), few(product(_STEPS, BAD), {number + number % 4 * len(BAD) for number in range(len(BAD))}))
def test_failures(hub: LocalHub, step: str, bad: tuple[dict[str, Any], type[MantissaError]]) -> None:
    fault, error = bad
    hub.cdn = step.endswith("storage")
    hub.add("org/model", {WEIGHTS: DATA})
    opened = open_hub("org/model", None, Access())
    file = opened.open(WEIGHTS)
    if step.startswith("reading"):
        read_range(file, 0, 1)
        if hub.cdn and fault.get("status") in (302, 401, 403, 404):
            error = HubUnreachable  # an expired address, which the Hub renews
    pattern, method = {"opening": (API, None), "locating": (WEIGHTS, "HEAD")}.get(step, (FILE, "GET"))
    hub.fault(Fault(pattern, times=None, method=method, **fault))
    with within(100), pytest.raises(error) as caught:
        read_range(open_hub("org/model", None, Access()).open(WEIGHTS) if step == "opening" else file, 0, 100)
    assert str(caught.value).endswith(".")
    # Only the page of a gated model, where its licence is accepted, has an address that the visitor needs.
    assert hub.url not in str(caught.value).replace(f"{hub.url}/org/model,", "")


@pytest.mark.parametrize("body", [b"", b"<html>", b"[" * 100_000, b"\xff\xfe\x00", b"null", b'{"id": "org/model"}', b"1" * 5000])
def test_a_description_that_is_none(hub: LocalHub, body: bytes) -> None:
    hub.fault(Fault(API, times=None, body=body))
    with pytest.raises(HubMisbehaved):
        open_hub("org/model", None, Access())


def test_offline_mode(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubUnreachable, match="HF_HUB_OFFLINE"):
        open_hub("org/model", None, Access())
    assert hub.requests == []


def test_cuts_are_resumed(hub: LocalHub, file: HubFile) -> None:
    read_range(file, 0, 1)
    cuts = hub.fault(Fault(FILE, times=6, ranged=True, cut_after=90_000))
    assert read_range(file, 7, len(DATA) - 7) == DATA[7:]
    assert cuts.hits == 6  # more than HUB_ATTEMPTS, as each got on
    starts = [int(request.range.removeprefix("bytes=").partition("-")[0]) for request in hub.requests if request.range]
    assert starts == [0, *range(7, 7 + 7 * 90_000, 90_000)]


def test_cuts_without_progress_end(hub: LocalHub, file: HubFile) -> None:
    read_range(file, 0, 1)
    hub.fault(Fault(FILE, times=None, ranged=True, cut_after=10))
    with within(100), pytest.raises(HubUnreachable, match="breaks off"):
        read_range(file, 0, 100_000)


def test_an_ignored_range_is_not_read(hub: LocalHub, file: HubFile) -> None:
    hub.fault(Fault(FILE, times=None, ranged=True, ignore_range=True))
    with pytest.raises(HubMisbehaved, match="something else than bytes"):
        read_range(file, 0, len(DATA) - 1)
    assert sum(request.method == "GET" for request in hub.requests if WEIGHTS in request.path or request.origin == "cdn") == 1
    assert read_range(file, 0, len(DATA)) == DATA  # a range that is the whole file


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Range": None},
        {"Content-Range": "bytes 1-100/600000"},
        {"Content-Range": "bytes 0-99/600001"},
        {"Content-Range": "bytes 0-99/*"},
        {"Content-Range": "bytes 0-198/600000"},
        {"Content-Encoding": "gzip"},
        {"ETag": '"another"'},
    ],
)
def test_another_part_than_asked_for(hub: LocalHub, file: HubFile, headers: dict[str, str | None]) -> None:
    read_range(file, 0, 1)
    hub.fault(Fault(FILE, times=None, ranged=True, headers=headers))
    with pytest.raises(HubMisbehaved):
        read_range(file, 0, 100)


def test_more_and_less_than_asked_for(hub: LocalHub, file: HubFile) -> None:
    read_range(file, 0, 1)
    head = b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-99/600000\r\nContent-Length: %d\r\n\r\n"
    for length in (101, 99):
        fault = hub.fault(Fault(FILE, times=None, garbage=head % length + bytes(length)))
        with pytest.raises(HubMisbehaved, match="something else than bytes"):
            read_range(file, 0, 100)
        assert fault.hits == 1  # another try would not help
        hub.clear_faults()
    # without a Content-Length, the end of the connection is the end of the reply
    for length, error in ((101, HubMisbehaved), (99, HubUnreachable)):
        hub.fault(Fault(FILE, times=None, garbage=head.replace(b"Content-Length: %d\r\n", b"") + bytes(length)))
        with pytest.raises(error, match="more" if length > 100 else "less"):
            read_range(file, 0, 100)
        hub.clear_faults()


def test_expired_addresses_are_renewed(hub: LocalHub) -> None:
    hub.cdn = True
    hub.add("org/model", {WEIGHTS: DATA})
    file = open_hub("org/model", None, Access()).open(WEIGHTS)
    for start in (0, 1000, 2000):
        assert read_range(file, start, 500) == DATA[start : start + 500]
        hub.expire_signed_urls()
    assert sum(request.method == "HEAD" for request in hub.requests) == 3


def test_the_file_behind_a_renewed_address_must_be_the_same(hub: LocalHub, file: HubFile) -> None:
    read_range(file, 0, 1)
    hub.fault(Fault(FILE, times=1, ranged=True, status=403))
    hub.fault(Fault(WEIGHTS, times=None, method="HEAD", headers={"ETag": '"other"', "X-Linked-Etag": '"other"'}))
    with pytest.raises(HubMisbehaved, match="changed"):
        read_range(file, 0, 100)


@pytest.mark.parametrize("headers", [{"X-Linked-Size": "17"}, {"X-Linked-Size": "many"}, {"X-Repo-Commit": "c" * 40}])
def test_contradictions_while_locating(hub: LocalHub, file: HubFile, headers: dict[str, str | None]) -> None:
    hub.fault(Fault(WEIGHTS, times=None, method="HEAD", headers=headers))
    with pytest.raises(HubMisbehaved):
        read_range(file, 0, 100)


@pytest.mark.parametrize(
    ("headers", "status"), few(product([{"Retry-After": "1"}, {"RateLimit": '"resolvers";r=0;t=1'}], [429, 503]), {1, 2})
)
def test_asked_to_wait_a_little(hub: LocalHub, file: HubFile, headers: dict[str, str | None], status: int) -> None:
    hub.fault(Fault(FILE, times=1, ranged=True, status=status, headers=headers))
    start = time.monotonic()
    assert read_range(file, 0, 100) == DATA[:100]
    if status == 429 or "Retry-After" in headers:
        assert time.monotonic() - start > 0.99


@pytest.mark.parametrize("value", ["3600", "9" * 30])
def test_asked_to_wait_for_long(hub: LocalHub, file: HubFile, value: str) -> None:
    hub.fault(Fault(FILE, times=None, ranged=True, status=429, headers={"Retry-After": value}))
    with within(100), pytest.raises(HubThrottled, match=r"wait for [0-9,]+ seconds"):
        read_range(file, 0, 100)
