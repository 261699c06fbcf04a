"""Candidates that are nearly the same, outliers, and training: what is said of each is what float64 says, and no more."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from analyzers.check.base_rules import base_mismatch
from analyzers.comparison.parents.report import is_copy, lost_tensors
from analyzers.language_models import samples
from tests.parents.checkpoints import BF16, F32, Folder, Tensors, asked, merged, model, tuned

BASE = model(100, layers=2, width=64)
NEAR = [tuned(BASE, 1e-3, seed) for seed in (20, 21)]
NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def distance(x: Tensors, p: Tensors) -> float:
    """|X - P| / |P| over matrices, in float64."""
    names = [name for name, tensor in p.items() if tensor.dim() > 1]
    a, b = (torch.cat([tensors[name].double().flatten() for name in names]) for tensors in (x, p))
    return float((a - b).norm() / b.norm())


def sample(name: str) -> Tensors:
    return {key: tensor for path in (Path(samples.__file__).parent / name).glob("*.safetensors") for key, tensor in load_file(path).items()}


def spoiled(base: Tensors, number: int, value: float) -> Tensors:
    """Overwrite this many values, spread over the matrices."""
    generator, changed = torch.Generator().manual_seed(1), {name: tensor.clone() for name, tensor in base.items()}
    names = [name for name in changed if changed[name].dim() > 1]
    for place in range(number):
        values = changed[names[place % len(names)]].view(-1)
        values[int(torch.randint(values.numel(), (1,), generator=generator))] = value
    return changed


@pytest.mark.parametrize("step", [2, pytest.param(1, marks=pytest.mark.exhaustive), 4])
def test_of_the_steps_of_a_training_the_closest_is_named_first_and_none_is_the_parent(step: int) -> None:
    names = [f"tiny-step-{number}" for number in range(1, 5) if number != step]
    weights = {f"sample:{name}": sample(name) for name in names}
    x = sample(f"tiny-step-{step}")
    report = asked(f"sample:tiny-step-{step}", *weights)
    nearest = sorted(weights, key=lambda name: distance(x, weights[name]))
    assert [row.ref for row in report.candidates] == nearest and list(report.parents) == nearest
    assert [row.distance for row in report.candidates] == pytest.approx([distance(x, weights[name]) for name in nearest], rel=1e-4)
    assert report.answer.code == "similar" and report.answer.values["sources"] == tuple(nearest) and report.advice.code == "name-one"
    assert not list(base_mismatch(report, [nearest[-1]])), "the weights do not contradict a card that names another step"


def test_a_base_is_no_merge_of_its_fine_tunes(folder: Folder) -> None:
    assert folder.parents(BASE, tuned(BASE, 0.05, 21), tuned(BASE, 0.05, 41)).verdict == "derived"


def test_a_combination_is_proven_only_beyond_what_one_candidate_explains(folder: Folder) -> None:
    first, second = (tuned(BASE, 0.005, seed) for seed in (40, 41))
    report = folder.parents(merged((0.5, 0.5), first, second), first, second, BASE)
    alone = max(
        (merged((0.5, 0.5), first, second)[name] == each[name]).double().mean().item() for name in [NAME] for each in (first, second, BASE)
    )
    assert report.verdict == "merge" and report.fit is not None and report.fit.exact_alone == pytest.approx(alone, abs=0.03)
    assert report.proof == "exact"


def test_two_trainings_of_one_start_may_have_a_common_ancestor(folder: Folder) -> None:
    frozen = {name: tensor for name, tensor in BASE.items() if "layers.0" in name}
    first, second = (tuned(BASE, 0.02, seed) | frozen for seed in (31, 32))
    second[NAME] = model(7, layers=2, width=64)[NAME]
    for x, p in ((first, second), (tuned(BASE, 0.02, 31), tuned(BASE, 0.02, 32) | {NAME: second[NAME]})):
        answer = folder.parents(x, p).answer
        assert answer.code in ("damaged", "replaced") and answer.values["names"] == (NAME,)


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_trained_norms_and_untouched_rows_are_not_damaged(folder: Folder, dtype: torch.dtype) -> None:
    """Norms that begin as ones or equal in their first values, or moved together; a row of the embedding that no token trains."""
    start = {name: tensor.to(dtype) for name, tensor in BASE.items()}
    start["model.layers.0.input_layernorm.weight"] = torch.ones(64, dtype=dtype)
    child = tuned(start, 0.01, 60, dtype=dtype)
    embedding, norm, other = "model.embed_tokens.weight", "model.norm.weight", "model.layers.1.input_layernorm.weight"
    child[embedding][0] = start[embedding][0]
    child[norm] = (start[norm].to(F32) * 1.003 + 0.002 * torch.randn(64, generator=torch.Generator().manual_seed(3))).to(dtype)
    child[norm][:1] = start[norm][:1]
    child[other] = (start[other].to(F32) * 0.99 + 0.001 * torch.randn(64, generator=torch.Generator().manual_seed(4))).to(dtype)
    for x, p in ((child, start), (start, child)):
        report = folder.parents(x, p)
        assert report.verdict == "derived" and not is_copy(report.conversion), report.conversion
        assert report.answer.code == "derived"


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_what_training_leaves_beside_updates_is_not_damage(folder: Folder, dtype: torch.dtype) -> None:
    """Norms that moved in unison, beside matrices trained or not; a matrix that only decayed; new tokens in the last rows."""
    start = {name: tensor.to(dtype) for name, tensor in BASE.items()}
    moved = start | {name: (tensor.to(F32) * 0.97).to(dtype) for name, tensor in start.items() if tensor.dim() == 1}
    new = start["model.embed_tokens.weight"].clone()
    new[-4:] = 0.02 * torch.randn(4, new.shape[1], generator=torch.Generator().manual_seed(8))
    decayed = tuned(moved, 0.01, 61, dtype=dtype) | {NAME: (start[NAME].to(F32) * 0.98).to(dtype)}
    for child in (moved, decayed, start | {"model.embed_tokens.weight": new}):
        report = folder.parents(child, start, mode="exact")
        assert report.verdict == "derived" and not lost_tensors(report.conversion), lost_tensors(report.conversion)


@pytest.mark.parametrize("step", [0.0, 0.05, 0.08])
def test_values_that_were_halved_or_replaced_in_a_fine_tune_are_named(folder: Folder, step: float) -> None:
    for lost in (tuned(BASE, step, 62, dtype=F32)[NAME] / 2, torch.full_like(BASE[NAME], 0.02)):
        report = folder.parents(tuned(BASE, max(step, 0.01), 62) | {NAME: lost.to(BF16)}, BASE, mode="exact")
        assert [row.name for row in lost_tensors(report.conversion)] == [NAME]
