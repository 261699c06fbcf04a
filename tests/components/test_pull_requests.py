"""The pull request that a result offers: said first, then opened with the visitor's own token by the real client, or not at all."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from analyzers.checkpoints import Access
from analyzers.core import limits
from analyzers.core.errors import AccessDenied, HubUnreachable, InvalidRequest, LimitExceeded, UnsupportedWeights
from analyzers.core.request import Progress
from analyzers.dtype_detection import DtypeRequest
from analyzers.language_models.samples import sample_folder
from components.dtype.result import copy_offer
from components.results.copy_box import why_not
from components.results.copy_offer import CopyOffer
from components.running import jobs
from components.running.pull_requests import open_copy
from components.running.queue_limits import COPIES, Caller, caller, reading
from components.site.identity import Client
from tests.hub import Fault, LocalHub

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # of huggingface_hub's own upload
TOKEN = "hf_oauth_" + "canaryCANARY" * 3
SPACE = {"SPACE_ID": "org/space", "SYSTEM": "spaces"}


@pytest.fixture
def models(hub: LocalHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LocalHub:
    """A Hub with models of bf16 values in fp32 files, and a Space whose visitor ann has logged in."""
    files: Any = {path.name: path.read_bytes() for path in sample_folder("tiny-bf16-as-fp32").iterdir()}
    hub.add("org/wide", files)
    hub.add("org/native", {path.name: path for path in sample_folder("tiny-fp32").iterdir()})
    hub.add("org/gated", files, gated="manual")
    hub.user(TOKEN, "ann", ["org/gated"])
    for name, value in {**SPACE, **hub.application("app", "secret", "ann", TOKEN)}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return hub


@pytest.fixture
def ann() -> Iterator[Caller]:
    """The caller is ann."""
    with reading("stream"):
        before = caller.set(Caller(Client("ann", "address"), "stream", Access(token=TOKEN)))
        yield caller.get()
        caller.reset(before)


def passport(model: str, **options: Any) -> CopyOffer | None:
    """The offer of a passport."""
    *_, report = jobs.job(DtypeRequest(model=model, **options))
    return copy_offer(report)


def offered(model: str, **options: Any) -> CopyOffer:
    """The offer of a passport that has one."""
    offer = passport(model, **options)
    assert offer is not None
    return offer


def leftovers() -> list[Path]:
    """What is left of temporary files."""
    return list(Path(tempfile.gettempdir()).iterdir())


def test_offered_where_a_smaller_copy_loses_nothing(models: LocalHub) -> None:
    offer = offered("org/wide", mode="exact")
    assert offer.checkpoint.bytes == 821_504 and offer.after == 410_752 and why_not(offer) == ""
    assert "would replace the weight file of org/wide: 822 kB of tensors become 411 kB or less (50% saved)" in offer.said
    assert "bf16 holds every value read bit for bit" in offer.said
    sampled = offered("org/wide", budget=100_000)
    assert "values not read yet are read first" in sampled.said
    assert sampled.button == "Open a pull request with the bf16 copy"


def test_not_offered_anywhere_else(models: LocalHub) -> None:
    assert passport("org/native") is None, "its values need fp32"
    assert passport("sample:tiny-bf16-as-fp32") is None, "it has no repository"
    assert passport("org/wide", include="mlp") is None, "nothing is known of the rest"


def test_the_command_where_the_page_cannot(models: LocalHub, ann: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    offer, gated = offered("org/wide"), offered("org/gated")
    assert "public models only" in why_not(gated) and offer.command == "mantissa shrink org/wide --out FOLDER --pull-request"
    with pytest.raises(LimitExceeded, match=r"public models only.*mantissa shrink org/gated"):
        list(open_copy(gated))
    monkeypatch.setattr(limits, "PULL_REQUEST_BYTES", 800_000)
    assert "at most 800 kB (MANTISSA_PULL_REQUEST_BYTES)" in why_not(offer)
    monkeypatch.setenv("OAUTH_SCOPES", "openid profile gated-repos read-repos")
    assert "This app opens no pull requests" in why_not(offer)
    monkeypatch.delenv("SPACE_ID")
    assert "This app opens no pull requests" in why_not(offer)


def test_opened_in_the_visitors_name(models: LocalHub, ann: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the command does, with the visitor's token in every request; main is left alone."""
    models.user("hf_server", "owner", writes=["org/wide"])
    monkeypatch.setenv("HF_TOKEN", "hf_server")
    before = models.files("org/wide")
    *steps, outcome = open_copy(offered("org/wide"))
    assert outcome.url == f"{models.url}/org/wide/discussions/1"
    assert (outcome.bytes_before, outcome.bytes_after, outcome.narrowed) == (821_504, 410_752, outcome.tensors)
    notes = [step.note for step in steps if isinstance(step, Progress)]
    assert list(dict.fromkeys(notes))[-4:] == ["writing", "reading back", "uploading", "opening the pull request"]
    proposed = models.files("org/wide", revision="refs/pr/1")
    source, copy = (load(files["model.safetensors"]) for files in (before, proposed))
    assert source.keys() == copy.keys()
    assert all(copy[name].dtype == torch.bfloat16 and torch.equal(copy[name].float(), source[name]) for name in source)
    assert models.files("org/wide") == before and {"config.json"} == {
        path for path in before.keys() - {"model.safetensors"} if proposed[path] != before[path]
    }
    assert {request.token for request in models.requests if request.authorized} == {TOKEN}
    assert leftovers() == [] and COPIES.slots == []
    with pytest.raises(InvalidRequest, match=r"org/wide has such a pull request already: .*/org/wide/discussions/1"):
        list(open_copy(offered("org/wide")))
    assert models.pull_requests("org/wide") == 1


