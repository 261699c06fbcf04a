"""Reading from the Hub, through the real client against a local Hub: what is resolved, who gets the token, what is read."""

import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from analyzers.checkpoints.hub.hub_repository import HubRepository, open_hub, search_models
from analyzers.checkpoints.repository import Access, read_range
from analyzers.core import limits
from analyzers.core.errors import (
    AccessDenied,
    CheckpointNotFound,
    HiddenRepository,
    HubMisbehaved,
    HubUnreachable,
    InvalidCheckpoint,
    LimitExceeded,
    MantissaError,
)
from tests.hub import Fault, LocalHub

ANYBODY = Access()
WEIGHTS = "model.safetensors"
DATA = random.Random(7).randbytes(1_000_003)
TOKEN = "hf_" + "s3cret" * 4


@pytest.fixture
def repository(hub: LocalHub) -> Iterator[HubRepository]:
    hub.add("org/model", {WEIGHTS: DATA, "config.json": b"{}"})
    opened = open_hub("org/model", None, ANYBODY)
    yield opened
    opened.close()


def described(hub: LocalHub, **changes: object) -> None:
    """Let the Hub describe any repository like this."""
    info = {"id": "org/model", "sha": "a" * 40, "private": False, "gated": False, "siblings": [], **changes}
    hub.fault(Fault("^/api/models/", times=None, body=json.dumps(info).encode()))


def test_former_name_and_commit_are_resolved_once(hub: LocalHub) -> None:
    first = hub.add("openai-community/gpt2", {WEIGHTS: b"old weights", "config.json": b"{}"}, aliases=["gpt2"])
    repository = open_hub("gpt2", None, ANYBODY)
    hub.commit("openai-community/gpt2", {WEIGHTS: b"new weights"})
    assert (repository.ref, repository.commit, repository.public) == ("openai-community/gpt2", first, True)
    assert dict(repository.files) == {WEIGHTS: 11, "config.json": 2}
    file = repository.open(WEIGHTS)
    assert (file.path, file.size, read_range(file, 4, 7)) == (WEIGHTS, 11, b"weights")
    assert read_range(file, 0, 11) == b"old weights"
    assert all(first in request.path for request in hub.requests if "/resolve/" in request.path)


def test_revisions(hub: LocalHub) -> None:
    first = hub.add("org/model", {WEIGHTS: b"one"})
    second = hub.commit("org/model", {WEIGHTS: b"three"}, revision="refs/pr/1")
    assert open_hub("org/model", "refs/pr/1", ANYBODY).commit == second
    assert open_hub("org/model", first, ANYBODY).commit == first
    for revision in ("nowhere", "..", "", "a/../b", "\n"):
        with pytest.raises(CheckpointNotFound, match="revision"):
            open_hub("org/model", revision, ANYBODY)


def test_unknown_private_and_gated(hub: LocalHub) -> None:
    hub.add("org/private", {WEIGHTS: DATA}, private=True)
    hub.add("org/gated", {WEIGHTS: DATA}, gated="auto")
    hub.user(TOKEN, "someone", ["org/private", "org/gated"])
    hub.user("hf_other", "other")
    for access in (ANYBODY, Access("hf_other")):
        for name in ("org/private", "org/unknown"):
            with pytest.raises(HiddenRepository, match=r"was not found on the Hub, or is private.* your own login or token"):
                open_hub(name, None, access)
        with pytest.raises(AccessDenied, match=rf"org/gated is gated: accept its licence at {hub.url}/org/gated, "):
            read_range(open_hub("org/gated", None, access).open(WEIGHTS), 0, 8)
    for name in ("org/private", "org/gated"):
        repository = open_hub(name, None, Access(TOKEN))
        assert read_range(repository.open(WEIGHTS), 5, 8) == DATA[5:13]
        assert not repository.public


def test_refused_and_impossible_tokens(hub: LocalHub) -> None:
    hub.add("org/model", {WEIGHTS: DATA})
    for token in ("hf_wrong", "two\r\nlines: x", "", "\u20ac"):
        with pytest.raises(AccessDenied, match="token") as caught:
            open_hub("org/model", None, Access(token))
        assert not token or token not in str(caught.value)


def test_token_goes_to_the_hub_alone(hub: LocalHub) -> None:
    hub.cdn = True
    hub.add("org/private", {WEIGHTS: DATA}, private=True)
    hub.user(TOKEN, "someone", ["org/private"])
    assert read_range(open_hub("org/private", None, Access(TOKEN)).open(WEIGHTS), 10, 10) == DATA[10:20]
    assert {request.token for request in hub.requests if request.origin == "hub"} == {TOKEN}
    stored = [request for request in hub.requests if request.origin == "cdn"]
    assert stored
    assert not any(request.authorized or "cookie" in request.headers for request in stored)


def test_redirects_take_the_token_along_on_the_hub_only(hub: LocalHub) -> None:
    sha = hub.add("org/private", {WEIGHTS: DATA}, private=True)
    hub.user(TOKEN, "someone", ["org/private"])
    moved = f"/org/private/resolve/{sha}/{WEIGHTS}"
    for location in (moved, hub.url + moved):
        file = open_hub("org/private", None, Access(TOKEN)).open(WEIGHTS)
        hub.fault(Fault(WEIGHTS, method="HEAD", status=307, headers={"Location": location}))
        assert read_range(file, 0, 3) == DATA[:3]
    hub.fault(Fault("^/api/", status=307, headers={"Location": f"{hub.cdn_url}/api/models/org/private"}))
    with pytest.raises(MantissaError):
        open_hub("org/private", None, Access(TOKEN))
    assert all((request.token == TOKEN) == (request.origin == "hub") for request in hub.requests)


