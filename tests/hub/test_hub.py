"""The real client against the local Hub: reading, moving branches, access, the CDN, virtual checkpoints, another process."""

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx2
import numpy as np
import pytest
from huggingface_hub import HfApi, get_session, hf_hub_download, list_models, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors import safe_open
from safetensors.torch import load_file

from tests.cases import few

from . import Contents, Generated, HubProcess, LocalHub
from .architectures import llama, llama_tensors
from .generated import checkpoint
from .updates import changed_counts

WEIGHTS = bytes(range(256)) * 40


def resolve(hub: LocalHub, target: str, **headers: str) -> httpx2.Response:
    return get_session().get(f"{hub.url}/{target}", headers=headers)


def test_model_info_lists_every_file_with_its_size(hub: LocalHub) -> None:
    sha = hub.add("org/tiny", {"config.json": b"{}", "model.safetensors": WEIGHTS}, info={"config": {"model_type": "llama"}})
    info = HfApi().model_info("org/tiny", files_metadata=True)
    assert info.sha == sha and re.fullmatch("[0-9a-f]{40}", sha)
    assert info.config == {"model_type": "llama"}
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or []}
    assert {name: sibling.size for name, sibling in siblings.items()} == {"config.json": 2, "model.safetensors": 10240}
    assert siblings["config.json"].lfs is None and siblings["model.safetensors"].lfs is not None
    assert HfApi().model_info("org/tiny").siblings is not None
    assert [value.lower() for value in hub.requests[0].query["blobs"]] == ["true"]


def test_search_finds_what_the_caller_may_see(hub: LocalHub) -> None:
    for name in ("org/llama-a", "org/llama-b", "org/gpt"):
        hub.add(name, {"config.json": b"{}"})
    hub.add("org/llama-secret", {"config.json": b"{}"}, private=True)
    hub.add("org/llama-data", {"x.csv": b"1"}, kind="dataset")
    hub.user("hf_friend", "friend", ["org/llama-secret"])
    assert [model.id for model in list_models(search="LLAMA")] == ["org/llama-a", "org/llama-b"]
    assert [model.id for model in list_models(search="llama", limit=1)] == ["org/llama-a"]
    assert len(list(list_models(search="llama", token="hf_friend"))) == 3


def test_download_of_one_file_and_of_a_snapshot(hub: LocalHub, tmp_path: Path) -> None:
    on_disk = tmp_path / "weights.bin"
    on_disk.write_bytes(WEIGHTS)
    made = Generated(5, lambda offset, length: b"hello"[offset : offset + length], "hello")
    sha = hub.add("org/tiny", {"config.json": b"{}", "sub/weights.bin": on_disk, "sub/deep/made.txt": made, "empty.txt": b""})
    assert Path(hf_hub_download("org/tiny", "sub/weights.bin")).read_bytes() == WEIGHTS
    folder = Path(snapshot_download("org/tiny"))
    assert folder.name == sha
    assert {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()} == {
        "config.json": b"{}", "sub/weights.bin": WEIGHTS, "sub/deep/made.txt": b"hello", "empty.txt": b"",
    }  # fmt: skip


def test_tree_and_paths_info(hub: LocalHub) -> None:
    hub.add("org/data", {"a.csv": b"1", "sub/b.csv": b"22", "sub/deep/c.csv": b"333"}, kind="dataset")
    api = HfApi()
    assert [entry.path for entry in api.list_repo_tree("org/data", repo_type="dataset")] == ["a.csv", "sub"]
    assert [entry.path for entry in api.list_repo_tree("org/data", "sub", repo_type="dataset")] == ["sub/b.csv", "sub/deep"]
    recursive = {entry.path for entry in api.list_repo_tree("org/data", recursive=True, repo_type="dataset")}
    assert recursive == {"a.csv", "sub", "sub/b.csv", "sub/deep", "sub/deep/c.csv"}
    (entry,) = api.get_paths_info("org/data", ["sub/deep/c.csv", "missing"], repo_type="dataset")
    assert getattr(entry, "size", None) == 3


def test_a_long_tree_comes_in_pages(hub: LocalHub) -> None:
    hub.add("org/many", {f"{number:04}.txt": b"" for number in range(2500)})
    assert len(list(HfApi().list_repo_tree("org/many"))) == 2500
    assert len(hub.requests) == 3


