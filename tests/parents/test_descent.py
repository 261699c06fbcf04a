"""Every kind of descent, from ground truth: the verdict, the weights, and how much is proven."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cases import few
from tests.parents.checkpoints import (
    BF16,
    F32,
    Folder,
    each,
    merged,
    model,
    permuted,
    stacked,
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


@pytest.mark.parametrize("norm", few([0.001, 0.01, 0.1, 0.5], {0, 3}))
def test_training_and_noise_of_any_size(folder: Folder, norm: float) -> None:
    report = folder.parents(tuned(FIRST, norm), SECOND, FIRST)
    assert report.verdict == "derived" and report.candidates[0].ref.endswith("c1")
    assert report.candidates[0].distance == pytest.approx(norm, rel=0.25 if norm < 0.005 else 0.03)


def test_a_merge_of_siblings_and_the_base(folder: Folder) -> None:
    first, second = tuned(FIRST, 0.02, 21), tuned(FIRST, 0.02, 22)
    report = folder.parents(merged((0.4, 0.6), first, second), first, second, FIRST)
    assert report.verdict == "merge" and report.fit is not None
    assert [each.weight for each in report.fit.parents] == pytest.approx([0.4, 0.6, 0], abs=0.005)
    assert report.fit.exact_share is not None and report.fit.exact_share > 0.99
    alone = folder.parents(first, second)
    assert alone.verdict == "derived"


def test_a_merge_in_bf16_arithmetic(folder: Folder) -> None:
    report = folder.parents({name: FIRST[name] * 0.3 + SECOND[name] * 0.7 for name in FIRST}, FIRST, SECOND)
    assert report.verdict == "merge" and report.fit is not None
    assert report.fit.exact_share is not None and report.fit.exact_share > 0.99


def test_weights_that_differ_by_layer(folder: Folder) -> None:
    child = dict(FIRST)
    truth = {0: 0.1, 1: 0.35, 2: 0.6, 3: 0.85}
    for layer, weight in truth.items():
        names = [name for name in FIRST if f".layers.{layer}." in name]
        child |= merged((weight, 1 - weight), {name: FIRST[name] for name in names}, {name: SECOND[name] for name in names})
    report = folder.parents(child, FIRST, SECOND)
    assert report.verdict == "merge" and report.fit is not None and report.fit.weights_by == "least-squares"
    assert {row.layer: row.weights[0] for row in report.fit.layers} == pytest.approx(truth | {None: 1.0}, abs=0.005)
    assert all(row.exact_share is not None and row.exact_share > 0.99 for row in report.fit.layers)


def test_stacked_layers_are_matched_by_content(folder: Folder) -> None:
    report = folder.parents(stacked((FIRST, 0, 3), (SECOND, 1, 4), (FIRST, 2, 4)), FIRST, SECOND)
    assert report.verdict == "stack" and report.answer.code == "stack" and report.fit is not None
    layers = {each.layer: (each.ref[-2:], each.source) for each in report.layer_map}
    assert layers == {None: ("c0", None)} | {new: ("c0", new) for new in range(3)} | {3: ("c1", 1), 4: ("c1", 2), 5: ("c1", 3)} | {
        6: ("c0", 2),
        7: ("c0", 3),
    }
    assert all(each.equal_share == 1 for each in report.layer_map)
    weights = {row.layer: [round(weight, 2) + 0.0 for weight in row.weights] for row in report.fit.layers}
    assert weights == {None: [1, 0], 0: [1, 0], 1: [1, 0], 2: [1, 0], 3: [0, 1], 4: [0, 1], 5: [0, 1], 6: [1, 0], 7: [1, 0]}
    alone = folder.parents(stacked((FIRST, 0, 3), (FIRST, 1, 4)), FIRST)
    assert alone.verdict == "stack" and [each.source for each in alone.layer_map] == [0, 1, 2, 1, 2, 3, None]


def test_pruned_scaled_and_permuted(folder: Folder) -> None:
    pruned = folder.parents(each(lambda x: x * (x.abs() > 0.01), FIRST), FIRST)
    assert pruned.verdict == "derived" and pruned.answer.code == "pruned"
    scaled = folder.parents(each(lambda x: 0.9 * x, FIRST), FIRST)
    assert scaled.verdict == "derived" and scaled.fit is not None and scaled.fit.parents[0].weight == pytest.approx(0.9, abs=1e-3)
    moved = folder.parents(permuted(FIRST), FIRST, mode="exact")
    assert moved.verdict == "derived" and {row.relation for row in moved.conversion if "mlp" in row.name} == {"reordered"}


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


def test_the_counts_against_plain_loops(folder: Folder) -> None:
    child = tuned(FIRST, 0.01)
    report = folder.parents(child, FIRST)
    matrices = [name for name, tensor in FIRST.items() if tensor.dim() == 2]
    x, p = (torch.cat([tensors[name].flatten() for name in matrices]) for tensors in (child, FIRST))
    row = report.candidates[0]
    assert row.compared == x.numel() and row.equal_share == pytest.approx((x == p).double().mean().item(), rel=1e-12)
    a, b = x.double(), p.double()
    assert row.distance == pytest.approx(((a - b).norm() / b.norm()).item(), rel=1e-9)
    assert row.cosine == pytest.approx((a @ b / (a.norm() * b.norm())).item(), rel=1e-9)
    assert row.cosine_null == pytest.approx(a.numel() ** -0.5)
    counts = [np.unique(tensor.float().numpy(), return_counts=True) for tensor in (x, p)]
    shares = [dict(zip(values.tolist(), (times / x.numel()).tolist(), strict=True)) for values, times in counts]
    assert row.equal_by_chance == pytest.approx(sum(share * shares[1].get(value, 0) for value, share in shares[0].items()), rel=1e-9)
    matrix = np.stack([b.numpy(), torch.cat([SECOND[name].flatten() for name in matrices]).double().numpy()], axis=1)
    truth = np.linalg.lstsq(matrix, a.numpy(), rcond=None)[0]
    both = folder.parents(child, FIRST, SECOND).fit
    assert both is not None and [each.weight for each in both.parents] == pytest.approx(truth.tolist(), abs=1e-9)


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
