"""Which matrices are decomposed: all that are small enough, or some of every kind."""

from pathlib import Path

import pytest

from analyzers.core import limits
from tests.dtype.checkpoints import normal
from tests.sparsity.checkpoints import BF16, cast, pair
from tests.sparsity.oracle_comparison import compare

LAYERED = {
    f"model.layers.{layer}.{part}.weight": (12, 8)
    for layer in range(10)
    for part in ("mlp.up_proj", "mlp.down_proj", "self_attn.q_proj")
} | {"model.embed_tokens.weight": (30, 8)}  # fmt: skip


def test_large_ones_are_left_out_and_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SPECTRAL_ELEMENTS", 96)
    monkeypatch.setattr(limits, "SPECTRAL_SIDE", 8)
    base = cast({name: normal(*shape) for name, shape in LAYERED.items() if "layers.0" in name}, BF16)
    base |= {"model.embed_tokens.weight": normal(30, 8).to(BF16), "model.layers.0.mlp.gate_proj.weight": normal(9, 9).to(BF16)}
    report = compare(*pair(tmp_path, base, base), spectral=True)
    assert {row.name for row in report.spectral} == {name for name in LAYERED if "layers.0" in name}
    assert report.notes[-1].values["matrices"] == 2