@pytest.mark.parametrize(
    ("asked", "expected", "content_range"),
    [
        ("bytes=0-0", WEIGHTS[:1], "bytes 0-0/10240"),
        ("bytes=100-299", WEIGHTS[100:300], "bytes 100-299/10240"),
        ("bytes=10000-99999", WEIGHTS[10000:], "bytes 10000-10239/10240"),
        ("bytes=10230-", WEIGHTS[10230:], "bytes 10230-10239/10240"),
        ("bytes=-10", WEIGHTS[-10:], "bytes 10230-10239/10240"),
    ],
)
def test_range_reads(hub: LocalHub, asked: str, expected: bytes, content_range: str) -> None:
    sha = hub.add("org/tiny", {"model.safetensors": WEIGHTS})
    reply = resolve(hub, "org/tiny/resolve/main/model.safetensors", Range=asked)
    assert (reply.status_code, reply.content, reply.headers["Content-Range"]) == (206, expected, content_range)
    assert (reply.headers["X-Repo-Commit"], reply.headers["Accept-Ranges"]) == (sha, "bytes")
    assert (hub.requests[-1].range, hub.requests[-1].status, hub.requests[-1].sent) == (asked, 206, len(expected))
    assert hub.totals() == {"requests": 1, "ranges": 1, "bytes": len(expected)}


def test_a_range_beyond_the_end_is_refused(hub: LocalHub) -> None:
    hub.add("org/tiny", {"model.safetensors": WEIGHTS})
    reply = resolve(hub, "org/tiny/resolve/main/model.safetensors", Range="bytes=10240-10250")
    assert (reply.status_code, reply.headers["Content-Range"]) == (416, "bytes */10240")


def test_main_moves_and_old_commits_stay(hub: LocalHub) -> None:
    first = hub.add("org/tiny", {"a.txt": b"1", "b.txt": b"x"})
    second = hub.commit("org/tiny", {"a.txt": b"2"}, remove=["b.txt"])
    branch = hub.commit("org/tiny", {"a.txt": b"3"}, revision="step-100")
    hub.tag("org/tiny", "refs/pr/1", first)
    contents = {revision: Path(hf_hub_download("org/tiny", "a.txt", revision=revision)).read_bytes() for revision in
                (first, second, branch, "main", "step-100", "refs/pr/1")}  # fmt: skip
    assert contents == {first: b"1", second: b"2", branch: b"3", "main": b"2", "step-100": b"3", "refs/pr/1": b"1"}
    assert HfApi().model_info("org/tiny", revision="refs/pr/1").sha == first
    with pytest.raises(EntryNotFoundError):
        hf_hub_download("org/tiny", "b.txt")


def test_a_renamed_repository_redirects(hub: LocalHub) -> None:
    hub.add("openai-community/gpt2", {"config.json": b"{}"}, aliases=["gpt2"])
    assert HfApi().model_info("gpt2").id == "openai-community/gpt2"
    assert Path(hf_hub_download("gpt2", "config.json")).read_bytes() == b"{}"


def test_unknown_things_map_to_the_clients_errors(hub: LocalHub) -> None:
    hub.add("org/tiny", {"a.txt": b"1"})
    hub.user("hf_friend", "friend")
    for token in (None, "hf_friend"):
        with pytest.raises(RepositoryNotFoundError) as caught:
            HfApi().model_info("org/nothing", token=token)
        assert caught.value.response.status_code == (404 if token else 401)
    with pytest.raises(RevisionNotFoundError):
        HfApi().model_info("org/tiny", revision="nowhere")
    with pytest.raises(RevisionNotFoundError):
        hf_hub_download("org/tiny", "a.txt", revision="nowhere")
    with pytest.raises(EntryNotFoundError):
        hf_hub_download("org/tiny", "b.txt")


