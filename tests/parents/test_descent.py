"""Every kind of descent, from ground truth: the verdict, the weights, and how much is proven."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cases import few
from tests.parents.checkpoints import (
    BF16,
    F16,
    F32,
    Folder,
    Tensors,
    dare,
    each,
    fp8,
    int8,
    merged,
    model,
    mxfp4,
    permuted,
    slerp,
    stacked,
    ties,
    tuned,
)

FIRST, SECOND, THIRD = (model(seed) for seed in (10, 11, 12))
WIDE = model(10, dtype=F32)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def cast(tensors: Tensors, *dtypes: torch.dtype) -> Tensors:
    for dtype in dtypes:
        tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    return tensors


@pytest.mark.parametrize(
    ("child", "parent"),
    few(
        [
            (FIRST, FIRST),
            (FIRST, WIDE),
            (WIDE, FIRST),
            (cast(WIDE, F16), WIDE),
            (cast(FIRST, F32), FIRST),
            (cast(WIDE, F16, BF16), WIDE),
            (cast(WIDE, F16, F32), WIDE),
        ],
        {0, 1, 2, 5},
        ["bits", "fp32 to bf16", "bf16 to fp32", "fp32 to fp16", "upcast", "through fp16", "through fp16 in fp32"],
    ),
)
def test_the_same_weights_in_any_dtype(folder: Folder, child: Tensors, parent: Tensors) -> None:
    report = folder.parents(child, SECOND, parent)
    assert report.verdict == "same-weights" and report.candidates[0].ref.endswith("c1")
    assert report.proof == "cast"


def test_a_changed_norm_or_value_is_not_the_same(folder: Folder) -> None:
    report = folder.parents(FIRST | {"model.norm.weight": SECOND["model.norm.weight"]}, FIRST)
    assert report.verdict == "derived" and report.candidates[0].equal_share == 1
    assert report.candidates[0].vectors_equal is not None and report.candidates[0].vectors_equal < 1
    name = "model.layers.1.mlp.up_proj.weight"
    changed = FIRST[name].clone()
    changed[3, 3] += 1
    assert folder.parents(FIRST | {name: changed}, FIRST).verdict == "derived"


@pytest.mark.parametrize("quantize", [int8, fp8, mxfp4])
def test_quantized_copies(folder: Folder, quantize: object) -> None:
    assert callable(quantize)
    report = folder.parents(quantize(FIRST), FIRST, SECOND)
    assert report.verdict == "quantized-copy" and report.candidates[0].ref.endswith("c0")


@pytest.mark.parametrize("norm", few([0.001, 0.01, 0.1, 0.5], {0, 3}))
def test_training_and_noise_of_any_size(folder: Folder, norm: float) -> None:
    report = folder.parents(tuned(FIRST, norm), SECOND, FIRST)
    assert report.verdict == "derived" and report.candidates[0].ref.endswith("c1")
    assert report.candidates[0].distance == pytest.approx(norm, rel=0.25 if norm < 0.005 else 0.03)


@pytest.mark.parametrize("weight", few(np.arange(0.05, 1, 0.05).round(2).tolist(), {0, 6}))
def test_linear_merges_of_two(folder: Folder, weight: float) -> None:
    report = folder.parents(merged((weight, 1 - weight), FIRST, SECOND), FIRST, SECOND, THIRD)
    assert report.verdict == "merge" and len(report.parents) == 2 and report.fit is not None
    found = [each.weight for each in report.fit.parents]
    assert found == pytest.approx([weight, 1 - weight, 0], abs=0.005)
    assert report.fit.exact_share is not None and report.fit.exact_share > 0.99
    assert report.fit.exact_by_chance is not None and report.fit.exact_by_chance < 0.01


@pytest.mark.parametrize("weights", few([[0.2, 0.3, 0.5], [0.05, 0.05, 0.9], [0.6, 0.8, -0.4]], {2}))
def test_linear_merges_of_three(folder: Folder, weights: list[float]) -> None:
    report = folder.parents(merged(weights, FIRST, SECOND, THIRD), FIRST, SECOND, THIRD, model(13))
    assert report.verdict == "merge" and len(report.parents) == 3 and report.fit is not None
    assert [each.weight for each in report.fit.parents] == pytest.approx([*weights, 0], abs=0.005)
    assert all(each.low <= weight + 1e-4 and each.high >= weight - 1e-4 for each, weight in zip(report.fit.parents, weights, strict=False))
    assert report.fit.exact_share is not None and report.fit.exact_share > 0.99


@pytest.mark.parametrize("dtype", few([F16, F32], {0}))
def test_merges_saved_in_other_dtypes(folder: Folder, dtype: torch.dtype) -> None:
    report = folder.parents(merged((0.35, 0.65), FIRST, SECOND, dtype=dtype), FIRST, SECOND)
    assert report.verdict == "merge" and report.fit is not None
    assert report.fit.exact_share is not None and report.fit.exact_share > 0.99


def test_a_merge_of_siblings_and_the_base(folder: Folder) -> None:
    first, second = tuned(FIRST, 0.02, 21), tuned(FIRST, 0.02, 22)
    report = folder.parents(merged((0.4, 0.6), first, second), first, second, FIRST)
    assert report.verdict == "merge" and report.fit is not None
    assert [each.weight for each in report.fit.parents] == pytest.approx([0.4, 0.6, 0], abs=0.005)
    assert report.fit.exact_share is not None and report.fit.exact_share > 0.99
    alone = folder.parents(first, second)
    assert alone.verdict == "derived"


def test_task_arithmetic(folder: Folder) -> None:
    first, second = tuned(FIRST, 0.05, 21), tuned(FIRST, 0.05, 22)
    report = folder.parents(each(lambda b, x, y: b + 0.6 * (x - b) + 0.8 * (y - b), FIRST, first, second), FIRST, first, second)
    assert report.verdict == "merge" and report.fit is not None
    assert [each.weight for each in report.fit.parents] == pytest.approx([-0.4, 0.6, 0.8], abs=0.005)
    assert report.fit.exact_share is not None and report.fit.exact_share > 0.99


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
    assert report.verdict == "merge" and report.fit is not None and report.fit.exact_per_layer
    assert {row.layer: row.weights[0] for row in report.fit.layers} == pytest.approx(truth | {None: 1.0}, abs=0.005)
    assert all(row.exact_share is not None and row.exact_share > 0.99 for row in report.fit.layers)


@pytest.mark.parametrize("t", few([0.2, 0.5, 0.75], {0}))
def test_slerp(folder: Folder, t: float) -> None:
    report = folder.parents(slerp(t, FIRST, SECOND), FIRST, SECOND)
    assert report.verdict == "merge" and report.fit is not None
    assert report.fit.exact_share is not None and report.fit.exact_share > 0.5


@pytest.mark.parametrize("drop", few([0.5, 0.9], {0}))
def test_merges_of_sparse_updates_have_average_weights(folder: Folder, drop: float) -> None:
    first, second = tuned(FIRST, 0.05, 21), tuned(FIRST, 0.05, 22)
    report = folder.parents(dare(FIRST, [first, second], 0.5, drop), FIRST, first, second)
    assert report.verdict == "merge" and report.fit is not None
    assert [each.weight for each in report.fit.parents] == pytest.approx([0, 0.5, 0.5], abs=0.1)
    report = folder.parents(ties(FIRST, [first, second], 0.3), FIRST, first, second)
    assert report.verdict == "merge" and {name[-2:] for name in report.parents} >= {"c1", "c2"}


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
    moved = folder.parents(permuted(FIRST), FIRST)
    assert moved.verdict == "derived" and [note.values["roles"] for note in moved.notes if note.code == "unlike"] == [("mlp",)]


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


def test_unrelated_models(folder: Folder) -> None:
    report = folder.parents(THIRD, FIRST, SECOND)
    assert report.verdict == "unrelated" and report.parents == ()


def test_stacked_experts_of_three_flat_matrices_against_single_ones(folder: Folder) -> None:
    generator = torch.Generator().manual_seed(1)
    single: Tensors = {}
    flat: Tensors = {}
    for layer in range(2):
        gate, up, down = (torch.randn(4, 48, 32, generator=generator).to(BF16) for _ in range(3))
        for expert in range(4):
            start = f"model.layers.{layer}.mlp.experts.{expert}."
            single |= {f"{start}gate_proj.weight": gate[expert].clone(), f"{start}up_proj.weight": up[expert].clone()}
            single[f"{start}down_proj.weight"] = down[expert].T.contiguous()
        start = f"transformer.blocks.{layer}.ffn.experts.mlp."
        flat |= {f"{start}w1": gate.flatten(0, 1), f"{start}v1": up.flatten(0, 1), f"{start}w2": down.flatten(0, 1)}
    report = folder.parents(flat, single)
    assert report.verdict == "same-weights" and report.coverage[0].share == 1


@pytest.mark.exhaustive
def test_the_true_parent_is_first_of_fifty(folder: Folder) -> None:
    models = [model(100 + number, layers=2, width=32, vocabulary=64) for number in range(50)]
    child = tuned(models[37], 0.5)
    report = folder.parents(child, *models)
    assert report.verdict == "derived" and report.candidates[0].ref.endswith("c37") and report.parents == (report.candidates[0].ref,)
    x = np.concatenate([tensor.float().numpy().ravel() for tensor in child.values() if tensor.dim() == 2])
    cosines = []
    for candidate in models:
        p = np.concatenate([tensor.float().numpy().ravel() for tensor in candidate.values() if tensor.dim() == 2])
        cosines.append(float(x @ p / (np.linalg.norm(x) * np.linalg.norm(p))))
    assert int(np.argmax(cosines)) == 37 and report.candidates[0].cosine == pytest.approx(cosines[37], rel=1e-5)


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
