"""Every kind of descent, from ground truth: the verdict, the weights, and how much is proven."""

import math
from pathlib import Path

import pytest
import torch

from tests.parents.checkpoints import (
    BF16,
    F16,
    F32,
    Folder,
    each,
    merged,
    model,
    tuned,
)

FIRST, SECOND = (model(seed) for seed in (10, 11))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_a_changed_norm_or_value_is_not_the_same(folder: Folder) -> None:
    report = folder.parents(FIRST | {"model.norm.weight": SECOND["model.norm.weight"]}, FIRST)
    assert report.verdict == "derived" and report.candidates[0].equal_share == 1
    assert report.candidates[0].vectors_equal is not None and report.candidates[0].vectors_equal < 1
    name = "model.layers.1.mlp.up_proj.weight"
    changed = FIRST[name].clone()
    changed[3, 3] += 1
    assert folder.parents(FIRST | {name: changed}, FIRST).verdict == "derived"


def test_a_merge_in_bf16_arithmetic(folder: Folder) -> None:
    report = folder.parents({name: FIRST[name] * 0.3 + SECOND[name] * 0.7 for name in FIRST}, FIRST, SECOND)
    assert report.verdict == "merge" and report.fit is not None
    assert report.fit.exact_share is not None and report.fit.exact_share > 0.99


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_trained_weights_that_shrank_or_grew_are_not_called_scaled(dtype: torch.dtype, folder: Folder) -> None:
    generator = torch.Generator().manual_seed(5)

    def some_grow(x: torch.Tensor) -> torch.Tensor:
        return x * (1 + 0.02 * (torch.rand(x.shape, generator=generator) < 0.1))

    def decayed(x: torch.Tensor) -> torch.Tensor:
        spread = 0.005 * float(x.norm()) / math.sqrt(x.numel())
        return 0.99 * x + spread * torch.randn(x.shape, generator=generator)

    base = each(lambda x: x, FIRST, dtype=dtype)
    for change in (some_grow, decayed):
        matrices = {name: change(x.to(F32)).to(dtype) if x.dim() > 1 else x for name, x in base.items()}
        report = folder.parents(matrices, base, mode="exact")
        assert report.verdict == "derived" and {row.relation for row in report.conversion} <= {"equal", "changed"}
    times = {name: (1.003 * x.to(F32)).to(dtype) if x.dim() > 1 else x for name, x in base.items()}
    report = folder.parents(times, base, mode="exact")
    matrices = {name: x for name, x in base.items() if x.dim() > 1}
    assert {row.relation for row in report.conversion if row.name in matrices} == {"affine"}


@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_a_model_related_to_two_that_are_not_related_to_each_other_is_a_merge_of_them_and_more(folder: Folder, noise: float) -> None:
    child = each(lambda x, y, z: 0.5 * x + 0.4 * y + noise * z, FIRST, SECOND, model(12))
    report = folder.parents(child, FIRST, SECOND)
    assert report.verdict == "merge" and report.answer.code == "merge-partly" and report.fit is not None
    assert [row.weight for row in report.fit.parents] == pytest.approx([0.5, 0.4], abs=0.03)


def test_exceptions_are_the_values_that_are_not_the_sources(folder: Folder) -> None:
    """They have one meaning in every relation: also of values in another order, or times a factor."""
    name, scaled = "model.layers.1.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"
    child = FIRST | {name: FIRST[name].roll(1, 0), scaled: (2 * FIRST[scaled]).to(BF16)}
    rows = {row.name: row for row in folder.parents(child, FIRST, mode="exact").conversion}
    assert (rows[name].relation, rows[scaled].relation) == ("reordered", "affine")
    for key, row in rows.items():
        assert row.exceptions == int((child[key] != FIRST[key]).sum())


def test_norms_of_unrelated_models_are_other_values(folder: Folder) -> None:
    norms = {key: 1 + 0.1 * torch.randn(128, generator=torch.Generator().manual_seed(7)) for key, x in SECOND.items() if x.dim() == 1}
    unrelated = folder.parents(SECOND | {key: x.to(BF16) for key, x in norms.items()}, FIRST)
    assert {row.relation for row in unrelated.conversion} == {"other"}
    trained = folder.parents(tuned(FIRST, 0.1), FIRST)
    assert {row.relation for row in trained.conversion} == {"changed"}


def test_two_roundings_of_one_model_are_the_same_weights(folder: Folder) -> None:
    whole = model(10, dtype=F32)
    report = folder.parents({name: x.to(F16) for name, x in whole.items()}, {name: x.to(BF16) for name, x in whole.items()})
    assert (report.verdict, report.answer.values["formats"], report.advice.code) == ("same-weights", ("bf16", "fp16"), "use-unrounded")
    assert {(row.relation, row.to) for row in report.conversion} == {("rounded", "fp16")}


def test_experts_in_another_order_are_named(folder: Folder) -> None:
    parts = {
        (expert, part): 0.02 * torch.randn(64, 64, generator=torch.Generator().manual_seed(3 * expert + part))
        for expert in range(3)
        for part in (1, 2)
    }

    def mixture(*order: int) -> dict[str, torch.Tensor]:
        start = "model.layers.0.block_sparse_moe.experts"
        return {f"{start}.{at}.w{part}.weight": parts[expert, part].to(BF16) for at, expert in enumerate(order) for part in (1, 2)}

    report = folder.parents(FIRST | mixture(2, 0, 1), FIRST | mixture(0, 1, 2), mode="exact")
    rows = {row.name: row for row in report.conversion if row.relation != "equal"}
    assert {row.relation for row in rows.values()} == {"reordered"} and len(rows) == 6 and report.answer.code == "reordered"
    note = rows["model.layers.0.block_sparse_moe.experts.0.w1.weight"].note
    assert note is not None and note.values == {"name": "model.layers.0.block_sparse_moe.experts.2.w1.weight"}


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_norms_minus_one_are_recognised_across_rounding(dtype: torch.dtype, folder: Folder) -> None:
    generator = torch.Generator().manual_seed(3)
    norms = {name: 1 + 0.1 * torch.randn(x.shape, generator=generator) for name, x in FIRST.items() if x.dim() == 1}
    source = FIRST | {name: x.to(BF16) for name, x in norms.items()}
    report = folder.parents(FIRST | {name: (x - 1).to(dtype) for name, x in norms.items()}, source)
    assert {row.name for row in report.conversion if row.relation == "affine"} == set(norms)


def test_a_layer_that_is_no_merge_does_not_spoil_the_weights_of_the_others(folder: Folder) -> None:
    """What was tested is said to be a part of the model."""
    start = model(10)
    parents = [tuned(start, 0.05, seed) for seed in (1, 2)]
    child = merged((0.6, 0.4), *parents) | {"model.embed_tokens.weight": model(12)["model.embed_tokens.weight"]}
    report = folder.parents(child, *parents, mode="exact")
    assert report.answer.code == "merge-exact" and report.answer.values["all"] == sum(x.numel() for x in child.values())
    assert [row.weight for row in report.fit.parents] == pytest.approx([0.6, 0.4]) if report.fit else False