def test_private_repositories_exist_only_for_those_who_may_read(hub: LocalHub) -> None:
    hub.add("org/secret", {"a.txt": b"1"}, private=True)
    hub.user("hf_friend", "friend", ["org/secret"])
    hub.user("hf_stranger", "stranger")
    for token in (False, "hf_stranger"):
        with pytest.raises(RepositoryNotFoundError):
            HfApi().model_info("org/secret", token=token)
        with pytest.raises(RepositoryNotFoundError):
            hf_hub_download("org/secret", "a.txt", token=token)
    assert HfApi().model_info("org/secret", token="hf_friend").private
    assert Path(hf_hub_download("org/secret", "a.txt", token="hf_friend")).read_bytes() == b"1"
    with pytest.raises(HfHubHTTPError, match="Invalid credentials"):
        HfApi().model_info("org/secret", token="hf_wrong")


def test_gated_repositories_show_their_files_and_refuse_them(hub: LocalHub) -> None:
    hub.add("org/gated", {"model.safetensors": WEIGHTS}, gated="manual")
    hub.user("hf_friend", "friend", ["org/gated"])
    hub.user("hf_stranger", "stranger")
    info = HfApi().model_info("org/gated", files_metadata=True)
    assert info.gated == "manual" and (info.siblings or [])[0].size == len(WEIGHTS)
    for token, status in ((False, 401), ("hf_stranger", 403)):
        with pytest.raises(GatedRepoError) as caught:
            hf_hub_download("org/gated", "model.safetensors", token=token)
        assert caught.value.response.status_code == status
    assert Path(hf_hub_download("org/gated", "model.safetensors", token="hf_friend")).read_bytes() == WEIGHTS


def test_whoami(hub: LocalHub) -> None:
    hub.user("hf_friend", "friend")
    assert HfApi().whoami(token="hf_friend")["name"] == "friend"
    with pytest.raises(HfHubHTTPError, match="Invalid user token"):
        HfApi().whoami(token="hf_wrong")


def test_the_cdn_serves_signed_urls_without_the_token(hub: LocalHub) -> None:
    hub.cdn = True
    hub.add("org/secret", {"model.safetensors": WEIGHTS, "config.json": b"{}"}, private=True)
    hub.user("hf_friend", "friend", ["org/secret"])
    assert Path(hf_hub_download("org/secret", "model.safetensors", token="hf_friend")).read_bytes() == WEIGHTS
    assert Path(hf_hub_download("org/secret", "config.json", token="hf_friend")).read_bytes() == b"{}"
    reply = resolve(hub, "org/secret/resolve/main/model.safetensors", Range="bytes=5-9", Authorization="Bearer hf_friend")
    assert (reply.status_code, reply.content) == (206, WEIGHTS[5:10])
    redirects = [request for request in hub.requests if request.status == 302]
    assert redirects and all(request.token == "hf_friend" for request in redirects)
    served = [request for request in hub.requests if request.origin == "cdn"]
    assert len(served) == 2 and not any(request.authorized for request in served)
    hub.expire_signed_urls()
    assert get_session().get(f"{hub.cdn_url}{served[-1].target}").status_code == 403


@pytest.mark.parametrize("lineage", ["bf16", "bf16-as-fp32"])
def test_virtual_checkpoints_are_safetensors(hub: LocalHub, lineage: str) -> None:
    hub.add("org/large", llama(layers=2, hidden=256, width=512, vocabulary=1000, shards=3, lineage=lineage))
    folder = Path(snapshot_download("org/large"))
    files = sorted(folder.glob("*.safetensors"))
    assert [file.name for file in files] == [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    names = []
    for file in files:
        with safe_open(file, framework="numpy" if lineage == "bf16-as-fp32" else "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - no mapping
                values = opened.get_tensor(name)
                names.append(name)
                if lineage == "bf16-as-fp32":
                    assert not (values.view(np.uint32) & 0xFFFF).any()
    assert len(names) == 2 * 9 + 3 and "model.layers.0.self_attn.q_proj.weight" in names


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


def test_the_hub_runs_in_another_process_and_so_does_the_client(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "config.json").write_bytes(b"{}")
    with HubProcess("--folder", f"org/tiny={tmp_path / 'files'}", "--cdn") as hub:
        script = "from huggingface_hub import hf_hub_download as get; print(open(get('org/tiny', 'config.json')).read())"
        environ = os.environ | hub.environ(tmp_path / "home")
        done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=110)
        assert (done.returncode, done.stdout.strip()) == (0, "{}"), done.stderr
        assert hub.totals()["bytes"] == 2
