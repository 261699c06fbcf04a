"""Writing to the local Hub with the real client: repositories, commits on a parent, large files, pull requests, and what is refused."""

from typing import Any

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

from . import LocalHub

DATA = "org/data"
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture(autouse=True)
def data(hub: LocalHub) -> str:
    hub.user("hf_writer", "writer", writes=[DATA])
    hub.user("hf_reader", "reader")
    return hub.add(DATA, {"a.txt": b"1"}, kind="dataset")


def commit(files: dict[str, bytes], token: str = "hf_writer", delete: tuple[str, ...] = (), **options: Any) -> Any:
    operations: list[Any] = [CommitOperationAdd(path, content) for path, content in files.items()]
    operations += [CommitOperationDelete(path) for path in delete]
    return HfApi(token=token).create_commit(DATA, operations, commit_message="change", repo_type="dataset", **options)


def test_a_commit_adds_replaces_and_deletes(hub: LocalHub, data: str) -> None:
    large = bytes(range(256)) * 100
    made = commit({"b/c.txt": b"2", "d.parquet": large, "README.md": b"---\nlicense: mit\n---\n"}, delete=("a.txt",), parent_commit=data)
    assert hub.files(DATA, kind="dataset") == {"b/c.txt": b"2", "d.parquet": large, "README.md": b"---\nlicense: mit\n---\n"}
    assert HfApi().dataset_info(DATA).sha == made.oid == hub.commits(DATA, kind="dataset")[-1]
    assert [entry.path for entry in HfApi().list_repo_tree(DATA, repo_type="dataset")] == ["README.md", "b", "d.parquet"]
    uploads = len([request for request in hub.requests if request.method == "PUT"])
    commit({"e.parquet": large})
    assert len([request for request in hub.requests if request.method == "PUT"]) == uploads == 1  # it is in the storage already


def test_a_parent_that_is_not_the_head_is_refused(hub: LocalHub, data: str) -> None:
    commit({"b.txt": b"2"}, parent_commit=data)
    with pytest.raises(HfHubHTTPError) as caught:
        commit({"c.txt": b"3"}, parent_commit=data)
    assert caught.value.response.status_code == 412
    assert set(hub.files(DATA, kind="dataset")) == {"a.txt", "b.txt"}
    commit({"c.txt": b"3"})


def test_who_may_write(hub: LocalHub, data: str) -> None:
    for token, status in (("hf_reader", 403), ("hf_unknown", 401)):
        with pytest.raises(HfHubHTTPError) as caught:
            commit({"b.txt": b"2"}, token=token)
        assert caught.value.response.status_code == status
    with pytest.raises(HfHubHTTPError):
        HfApi(token=False).create_commit(DATA, [CommitOperationAdd("b.txt", b"2")], commit_message="x", repo_type="dataset")
    with pytest.raises(RepositoryNotFoundError):
        HfApi(token="hf_writer").create_commit("org/none", [CommitOperationAdd("b", b"2")], commit_message="x", repo_type="dataset")
    assert hub.commits(DATA, kind="dataset") == [data]


def test_a_pull_request_leaves_main_alone(hub: LocalHub, data: str) -> None:
    made = [commit({"b.txt": b"2"}, token="hf_reader", create_pr=True) for _ in range(2)]
    assert [each.pr_url for each in made] == [f"{hub.url}/datasets/{DATA}/discussions/{number}" for number in (1, 2)]
    assert HfApi().dataset_info(DATA).sha == data
    assert hub.files(DATA, revision="refs/pr/2", kind="dataset") == {"a.txt": b"1", "b.txt": b"2"}


def test_repositories_are_made(hub: LocalHub) -> None:
    api = HfApi(token="hf_reader")
    api.create_repo("reader/new", repo_type="dataset", private=True)
    assert api.dataset_info("reader/new").private
    with pytest.raises(HfHubHTTPError) as caught:
        api.create_repo("reader/new", repo_type="dataset")
    assert caught.value.response.status_code == 409
    api.create_repo("reader/new", repo_type="dataset", exist_ok=True)
    with pytest.raises(HfHubHTTPError) as caught:
        api.create_repo("org/new", repo_type="dataset")
    assert caught.value.response.status_code == 403