def test_servers_own_token_serves_no_visitor(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.user(TOKEN, "server", ["org/private"])
    hub.add("org/private", {WEIGHTS: DATA}, private=True)
    with pytest.raises(CheckpointNotFound):
        open_hub("org/private", None, ANYBODY)
    search_models("private")
    assert not any(request.authorized for request in hub.requests)
    assert read_range(open_hub("org/private", None, Access(token=True)).open(WEIGHTS), 0, 3) == DATA[:3]
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(CheckpointNotFound):  # logged out: asks without a token
        open_hub("org/private", None, Access(token=True))


def test_sixteen_threads_read_what_the_file_holds(hub: LocalHub) -> None:
    hub.cdn = True
    hub.add("org/model", {WEIGHTS: DATA})
    file = open_hub("org/model", None, ANYBODY).open(WEIGHTS)
    draw = random.Random(1)
    ranges = [(start, draw.randint(0, min(50_000, len(DATA) - start))) for start in (draw.randrange(len(DATA)) for _ in range(300))]
    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(lambda part: read_range(file, *part) == DATA[part[0] : part[0] + part[1]], ranges))
    assert sum(request.method == "HEAD" for request in hub.requests) == 1


def test_the_whole_file_and_outside_of_it(repository: HubRepository, tmp_path: Path) -> None:
    file = repository.open(WEIGHTS)
    assert read_range(file, 0, len(DATA)) == DATA
    assert list(tmp_path.iterdir()) == []  # nothing is written
    for offset, length in ((-1, 1), (len(DATA), 1), (len(DATA) - 1, 2)):
        with pytest.raises(InvalidCheckpoint, match="1,000,003"):
            read_range(file, offset, length)
    assert read_range(file, len(DATA), 0) == b""
    with pytest.raises(CheckpointNotFound, match="no file"):
        repository.open("other.safetensors")


@pytest.mark.parametrize("path", ["../../api/whoami-v2", "/etc/passwd", "a//b", "./a", "a\\b", "a\x9bb", "\ud800", "", "a" * 1001])
def test_hostile_file_names(hub: LocalHub, path: str) -> None:
    described(hub, siblings=[{"rfilename": path, "size": 1}])
    with pytest.raises(InvalidCheckpoint, match="not a safe relative path") as caught:
        open_hub("org/model", None, ANYBODY)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("changes", "error"),
    [(changes, HubMisbehaved) for changes in (
        {"sha": "main"}, {"sha": None}, {"sha": "A" * 40}, {"sha": "b" * 40}, {"id": "../x"}, {"id": 3})]
    + [({"siblings": [entry]}, HubMisbehaved) for entry in (
        3, {"size": 3}, {"rfilename": "a"}, *({"rfilename": "a", "size": size} for size in (-1, True, "9", 1 << 70)))]
    + [({"disabled": True}, AccessDenied), ({"siblings": [{"rfilename": name, "size": 0} for name in "abc"]}, LimitExceeded)],
)  # fmt: skip
def test_descriptions_that_cannot_be(
    hub: LocalHub, changes: dict[str, object], error: type[MantissaError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REPOSITORY_FILES", 2)
    described(hub, **changes)
    with pytest.raises(error):
        open_hub("org/model", "a" * 40, ANYBODY)


@pytest.mark.parametrize(
    ("changes", "public"),
    [({}, True), ({"private": True}, False), ({"gated": "manual"}, False), ({"private": None}, False), ({"gated": "?"}, False)],
)
def test_public_only_where_the_hub_says_so(hub: LocalHub, changes: dict[str, object], public: bool) -> None:
    described(hub, **changes)
    assert open_hub("org/model", None, ANYBODY).public is public


def test_search(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("org/llama-one", "org/llama-two", "org/other"):
        hub.add(name, {})
    hub.add("org/llama-secret", {}, private=True)
    assert search_models("llama") == ["org/llama-one", "org/llama-two"]
    assert search_models("llama", limit=1) == ["org/llama-one"]
    assert search_models("no such \ud800 thing") == []
    hub.fault(Fault("^/api/models$", status=429, headers={"Retry-After": "2"}))
    with pytest.raises(HubUnreachable):
        search_models("llama")
    hub.fault(Fault("^/api/models$", body=b'[{"id": "../x"}, {"id": 3}, 4, {"id": "org/fine"}]'))
    assert search_models("llama") == ["org/fine"]


def test_closing_stops_reads_and_waits(hub: LocalHub, repository: HubRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HUB_TIMEOUT_SECONDS", 2)
    file = repository.open(WEIGHTS)
    read_range(file, 0, 1)
    hub.fault(Fault(WEIGHTS, times=1, hang=True))
    hub.fault(Fault(WEIGHTS, times=1, rate=10))
    hub.fault(Fault(WEIGHTS, times=None, status=429, headers={"Retry-After": "50"}))
    errors: list[str] = []

    def read() -> None:
        try:
            read_range(file, 0, 100_000)
        except Exception as error:
            errors.append(str(error))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    while sum(request.range is not None for request in hub.requests) < 5:
        threads[0].join(0.01)
    repository.close()
    repository.close()
    for thread in threads:
        thread.join(5)
    assert errors == ["Reading from the Hub was stopped."] * 4
