"""The real client against the local Hub: reading, access, the CDN, scripted faults, virtual checkpoints."""

import re
import socket
import time
from pathlib import Path

import httpx2
import numpy as np
import pytest
from huggingface_hub import HfApi, get_session, hf_hub_download, snapshot_download
from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from safetensors.torch import load_file

from tests.cases import few

from . import Contents, Fault, Generated, LocalHub
from .architectures import llama, llama_tensors
from .generated import checkpoint
from .updates import changed_counts

WEIGHTS = bytes(range(256)) * 40
PATH = "org/tiny/resolve/main/model.safetensors"


@pytest.fixture
def tiny(hub: LocalHub) -> str:
    """The first commit of org/tiny."""
    return hub.add("org/tiny", {"model.safetensors": WEIGHTS, "config.json": b"{}"})


def get(hub: LocalHub, path: str = PATH, timeout: httpx2.Timeout | float = 30.0, **headers: str) -> httpx2.Response:
    return get_session().get(f"{hub.url}/{path}", headers=headers, timeout=timeout)


def test_model_info_and_a_snapshot(hub: LocalHub, tmp_path: Path) -> None:
    on_disk = tmp_path / "weights.bin"
    on_disk.write_bytes(WEIGHTS)
    made = Generated(5, lambda offset, length: b"hello"[offset : offset + length], "hello")
    files: dict[str, bytes | Path | Contents] = {
        "config.json": b"{}",
        "sub/weights.bin": on_disk,
        "sub/deep/made.txt": made,
        "empty.txt": b"",
    }
    sha = hub.add("org/tiny", files, info={"config": {"model_type": "llama"}}, aliases=["tiny"])
    info = HfApi().model_info("tiny", files_metadata=True)
    assert (info.id, info.sha, info.config) == ("org/tiny", sha, {"model_type": "llama"}) and re.fullmatch("[0-9a-f]{40}", sha)
    sizes = {sibling.rfilename: (sibling.size, sibling.lfs is not None) for sibling in info.siblings or []}
    assert sizes == {"config.json": (2, False), "sub/weights.bin": (10240, True), "sub/deep/made.txt": (5, False), "empty.txt": (0, False)}
    folder = Path(snapshot_download("org/tiny"))
    contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert contents == {"config.json": b"{}", "sub/weights.bin": WEIGHTS, "sub/deep/made.txt": b"hello", "empty.txt": b""}


def test_trees_come_in_pages(hub: LocalHub) -> None:
    hub.add("org/many", {f"{number:04}.txt": b"" for number in range(2500)} | {"sub/deep/c.csv": b"333"}, kind="dataset")
    api = HfApi()
    assert len(list(api.list_repo_tree("org/many", repo_type="dataset"))) == 2501 and len(hub.requests) == 3
    assert [entry.path for entry in api.list_repo_tree("org/many", "sub", recursive=True, repo_type="dataset")] == [
        "sub/deep", "sub/deep/c.csv"]  # fmt: skip


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("asked", "expected", "content_range"),
    [
        ("bytes=100-299", WEIGHTS[100:300], "bytes 100-299/10240"),
        ("bytes=10000-99999", WEIGHTS[10000:], "bytes 10000-10239/10240"),
        ("bytes=10230-", WEIGHTS[10230:], "bytes 10230-10239/10240"),
        ("bytes=-10", WEIGHTS[-10:], "bytes 10230-10239/10240"),
        ("bytes=10240-10250", b"", "bytes */10240"),
    ],
)
def test_range_reads(hub: LocalHub, asked: str, expected: bytes, content_range: str) -> None:
    reply = get(hub, Range=asked)
    assert (reply.status_code, reply.content, reply.headers["Content-Range"]) == (206 if expected else 416, expected, content_range)
    assert (hub.requests[-1].range, hub.requests[-1].status, hub.requests[-1].sent) == (asked, reply.status_code, len(expected))
    assert hub.totals() == {"requests": 1, "ranges": 1, "bytes": len(expected)}


