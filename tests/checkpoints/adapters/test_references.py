"""BASE+ADAPTER as a reference: how it is split, resolved, written into links and keys, and read back from them."""

import json
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
import torch
from safetensors.torch import save

from analyzers.checkpoints import Access, open_checkpoint, open_whole, parse_reference, summands
from analyzers.checkpoints.reference import with_commits
from analyzers.comparison.sparsity import SparsityReport, SparsityRequest
from analyzers.comparison.sparsity import analyze as sparsity
from analyzers.core.errors import InvalidReference, MantissaError
from analyzers.core.request import Progress
from analyzers.dtype import DtypeReport, DtypeRequest
from analyzers.dtype import analyze as dtype
from components import store
from components.fields import filled
from components.result import links
from tests.hub import LocalHub

_NAME = "model.layers.0.self_attn.q_proj"


def _hub_models(hub: LocalHub, base: str = "org/base") -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    weight, a, b = torch.randn(32, 16), torch.randn(2, 16), torch.randn(32, 2)
    hub.add("org/base", {"config.json": b"{}", "model.safetensors": save({f"{_NAME}.weight": weight.bfloat16()})})
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": base}
    factors = {f"base_model.model.{_NAME}.lora_A.weight": a, f"base_model.model.{_NAME}.lora_B.weight": b}
    hub.add("org/ad", {"adapter_config.json": json.dumps(config).encode(), "adapter_model.safetensors": save(factors)})
    return {"weight": weight, "a": a, "b": b}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("org/base+org/ad", [("org/base", 1.0), ("org/ad", 1.0)]),
        ("gpt2 + org/ad", [("gpt2", 1.0), ("org/ad", 1.0)]),
        ("org/base@v1+org/ad@main", [("org/base@v1", 1.0), ("org/ad@main", 1.0)]),
        ("org/base+0.7*org/a+-.3*org/b", [("org/base", 1.0), ("org/a", 0.7), ("org/b", -0.3)]),
        ("sample:tiny-bf16+sample:tiny-adapter", [("sample:tiny-bf16", 1.0), ("sample:tiny-adapter", 1.0)]),
        ("org/base@v1.0+cu", [("org/base@v1.0+cu", 1.0)]),
    ],
)
def test_parts(text: str, parts: list[tuple[str, float]]) -> None:
    assert [(part.text, part.weight) for part in summands(text, local=False)] == parts
    reference = parse_reference(text, local=False)
    assert (reference.kind == "merged") == (len(parts) > 1)
    assert len(reference.all) == len(parts)


@pytest.mark.parametrize(
    "text",
    ["org/base+x*org/ad", "org/base+0*org/ad", "org/base+nan*org/ad", "org/base+" + "+".join(["org/ad"] * 9), "org/base+org/ad/more",
     "org/base+/etc/passwd", "+org/ad", "org/base+hf_abcdefghijklmnopqrstuvwxyz/x"],
)  # fmt: skip
def test_bad_references(text: str) -> None:
    with pytest.raises(InvalidReference):
        parse_reference(text, local=False)


def test_names_of_files_that_contain_a_plus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a+b/c", "plain", "x+y"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    def parts(text: str) -> list[str]:
        return [part.text for part in summands(text, local=True)]

    assert parts("./a+b/c") == ["./a+b/c"]
    assert parts("a+b/c") == ["a+b/c"]
    assert parts("./a+b/c+./plain") == ["./a+b/c", "./plain"]
    assert parts("./plain+./a+b/c") == ["./plain", "./a+b/c"]
    assert parts("./plain+0.5*./x+y") == ["./plain", "./x+y"]
    assert parts(f"{tmp_path}/plain+{tmp_path}/x+y") == [f"{tmp_path}/plain", f"{tmp_path}/x+y"]


def test_on_the_hub(hub: LocalHub) -> None:
    """The merged values, with revisions, and of an adapter alone, which is merged into the base that its configuration names."""
    _hub_models(hub)
    with open_checkpoint("org/base@main+0.5*org/ad@main", Access()) as checkpoint:
        assert checkpoint.ref == "org/base+0.5*org/ad"
        assert checkpoint.public and [note.values["weight"] for note in checkpoint.notes] == [0.5]
        pinned = with_commits(checkpoint.ref, checkpoint.commit)
    assert parse_reference(pinned, local=False).all[1].revision is not None
    with open_checkpoint(pinned, Access()) as again:
        assert (again.ref, again.commit) == (checkpoint.ref, checkpoint.commit)
    with open_whole("org/ad", Access()) as alone:
        assert alone.ref == "org/base+org/ad"


@pytest.mark.parametrize(
    ("base", "said"), [("org/ad", "is an adapter itself"), ("org/other", "is an adapter itself"), ("org/none", "none")]
)
def test_bases_that_are_none(base: str, said: str, hub: LocalHub) -> None:
    _hub_models(hub, base)
    config = json.dumps({"peft_type": "LORA", "r": 2, "base_model_name_or_path": "org/ad"}).encode()
    factors = {f"{_NAME}.lora_A.weight": torch.ones(2, 16), f"{_NAME}.lora_B.weight": torch.ones(32, 2)}
    hub.add("org/other", {"adapter_config.json": config, "adapter_model.safetensors": save(factors)})
    with pytest.raises(MantissaError, match=said):
        open_whole("org/ad", Access())


def test_sparsity_of_a_base_and_its_adapter(hub: LocalHub) -> None:
    """Named alone, as BASE+ADAPTER, or with commits, the same report; the base is read once."""
    _hub_models(hub)
    reports = []
    for tuned in ("org/ad", "org/base+org/ad"):
        *_, report = sparsity(SparsityRequest(base="org/base", tuned=(tuned,), mode="exact"))
        assert isinstance(report, SparsityReport)
        reports.append(report)
    assert reports[0].id == reports[1].id
    assert reports[0].request.tuned == ("org/base+org/ad",)
    assert reports[0].num_changed == 32 * 16


def _report(items: object) -> DtypeReport:
    *_, report = (item for item in items if not isinstance(item, Progress))  # type: ignore[attr-defined]
    assert isinstance(report, DtypeReport)
    return report


def test_links_and_keys(hub: LocalHub) -> None:
    _hub_models(hub)
    report = _report(dtype(DtypeRequest(model="org/base+org/ad")))
    assert report.checkpoint.ref == report.request.model == "org/base+org/ad"
    link = links.query(links.as_read(report))
    assert "+" not in link, "an unescaped plus is a space"
    assert dict(parse_qsl(link[1:]))["model"] == with_commits(report.checkpoint.ref, report.checkpoint.commit)
    typed, _ = filled(DtypeRequest, parse_qsl("model=org/base+0.5*org/ad"))
    assert typed["model"] == "org/base+0.5*org/ad"
    request = DtypeRequest(model="org/base+org/ad")
    assert store.resolve(request).key == store.key_of(report)
    assert store.names_commits(links.as_read(report))
