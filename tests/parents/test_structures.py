"""Structure that unrelated models share is no descent; what descends from a structured model is found; intervals hold the truth."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from analyzers.comparison.counting import GROUPS
from analyzers.comparison.parents.least_squares import solve
from tests.cases import few
from tests.parents.checkpoints import BF16, Folder, merged, model, tuned
from tests.parents.structures import (
    SHARED,
    Builder,
    cosines,
    gaussian,
    identity,
    noisy_positions,
    non_negative,
    shared_zeros,
    structured,
    update,
)

SAMPLE = 150_000  # bytes, of about 590,000
FEW = (shared_zeros, identity, non_negative)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def related(folder: Folder, build: Builder, seed: int) -> None:
    first, second, third = (structured(build, 3 * seed + i) for i in range(3))
    for size, changed in ((0.05, 1.0), (0.5, 0.05), (1.0, 1.0)):
        report = folder.parents(update(first, size, seed, changed), second, first, budget=SAMPLE)
        assert report.verdict == "derived" and report.candidates[0].ref.endswith("c1"), size
    report = folder.parents(merged((0.6, 0.4), first, second), first, second, third, budget=2 * SAMPLE)
    assert report.verdict == "merge" and report.fit is not None
    assert [parent.weight for parent in report.fit.parents[:2]] == pytest.approx([0.6, 0.4], abs=0.005)


@pytest.mark.parametrize("build", few(FEW, {1}))
def test_descent_from_a_structured_model(folder: Folder, build: Builder) -> None:
    related(folder, build, 1)


@pytest.mark.parametrize("build", few(SHARED, {0, 2}))
def test_a_table_that_models_began_with_is_no_descent(folder: Folder, build: Builder) -> None:
    first, second = (structured(build, seed, layers=2) for seed in (3, 4))
    for report in (folder.parents(first, second, mode="exact"), folder.parents(first, second, budget=SAMPLE)):
        smooth = build is noisy_positions and report.verdict == "unrelated"  # smooth rows are left out
        assert report.answer.code == "common-values" or smooth
        assert report.proof is None and report.candidates[0].shared is not None


@pytest.mark.parametrize("options", few([{"mode": "exact"}, {"budget": SAMPLE}], {1}))
def test_a_shared_matrix_is_no_descent_of_the_whole_but_a_frozen_body_is(folder: Folder, options: dict[str, Any]) -> None:
    mixing = torch.from_numpy(cosines(np.random.default_rng(1), 256, 256)).to(BF16)
    rates = torch.arange(1, 17).log().to(BF16).expand(512, 16).contiguous()  # rows as state space models begin with
    added = {"model.mixing.weight": mixing} | {f"model.layers.{layer}.mixer.A_log": rates.clone() for layer in range(4)}
    first, second = (structured(gaussian, seed) | added for seed in (3, 4))
    report = folder.parents(first, second, **options)
    assert report.verdict == "undecided" and report.answer.code == "few-related" and not report.parents
    assert report.proof is None
    replaced = {name: tensor for name, tensor in second.items() if "up_proj" in name}
    report = folder.parents(first | replaced, first, **options)
    assert report.verdict == "derived" and "up_proj" in str(report.answer.values["names"])


def test_intervals_of_weights_hold_the_truth() -> None:
    rng, truth, held = np.random.default_rng(0), np.array([0.6, 0.4]), np.zeros(2)
    for _ in range(200):
        parents = rng.standard_normal((GROUPS, 2, 64))
        sides = np.concatenate([np.einsum("k,gkn->gn", truth, parents)[:, None] + rng.standard_normal((GROUPS, 1, 64)), parents], axis=1)
        fit = solve(sides @ sides.transpose(0, 2, 1))
        held += (fit.low <= truth) & (truth <= fit.high)
    assert (held >= 180).all() and (held < 200).all()


@pytest.mark.parametrize("apart", few([0.003, None], {0}))
def test_a_merge_with_one_layer_trained_on(folder: Folder, apart: float | None) -> None:
    base = model(10)
    first, second = (base, model(11)) if apart is None else (tuned(base, apart, 1), tuned(base, apart, 2))
    child = merged((0.6, 0.4), first, second)
    child |= {name: tensor for name, tensor in tuned(child, 0.05, 7).items() if ".layers.2." in name}
    report = folder.parents(child, first, second)
    assert report.verdict == "merge" and report.fit is not None
    assert report.fit.weights_by == "exact-values"
    assert [parent.weight for parent in report.fit.parents] == pytest.approx([0.6, 0.4], abs=1e-3)


def test_a_sample_says_how_much_it_leaves_open(folder: Folder) -> None:
    base = model(10)
    exact, quick = folder.parents(base, base, mode="exact"), folder.parents(base, base, budget=SAMPLE)
    assert exact.verdict == quick.verdict == "same-weights" and exact.unseen is exact.blocks is None
    assert quick.blocks and quick.unseen and quick.unseen >= 3 / quick.blocks * 0.5
    assert (exact.notes, exact.advice.code, quick.advice.code) == ((), "use-either", "compare-all")
    assert [note.values for note in quick.notes if note.code == "unseen"] == [{"blocks": quick.blocks, "unseen": quick.unseen}]
