"""Several tuned checkpoints: many of them, of different shapes and dtypes, and masks that end at different places."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.dtype.checkpoints import write
from tests.sparsity.checkpoints import BF16, F32, cast, model, updated
from tests.sparsity.oracle import changed, expected, together, values
from tests.sparsity.oracle_comparison import agree, compare

EMBEDDING = "model.embed_tokens.weight"


def test_many_checkpoints(tmp_path: Path) -> None:
    base = model(layers=1)
    steps, folders = [base], []
    for step in range(12):
        steps.append(updated(steps[-1], scale=1e-4, share=0.1, seed=step))
        folders.append(write(tmp_path / f"step-{step}", steps[-1]))
    report = compare(write(tmp_path / "base", base), *folders)
    agree(report, together(base, steps[-1]))
    for i in (0, 5, 11):
        row = report.trajectory[i]
        assert row.num_changed == together(base, steps[i + 1]).changed
        assert row.step.num_changed == together(steps[i], steps[i + 1]).changed
    assert len(report.overlap) == 12 * 11 // 2


def test_checkpoints_of_other_shapes_and_dtypes(tmp_path: Path) -> None:
    """Overlaps and steps are of what both of two checkpoints have; the headline is of the last."""
    base = model(layers=1)
    first, second, third = (updated(base, scale=1e-3, seed=seed) for seed in range(3))
    first |= {EMBEDDING: first[EMBEDDING][:64].contiguous()}
    del second["model.layers.0.mlp.up_proj.weight"]
    third = cast(third, F32) | {EMBEDDING: torch.cat([third[EMBEDDING], third[EMBEDDING]]).to(F32)}
    tuned = [first, second, third]
    names = ["first", "second", "third"]
    report = compare(write(tmp_path / "base", base), *(write(tmp_path / name, each) for name, each in zip(names, tuned, strict=True)))
    masks, has = [], []
    for each in tuned:
        mask, there = [], []
        for name, tensor in base.items():
            held = np.zeros(tuple(tensor.shape), np.bool_)
            found = held.copy()
            if name in each:
                rows = min(len(tensor), len(each[name]))
                held[:rows] = True
                found[:rows] = changed(values(tensor[:rows]), values(each[name][:rows]))
            mask.append(found.ravel())
            there.append(held.ravel())
        masks.append(np.concatenate(mask))
        has.append(np.concatenate(there))
    for i, row in enumerate(report.trajectory):
        assert (row.total_parameters, row.num_changed) == (int(has[i].sum()), int(masks[i].sum()))
        assert row.sparsity == pytest.approx(1 - masks[i].sum() / has[i].sum())
        assert row.swallowed.meaningful == (i < 2)
    for overlap in report.overlap:
        i, j = overlap.first, overlap.second
        both = has[i] & has[j]
        one, other = masks[i] & both, masks[j] & both
        assert (overlap.shared, overlap.either) == (int((one & other).sum()), int((one | other).sum()))
        p, q = one.sum() / both.sum(), other.sum() / both.sum()
        assert overlap.independent == pytest.approx(p * q / (p + q - p * q))
    step = sum(
        expected(first[name][: len(second[name])], second[name][: len(first[name])], 1e-3).changed for name in base if name in second
    )
    assert report.trajectory[1].step.num_changed == step
    assert report.total_parameters == sum(tensor.numel() for tensor in base.values())
    assert [each.rows for each in report.unmatched.resized] == [96]


def test_dtypes_of_a_step_are_its_own(tmp_path: Path) -> None:
    base = model(F32, layers=1)
    first, second = cast(updated(base), BF16), updated(base, seed=1)
    folders = [write(tmp_path / name, each) for name, each in (("base", base), ("first", first), ("second", second))]
    report = compare(*folders)
    assert report.trajectory[1].step.num_changed == together(first, second).changed
    assert report.trajectory[1].step.probe.num_changed == together(first, second).probe
