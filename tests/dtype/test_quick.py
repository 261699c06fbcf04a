"""Quick mode: the verdicts of exact mode from a small part, and intervals that hold the exact shares."""

from pathlib import Path

import pytest
import torch

from analyzers.grids.first_blocks import FIRST_BLOCKS
from tests.cases import few
from tests.dtype.checkpoints import normal, through, write
from tests.dtype.reports import exact, inspect

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
HISTORIES = {
    "fp32": (F32,),
    "bf16": (BF16,),
    "fp16": (F16,),
    "bf16-as-fp32": (BF16, F32),
    "fp16-as-fp32": (F16, F32),
    "bf16-as-fp16": (BF16, F16),
    "fp16-as-bf16": (F16, BF16),
}


def model(*dtypes: torch.dtype) -> dict[str, torch.Tensor]:
    """Two layers, 0.8 million parameters."""
    tensors = {"model.embed_tokens.weight": through(normal(1000, 256, seed=99), *dtypes)}
    for i in range(2):
        for j, part in enumerate(("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")):
            tensors[f"model.layers.{i}.{part}.weight"] = through(normal(256, 256, seed=10 * i + j), *dtypes)
        tensors[f"model.layers.{i}.input_layernorm.weight"] = through(1 + normal(256, seed=50 + i, scale=0.1), *dtypes)
    return tensors


@pytest.mark.parametrize("name", few(HISTORIES, {0, 1, 3, 5}))
def test_verdicts_from_a_small_part(name: str, tmp_path: Path) -> None:
    folder = write(tmp_path, model(*HISTORIES[name]))
    whole, quick = exact(folder), inspect(folder, budget=1_000_000, seed=5)
    assert quick.bytes_read <= 1_000_000 < whole.bytes_read
    assert (quick.lineage.verdict, quick.lineage.passed_through) == (whole.lineage.verdict, whole.lineage.passed_through)
    assert (quick.training.verdict, quick.fp16_risk.level) == (whole.training.verdict, whole.fp16_risk.level)
    assert quick.sampled and not quick.extremes.exact
    assert quick.extremes.abs_max is not None and whole.extremes.abs_max is not None
    assert quick.extremes.abs_max <= whole.extremes.abs_max
    assert [row.norm for row in quick.tensors] == pytest.approx([row.norm for row in whole.tensors], rel=0.1)
    assert [row.name for row in quick.tensors] == [row.name for row in whole.tensors]
    assert quick.values_read == sum(row.values_read for row in quick.tensors)


def test_the_bound_is_over_the_strata(tmp_path: Path) -> None:
    """Small roles have many of the blocks and few of the values: 3/B over all blocks would say too little."""
    tensors = {f"model.layers.{i}.mlp.up_proj.weight": normal(1024, 256, seed=i) for i in range(6)}
    tensors |= {f"model.layers.{i}.self_attn.q_proj.weight": normal(64, 64, seed=10 + i) for i in range(6)}
    tensors |= {f"{name}.weight": normal(100, 256, seed=20) for name in ("model.embed_tokens", "lm_head", "visual.proj")}
    report = inspect(write(tmp_path, {name: through(each, BF16, F32) for name, each in tensors.items()}), budget=220_000)
    assert report.blocks and report.unseen and report.unseen > 4.5 / report.blocks
    assert report.grid_blocks and report.grid_blocks <= min(FIRST_BLOCKS, report.blocks)
    assert exact(tmp_path).blocks is None and exact(tmp_path).grid_blocks


def test_shares_are_weighted_by_the_size_of_strata(tmp_path: Path) -> None:
    tensors = {f"model.layers.{i}.mlp.up_proj.weight": normal(1024, 256, seed=i) for i in range(6)}
    tensors |= {f"model.layers.{i}.self_attn.q_proj.weight": through(normal(64, 64, seed=10 + i), BF16, F32) for i in range(6)}
    report = inspect(write(tmp_path, tensors), budget=220_000)
    assert report.representable.bf16 == pytest.approx(6 * 64 * 64 / (6 * 1024 * 256 + 6 * 64 * 64), abs=0.003)


def test_intervals_hold_the_exact_shares(tmp_path: Path) -> None:
    """Over many seeds and shares: at least nine in ten, and never far off."""
    tensors = model(F32)
    for i, tensor in enumerate(tensors.values()):
        flat = tensor.view(-1)
        flat[:: 3 + i % 4] = through(flat[:: 3 + i % 4], BF16, F32)
        flat[:: 97 + i] = 0
        flat[1 :: 89 + i] *= 1e-4
    folder = write(tmp_path, tensors)
    whole = exact(folder)
    assert whole.intervals == {}
    nonzero = whole.values_read - whole.counts.zero
    truth = {f"representable.{name}": share for name, share in whole.representable.model_dump().items()}
    truth |= {
        name: getattr(whole.counts, name) / whole.values_read
        for name in ("zero", "fp16_underflow", "fp16_subnormal", "fp16_inexact_subnormal")
    }
    assert nonzero > 0
    inside = asked = 0
    for seed in range(6):
        report = inspect(folder, budget=500_000, seed=seed)
        for name, interval in report.intervals.items():
            assert 0 <= interval.low <= interval.estimate <= interval.high <= 1
            share = truth[name]
            assert share is not None
            asked += 1
            inside += interval.low <= share <= interval.high
            if name.startswith("representable."):
                assert getattr(report.representable, name.removeprefix("representable.")) == interval.estimate
    assert asked >= 6 * 4 and inside >= 0.9 * asked