def test_main_moves_and_old_commits_stay(hub: LocalHub) -> None:
    first = hub.add("org/tiny", {"a.txt": b"1", "b.txt": b"x"})
    second = hub.commit("org/tiny", {"a.txt": b"2"}, remove=["b.txt"])
    branch = hub.commit("org/tiny", {"a.txt": b"3"}, revision="step-100")
    hub.tag("org/tiny", "refs/pr/1", first)
    contents = {revision: Path(hf_hub_download("org/tiny", "a.txt", revision=revision)).read_bytes() for revision in
                (first, second, branch, "main", "step-100", "refs/pr/1")}  # fmt: skip
    assert contents == {first: b"1", second: b"2", branch: b"3", "main": b"2", "step-100": b"3", "refs/pr/1": b"1"}
    for error, call in (
        (EntryNotFoundError, lambda: hf_hub_download("org/tiny", "b.txt")),
        (RevisionNotFoundError, lambda: HfApi().model_info("org/tiny", revision="nowhere")),
        (RepositoryNotFoundError, lambda: HfApi().model_info("org/nothing")),
    ):
        with pytest.raises(error):
            call()


def test_private_and_gated_repositories(hub: LocalHub) -> None:
    hub.add("org/secret", {"a.txt": b"1"}, private=True)
    hub.add("org/gated", {"a.txt": b"1"}, gated="manual")
    hub.user("hf_friend", "friend", ["org/secret", "org/gated"])
    hub.user("hf_stranger", "stranger")
    for token, statuses in ((False, (401, 401)), ("hf_stranger", (404, 403))):
        for name, kind, status in zip(("org/secret", "org/gated"), (RepositoryNotFoundError, GatedRepoError), statuses, strict=True):
            with pytest.raises(kind) as caught:
                hf_hub_download(name, "a.txt", token=token)
            assert caught.value.response.status_code == status
    assert HfApi().model_info("org/gated").gated == "manual"
    for name in ("org/secret", "org/gated"):
        assert Path(hf_hub_download(name, "a.txt", token="hf_friend")).read_bytes() == b"1"
    assert HfApi().whoami(token="hf_friend")["name"] == "friend"
    with pytest.raises(HfHubHTTPError, match="Invalid credentials"):
        HfApi().model_info("org/secret", token="hf_wrong")


def test_the_cdn_serves_signed_urls_without_the_token(hub: LocalHub) -> None:
    hub.cdn = True
    hub.add("org/secret", {"model.safetensors": WEIGHTS, "config.json": b"{}"}, private=True)
    hub.user("hf_friend", "friend", ["org/secret"])
    assert Path(hf_hub_download("org/secret", "config.json", token="hf_friend")).read_bytes() == b"{}"
    reply = get(hub, "org/secret/resolve/main/model.safetensors", Range="bytes=5-9", Authorization="Bearer hf_friend")
    assert (reply.status_code, reply.content) == (206, WEIGHTS[5:10])
    (served,) = (request for request in hub.requests if request.origin == "cdn")
    assert not served.authorized
    hub.expire_signed_urls()
    assert get_session().get(f"{hub.cdn_url}{served.target}").status_code == 403


# Faults: what is scripted happens, as often as asked, and nothing else.


@pytest.mark.usefixtures("tiny")
def test_faults_choose_their_requests(hub: LocalHub) -> None:
    fault = hub.fault(Fault(r"\.safetensors$", times=2, skip=1, status=503, headers={"Retry-After": "7"}))
    assert [get(hub).status_code for _ in range(4)] == [200, 503, 503, 200]
    assert fault.hits == 2 and [request.status for request in hub.requests] == [200, 503, 503, 200]
    hub.fault(Fault("tiny", times=None, method="HEAD", status=500))
    hub.fault(Fault("tiny", times=None, ranged=True, status=503))
    assert get_session().head(f"{hub.url}/{PATH}").status_code == 500
    assert (get(hub, Range="bytes=0-1").status_code, get(hub).status_code) == (503, 200)
    hub.clear_faults()
    assert get(hub, Range="bytes=0-1").status_code == 206


