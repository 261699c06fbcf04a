"""A pickled checkpoint is reported like the same weights in safetensors, in every layout and mode."""

from pathlib import Path
from typing import Any

import torch

from analyzers.checkpoints import Access, open_checkpoint, read_coverage
from analyzers.dtype import DtypeReport
from tests.checkpoints.pickles.pickled_files import saved
from tests.dtype.reports import inspect, parsed
from tests.hub import LocalHub

LOCAL = Access(local=True)


def _same(report: DtypeReport, *ignored: str) -> dict[str, Any]:
    """What must not depend on how the weights are stored."""
    value = parsed(report)
    for name in ("id", "timing", "environment", "advice", *ignored):
        value.pop(name)
    for name in ("ref", "commit", "public"):
        value["checkpoint"].pop(name)
    for covered in value["coverage"]:
        covered.pop("ref")
    value["request"].pop("model")
    return value


def test_views_are_reported_like_their_copies(tmp_path: Path) -> None:
    base = torch.randn(96, 160, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16).to(torch.float32)
    views = {"a.weight": base.t(), "b.weight": base[:, 32:64], "c.weight": base[3].expand(40, 160), "d.bias": base[:, 5], "e.weight": base}
    for name, each in (("views", views), ("copies", {name: view.contiguous().clone() for name, view in views.items()})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pytorch_model.bin").write_bytes(saved(each))
    ours, theirs = (_same(inspect(tmp_path / name, mode="exact"), "requests") for name in ("views", "copies"))
    assert ours == theirs
    assert ours["lineage"]["passed_through"] == ["bf16"]
    quick = inspect(tmp_path / "views", budget=20_000)
    assert quick.bytes_read <= 20_000 and quick.values_read > 3_000


def test_a_large_file_on_the_hub_is_opened_with_few_small_requests(hub: LocalHub, tmp_path: Path) -> None:
    state = {f"model.layers.{i}.mlp.up_proj.weight": torch.empty(2_100, 4_000, dtype=torch.bfloat16) for i in range(300)}
    with torch.serialization.skip_data():
        torch.save(state, tmp_path / "pytorch_model.bin")
    hub.add("org/large", {"pytorch_model.bin": tmp_path / "pytorch_model.bin"})
    before = hub.totals()
    with open_checkpoint("org/large", Access()) as checkpoint:
        assert checkpoint.nbytes > 5_000_000_000 and len(checkpoint.tensors) == 300
    after = hub.totals()
    assert after["bytes"] - before["bytes"] < 500_000
    assert after["requests"] - before["requests"] < 25


def test_tied_weights_count_once(tmp_path: Path) -> None:
    shared, bias = torch.randn(50, 8), torch.randn(50)
    state = {"lm_head.weight": shared, "model.embed_tokens.weight": shared, "cls.bias": bias, "cls.decoder.bias": bias, "part": shared[:3]}
    (tmp_path / "pytorch_model.bin").write_bytes(saved(state))
    with open_checkpoint(str(tmp_path), LOCAL) as checkpoint:
        assert [tensor.name for tensor in checkpoint.tensors] == ["cls.bias", "model.embed_tokens.weight", "part"]
        assert checkpoint.parameters == 50 * 8 + 50 + 3 * 8
        account = read_coverage(checkpoint, checkpoint.tensors, checkpoint.tensors, ())
        assert account.share == 1 and account.classes["tied"].parameters == 50 * 8 + 50
        assert [tensor.name for tensor in checkpoint.aliases] == ["lm_head.weight", "cls.decoder.bias"]
