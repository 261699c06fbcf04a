"""``--contribute``: a pull request on the dataset with the caller's own token, and only of what everybody can read."""

from pathlib import Path
from typing import Any

import pytest

from analyzers.__main__ import main
from analyzers.language_models.samples import sample_folder
from components.library import Library
from components.site import stored_results
from tests.hub import LocalHub

DATASET, TOKEN = "org/library", "hf_" + "visitorVISITOR" * 3
# The client uploads with an argument that its transport calls outdated.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def models(hub: LocalHub, monkeypatch: pytest.MonkeyPatch, library: Library) -> LocalHub:
    """A Hub with a public and a private model, and the dataset, which a visitor may read."""
    files: dict[str, Any] = {path.name: path for path in sample_folder("tiny-bf16").iterdir()}
    hub.add("org/name", files)
    hub.add("org/private", files, private=True)
    hub.add(DATASET, {"README.md": b"# labels"}, kind="dataset")
    hub.user(TOKEN, "ann", ["org/private"])
    monkeypatch.setenv("MANTISSA_DATASET", DATASET)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return hub


def test_a_result_becomes_a_pull_request(models: LocalHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dtype", "org/name", "--json", "--contribute"]) == 0
    said = capsys.readouterr()
    assert f"contributed: {models.url}/datasets/{DATASET}/discussions/" in said.err
    report = stored_results.read("dtype", said.out.encode())
    (path,) = [path for path in models.files(DATASET, revision="refs/pr/1", kind="dataset") if path.startswith("results/")]
    content = models.files(DATASET, revision="refs/pr/1", kind="dataset")[path]
    assert report.id.encode() in content
    assert TOKEN.encode() not in content
    assert TOKEN not in said.out + said.err
    assert models.files(DATASET, kind="dataset").keys() == {"README.md"}


@pytest.mark.parametrize("model", ["org/private", "sample:tiny-bf16", "local"])
def test_what_not_everybody_can_read_is_not_contributed(
    models: LocalHub, capsys: pytest.CaptureFixture[str], tmp_path: Path, model: str
) -> None:
    named = str(sample_folder("tiny-bf16")) if model == "local" else model
    assert main(["dtype", named, "--contribute"]) == 2
    said = capsys.readouterr()
    assert "cannot be contributed" in said.err
    assert len(said.err.splitlines()) == 1
    assert "bf16" in said.out  # the answer is there all the same
    assert not any(request.path.endswith("/commit/main") for request in models.requests)


def test_what_is_missing_is_said_before_any_work(
    models: LocalHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MANTISSA_DATASET")
    assert main(["dtype", "org/name", "--contribute"]) == 2
    assert "set MANTISSA_DATASET" in capsys.readouterr().err
    assert models.requests == []


def test_without_a_login_it_says_how_to_log_in(
    models: LocalHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    assert main(["dtype", "org/name", "--contribute"]) == 2
    assert "hf auth login" in capsys.readouterr().err