@pytest.mark.usefixtures("tiny")
def test_answers_are_changed_cut_or_none(hub: LocalHub) -> None:
    hub.fault(Fault("tiny", ignore_range=True))
    assert (reply := get(hub, Range="bytes=0-1")).status_code == 200 and reply.content == WEIGHTS
    hub.fault(Fault("tiny", headers={"ETag": '"other"', "Content-Range": "bytes 5-6/99", "X-Repo-Commit": None}))
    reply = get(hub, Range="bytes=0-1")
    assert (reply.headers["ETag"], reply.headers["Content-Range"]) == ('"other"', "bytes 5-6/99") and "X-Repo-Commit" not in reply.headers
    hub.fault(Fault("tiny", cut_after=1000))
    received: list[bytes] = []
    with get_session().stream("GET", f"{hub.url}/{PATH}") as cut, pytest.raises(httpx2.TransportError):
        received.extend(cut.iter_raw())
    assert b"".join(received) == WEIGHTS[:1000]
    for garbage in (b"\x00\xffSSH-2.0\r\n\r\n", b""):
        hub.fault(Fault("tiny", garbage=garbage))
        with pytest.raises(httpx2.RemoteProtocolError):
            get(hub)
    hub.fault(Fault("tiny", hang=True))
    with pytest.raises(httpx2.ReadTimeout):
        get(hub, timeout=httpx2.Timeout(30, read=0.1))
    assert get(hub).content == WEIGHTS


@pytest.mark.usefixtures("tiny")
def test_delays_and_rates(hub: LocalHub) -> None:
    hub.fault(Fault("tiny", delay=0.2))
    hub.fault(Fault("config", rate=10.0))
    for path in (PATH, "org/tiny/resolve/main/config.json"):
        start = time.perf_counter()
        get(hub, path)
        assert time.perf_counter() - start >= 0.2
    hub.rate = 20e3  # bytes per second over all connections
    start = time.perf_counter()
    assert get(hub).content == get(hub).content == WEIGHTS
    assert time.perf_counter() - start > 0.2


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("sent", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"x" * 200_000])
def test_what_is_no_http_and_clients_that_leave_harm_nobody(hub: LocalHub, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", int(hub.url.rpartition(":")[2])), timeout=60) as connection:
        connection.sendall(sent)
        try:
            answer = connection.recv(1)
        except ConnectionResetError:
            answer = b""
    assert answer == b""
    hub.fault(Fault("^/api/models/", body=Generated(10**12, lambda offset, length: b" " * length, "spaces")))
    with get_session().stream("GET", f"{hub.url}/api/models/org/tiny") as reply:
        assert next(reply.iter_raw(1 << 20)) == b" " * (1 << 20)
    assert get(hub).content == WEIGHTS


# Virtual checkpoints.


@pytest.mark.parametrize(
    ("update", "low", "high"), few([("none", 0, 0), ("scattered-0.01", 0.009, 0.011), ("small-steps", 0.15, 0.35)], {1})
)
def test_an_update_changes_as_many_elements_as_it_says(hub: LocalHub, update: str, low: float, high: float) -> None:
    pair = []
    for name, files in (("org/base", llama(1, 1024, 1500, 5000, shards=2)), ("org/tuned", llama(1, 1024, 1500, 5000, 3, update=update))):
        hub.add(name, files)
        folder = Path(snapshot_download(name))
        pair.append({key: values for path in folder.glob("*.safetensors") for key, values in load_file(path).items()})
    expected = changed_counts(llama_tensors(1, 1024, 1500, 5000), update)
    base, tuned = pair
    assert {name: int((base[name] != tuned[name]).sum()) for name in base} == expected
    assert low <= sum(expected.values()) / sum(values.numel() for values in base.values()) <= high


def test_any_range_of_a_virtual_checkpoint_is_a_slice_of_the_whole() -> None:
    files = checkpoint([("a", (7, 3)), ("empty", (0, 4)), ("b", (5,)), ("scalar", ()), ("big", (3000, 3000))], {})
    shard = files["model.safetensors"]
    assert not isinstance(shard, bytes)
    whole = bytes(shard.read(0, shard.size))
    assert len(whole) == shard.size
    generator = np.random.default_rng(0)
    for _ in range(300):
        start = int(generator.integers(0, min(shard.size, 1000)))
        length = int(generator.integers(0, min(shard.size - start, 1000)))
        assert shard.read(start, length) == whole[start : start + length]
    assert shard.read(shard.size - 10, 10) == whole[-10:]


def test_the_default_virtual_model_has_140_gigabytes() -> None:
    files: dict[str, bytes | Contents] = llama()
    sizes = [contents.size for contents in files.values() if not isinstance(contents, bytes)]
    assert len(sizes) == 30 and 139e9 < sum(sizes) < 142e9
