"""Loading models from a Hub: at one commit, once, without a trace of what not everybody may read."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from analyzers.checkpoints import Access
from analyzers.core.errors import (
    AccessDenied,
    CheckpointNotFound,
    HubError,
    MantissaError,
    ModelTooLarge,
)
from analyzers.language_models import weight_folder
from analyzers.language_models.batch import Batch
from analyzers.language_models.load import OpenModel
from analyzers.language_models.samples import sample_folder
from tests.hub import Fault, LocalHub
from tests.language_models.repositories import TOKEN, WEIGHTS, batch_of, files, loaded, parts_of


def test_a_public_repository_is_fetched_once_at_the_commit_and_kept(hub: LocalHub, tmp_path: Path) -> None:
    commit = hub.add("org/tiny", files())
    later = hub.commit("org/tiny", {WEIGHTS: files("tiny-bf16-as-fp32")[WEIGHTS]})
    with OpenModel(f"org/tiny@{commit}", Access()) as opened:
        assert opened.commit == commit != later
        opened.check(batch_of(opened))
        before = len(parts_of(hub, WEIGHTS))
        steps = list(opened.fetch())
        size = len(files()[WEIGHTS])
        assert (steps[0].done, steps[-1].done, {step.total for step in steps}) == (0, size, {size})
        assert [step.done for step in steps] == sorted(step.done for step in steps)
        model: Any = opened.load()
        expected = load_file(sample_folder("tiny-fp32") / WEIGHTS)["model.norm.weight"]
        assert torch.equal(model.model.norm.weight, expected)
        assert parts_of(hub, WEIGHTS)[before:] == [size]
    fetched = len(parts_of(hub, WEIGHTS))
    with OpenModel(f"org/tiny@{commit}", Access()) as opened:
        assert torch.equal(loaded(opened).get_parameter("model.norm.weight"), expected)
    assert size not in parts_of(hub, WEIGHTS)[fetched:]  # headers aside
    assert {request.path.split("/")[-1] for request in hub.requests} <= {
        commit,
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        WEIGHTS,
    }


@pytest.mark.parametrize("gated", [False, "manual"])
def test_what_not_everybody_may_read_leaves_no_trace(hub: LocalHub, tmp_path: Path, gated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/secret", files("tiny-sharded"), private=not gated, gated=gated)
    hub.user(TOKEN, "visitor", ["org/secret"])
    hub.cdn = True
    kept = tmp_path / "kept"
    kept.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(kept))
    with pytest.raises((CheckpointNotFound, AccessDenied)):
        OpenModel("org/secret", Access())
    assert list(kept.iterdir()) == []
    with OpenModel("org/secret", Access(token=TOKEN)) as opened:
        assert not opened.facts.public
        opened.check(batch_of(opened))
        steps = list(opened.fetch())
        assert (
            steps[-1].done == steps[-1].total == sum(len(content) for name, content in files("tiny-sharded").items() if name.endswith("rs"))
        )
        assert loaded(opened) is not None
        assert len(list(kept.iterdir())) == 1
    assert list(kept.iterdir()) == []
    assert not [path for path in (tmp_path / "hf-home").rglob("*") if path.is_file()]
    for request in hub.requests:
        if request.origin == "cdn":
            assert "authorization" not in request.headers


@pytest.mark.parametrize(("status", "error"), [(403, AccessDenied), (404, CheckpointNotFound), (500, HubError)])
def test_a_hub_that_fails_while_it_sends(hub: LocalHub, status: int, error: type[MantissaError]) -> None:
    hub.add("org/tiny", files())
    with OpenModel("org/tiny", Access()) as opened:
        hub.fault(Fault(rf"{WEIGHTS}$", times=None, method="GET", status=status))
        with pytest.raises(error, match=r"the Hub|The Hub"):
            list(opened.fetch())


def test_a_model_that_is_too_large_says_so_before_anything_is_fetched(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/large", files(vocab_size=20_000_000_000))
    sentence = r"The model needs 46\.\d TB of memory to run and this machine has [\d.,]+ GB"
    with OpenModel("org/large", Access()) as opened, pytest.raises(ModelTooLarge, match=sentence):
        opened.check(batch_of(opened))
    assert max(parts_of(hub, WEIGHTS)) < len(files()[WEIGHTS])
    with OpenModel("sample:tiny-fp32", Access()) as opened:
        opened.check(batch_of(opened))
        with pytest.raises(ModelTooLarge, match="needs 1,000 TB"):
            opened.check(batch_of(opened), extra=10**15)
        monkeypatch.setattr("analyzers.language_models.load.available_bytes", lambda device: [10**6])
        long = Batch(torch.zeros(256, 512, dtype=torch.int64), torch.empty(0), (512,) * 256)
        with pytest.raises(ModelTooLarge, match="fewer or shorter samples, or a narrower --dtype"):
            opened.check(long)


def test_weights_that_do_not_fit_on_the_disk(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/tiny", files())
    monkeypatch.setattr(weight_folder, "_SPARE", 1 << 60)  # the disk has less
    with OpenModel("org/tiny", Access()) as opened:
        with pytest.raises(ModelTooLarge, match=r"The weights need [\d.]+ [kM]B of disk and this machine has 0 B left"):
            opened.check(batch_of(opened))
        with pytest.raises(ModelTooLarge):
            list(opened.fetch())
        monkeypatch.setattr(weight_folder, "_SPARE", 1)
        list(opened.fetch())
        monkeypatch.setattr(weight_folder, "_SPARE", 1 << 60)
        opened.check(batch_of(opened))  # they are here now
    with OpenModel("sample:tiny-fp32", Access()) as opened:
        opened.check(batch_of(opened))