def test_only_with_a_login_that_allows_it(models: LocalHub, ann: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = offered("org/wide")
    monkeypatch.setenv("HF_TOKEN", TOKEN)  # the server's own
    for token in (None, True):
        caller.set(ann._replace(access=Access(token=token)))
        with pytest.raises(AccessDenied):
            list(open_copy(offer))
    models.user("hf_reader", "bob", discusses=False)
    caller.set(ann._replace(access=Access(token="hf_reader")))
    with pytest.raises(AccessDenied, match="check that your login may open pull requests on it") as refused:
        list(open_copy(offer))
    assert "hf_reader" not in str(refused.value)
    assert models.pull_requests("org/wide") == 0 and leftovers() == []


def test_nothing_is_opened_that_was_not_said(models: LocalHub, ann: Caller) -> None:
    """A sample that saw only narrow values, a newer commit, a Hub that fails."""
    offer = offered("org/wide")
    with pytest.raises(UnsupportedWeights, match="No pull request was opened: 410,752 bytes would be left, not 400,000"):
        list(open_copy(offer._replace(after=400_000)))
    models.fault(Fault("commit/main", status=503))
    with pytest.raises(HubUnreachable, match="look whether org/wide has it"):
        list(open_copy(offer))
    assert models.pull_requests("org/wide") == 0
    models.clear_faults()
    models.fault(Fault("commit/main", status=412))
    with pytest.raises(InvalidRequest, match="has changed since it was read"):
        list(open_copy(offer))
    models.clear_faults()
    models.commit("org/wide", {"README.md": b"newer"})
    with pytest.raises(InvalidRequest, match="org/wide has changed since this result"):
        list(open_copy(offer))
    assert models.pull_requests("org/wide") == 0 and leftovers() == [] and COPIES.slots == []


def test_a_forged_size_does_not_fill_the_disk(models: LocalHub, ann: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stored report may say anything about its checkpoint."""
    offer = offered("org/wide")
    monkeypatch.setattr(limits, "PULL_REQUEST_BYTES", 800_000)
    forged = offer._replace(checkpoint=offer.checkpoint.model_copy(update={"bytes": 10}))
    with pytest.raises(LimitExceeded, match="the limit here is 800 kB"):
        list(open_copy(forged))


@pytest.mark.parametrize("note", ["writing", "uploading", "opening the pull request"])
def test_stopped_without_leftovers(models: LocalHub, ann: Caller, note: str) -> None:
    work = open_copy(offered("org/wide"))
    assert any(isinstance(item, Progress) and item.note == note for item in work)
    work.close()
    assert models.pull_requests("org/wide") == 0 and leftovers() == [] and COPIES.slots == []


def test_ended_at_its_time_limit(models: LocalHub, ann: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = offered("org/wide")
    monkeypatch.setattr(limits, "JOB_SECONDS", 0)
    with pytest.raises(LimitExceeded, match="MANTISSA_JOB_SECONDS"):
        list(open_copy(offer))
    assert leftovers() == [] and COPIES.slots == []


def test_one_at_a_time_for_a_visitor(models: LocalHub, ann: Caller) -> None:
    offer = offered("org/wide")
    first, second = open_copy(offer), open_copy(offer)
    next(first)
    assert next(second).note == "Waiting for other analyses to finish"
    first.close()
    assert any(item.note == "reading headers" for item in second)
    second.close()
