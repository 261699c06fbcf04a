"""Which repository a reference opens: a bare path that exists, and the Hub's cache where the Hub cannot be asked."""

import json
import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants, hf_hub_download, snapshot_download

from analyzers.__main__ import main
from analyzers.checkpoints import Access, open_checkpoint
from analyzers.checkpoints.hub import replies
from analyzers.core.errors import CheckpointNotFound, HubUnreachable, InvalidCheckpoint, InvalidReference, NoWeights
from analyzers.language_models.samples import sample_folder
from tests.hub import Fault, LocalHub

OWNER = Access(local=True)


@pytest.fixture
def cached(hub: LocalHub) -> str:
    """The commit of org/model, which is on the Hub and in the cache."""
    folder = sample_folder("tiny-bf16-as-fp32")
    hub.add("org/model", {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()})
    return Path(snapshot_download("org/model")).name


@pytest.fixture(params=["HF_HUB_OFFLINE", "no network"])
def offline(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, hub: LocalHub, cached: str) -> None:
    """The cache is filled, and the Hub cannot be asked."""
    monkeypatch.setattr(replies, "_BACKOFF_SECONDS", 0.02)
    if request.param == "HF_HUB_OFFLINE":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    else:
        hub.fault(Fault("^/api/models/", times=None, garbage=b""))


@pytest.mark.usefixtures("offline")
def test_the_cache_answers_as_the_hub_does(capsys: pytest.CaptureFixture[str], cached: str) -> None:
    for reference in ("org/model", f"org/model@{cached}", "org/model@main"):
        assert main(["dtype", reference, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert (report["checkpoint"]["ref"], report["checkpoint"]["commit"]) == ("org/model", cached)
        assert report["checkpoint"]["public"] is False and report["lineage"]["passed_through"] == ["bf16"]
        assert "cached" in [note["code"] for note in report["notes"]]


@pytest.mark.usefixtures("offline")
def test_visitors_of_a_page_get_nothing_from_the_cache() -> None:
    with pytest.raises(HubUnreachable):
        open_checkpoint("org/model", Access())


@pytest.mark.usefixtures("offline")
def test_what_is_not_in_the_cache_is_said() -> None:
    with pytest.raises(HubUnreachable, match="This machine's cache has no snapshot of org/other@main"):
        open_checkpoint("org/other@main", OWNER)


def test_a_snapshot_that_is_incomplete_is_said_to_be_of_the_cache(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    index = json.dumps({"metadata": {}, "weight_map": {"w": "model-00001-of-00001.safetensors"}}).encode()
    hub.add("org/part", {"config.json": b"{}", "model.safetensors.index.json": index, "model-00001-of-00001.safetensors": b"x"})
    hf_hub_download("org/part", "config.json")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(NoWeights, match="only what was downloaded"):
        open_checkpoint("org/part", OWNER)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hf_hub_download("org/part", "model.safetensors.index.json")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InvalidCheckpoint, match=r"model-00001-of-00001\.safetensors.*only what was downloaded"):
        open_checkpoint("org/part", OWNER)


def test_a_bare_path_that_exists_is_a_path_but_not_on_a_page(hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(sample_folder("tiny-bf16"), tmp_path / "models" / "tiny")
    for text in ("models/tiny", "models/tiny/model.safetensors", "../" + tmp_path.name + "/models/tiny"):
        with open_checkpoint(text, OWNER) as checkpoint:
            assert checkpoint.ref == str((tmp_path / text).resolve()) and not checkpoint.public
            assert (checkpoint.notes[0].code, checkpoint.notes[0].values) == ("local-path", {"path": text})
    for words in (["check", "models/tiny"], ["sparsity", "models/tiny", "models/tiny"]):
        assert main(words) == 0
    with pytest.raises(CheckpointNotFound, match="not found on the Hub"):
        open_checkpoint("models/tiny", Access())
    with pytest.raises(InvalidReference, match="command line only"):
        open_checkpoint("./models/tiny", Access())
    with pytest.raises(CheckpointNotFound, match="not found on the Hub"):
        open_checkpoint("models/other", OWNER)
