"""The built-in samples against the oracle: base and tuned, the trajectory, and copies in other dtypes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyzers.language_models.samples import sample_folder
from tests.update_sparsity.oracle import changed, expected, load, together, values
from tests.update_sparsity.oracle_comparison import agree, compare, steady

ROLE = {"embed_tokens": "embedding", "self_attn": "attention", "mlp": "mlp", "norm": "norm"}


def role(name: str) -> str:
    """By the sample's names alone: a norm is a norm wherever it stands."""
    return "norm" if "norm" in name else next(role for part, role in ROLE.items() if part in name)


def folder(name: str) -> Path:
    return Path(sample_folder(name))


@pytest.mark.parametrize("eta", [1e-3, 2.0**-9, 0.01, 0.5])
def test_base_and_tuned(eta: float) -> None:
    report = compare("sample:tiny-bf16", "sample:tiny-tuned", eta=eta)
    base, tuned = load(folder("tiny-bf16")), load(folder("tiny-tuned"))
    agree(report, together(base, tuned, eta))
    assert report.swallowed.meaningful and report.swallowed.count == 0
    assert (report.probe.num_changed == report.num_changed) == (eta < 2**-8)
    assert report.unmatched.counts == dict.fromkeys(report.unmatched.counts, 0)
    assert not report.trajectory and not report.overlap and report.interval is None


def test_rows_of_tensors_layers_and_roles() -> None:
    report = compare("sample:tiny-bf16", "sample:tiny-tuned")
    base, tuned = load(folder("tiny-bf16")), load(folder("tiny-tuned"))
    assert {row.name for row in report.tensors} == set(base)
    sparsity: dict[str, float] = {}
    for row in report.tensors:
        oracle = expected(base[row.name], tuned[row.name], 1e-3)
        mask = changed(values(base[row.name]), values(tuned[row.name]))
        assert (row.tuned_name, row.dtype, row.tuned_dtype, row.shape) == (row.name, "BF16", "BF16", tuple(base[row.name].shape))
        assert (row.num_changed, row.probe_num_changed, row.swallowed) == (oracle.changed, oracle.probe, 0)
        assert row.role == role(row.name)
        assert row.layer == (int(row.name.split(".")[2]) if "layers" in row.name else None)
        assert row.max_update == oracle.absolute.max()
        assert row.update_norm == pytest.approx(np.sqrt(oracle.update_square), rel=1e-9)
        assert row.relative_norm == pytest.approx(np.sqrt(oracle.update_square / oracle.base_square), rel=1e-9)
        places = (mask.any(axis=1).mean(), mask.any(axis=0).mean()) if mask.ndim == 2 else (None, None)
        assert (row.changed_rows, row.changed_columns) == places
        sparsity[row.name] = 1 - oracle.changed / oracle.values
        assert row.sparsity == pytest.approx(sparsity[row.name], rel=1e-12)
    assert set(report.roles) == set(map(role, base))
    for name, found in report.roles.items():
        group = [each for each in base if role(each) == name]
        whole = together({each: base[each] for each in group}, tuned)
        shares = np.array([sparsity[each] for each in group])
        assert (found.tensors, found.parameters, found.num_changed) == (len(group), whole.values, whole.changed)
        assert found.layers == len({each.split(".")[2] for each in group if "layers" in each})
        assert found.sparsity == pytest.approx(1 - whole.changed / whole.values, rel=1e-12)
        for statistic in ("mean", "std", "min", "max"):
            assert getattr(found, statistic) == pytest.approx(getattr(shares, statistic)(), rel=1e-9, abs=1e-12)
        assert found.relative_norm == pytest.approx(np.sqrt(whole.update_square / whole.base_square), rel=1e-9)
    assert [row.layer for row in report.layers] == [0, 1, 2, 3, None]
    for layer in report.layers:
        group = [each for each in base if (f"layers.{layer.layer}." in each if layer.layer is not None else "layers" not in each)]
        whole = together({each: base[each] for each in group}, tuned)
        assert (layer.tensors, layer.num_changed) == (len(group), whole.changed)
        for name, share in layer.roles.items():
            part = together({each: base[each] for each in group if role(each) == name}, tuned)
            assert share == pytest.approx(1 - part.changed / part.values, rel=1e-12)


def test_the_trajectory() -> None:
    names = ["tiny-step-1", "tiny-step-2", "tiny-step-3", "tiny-step-4", "tiny-tuned"]
    report = compare("sample:tiny-bf16", *(f"sample:{name}" for name in names))
    base, *tuned = (load(folder(name)) for name in ("tiny-bf16", *names))
    agree(report, together(base, tuned[-1]))
    masks = [np.concatenate([changed(values(base[name]), values(each[name])).ravel() for name in base]) for each in tuned]
    for i, row in enumerate(report.trajectory):
        whole = together(base, tuned[i])
        step = together(tuned[i - 1] if i else base, tuned[i])
        assert row.ref == f"sample:{names[i]}" and row.commit == report.tuned[i].commit
        assert (row.num_changed, row.num_unchanged, row.total_parameters) == (whole.changed, whole.values - whole.changed, whole.values)
        assert row.sparsity == pytest.approx(1 - whole.changed / whole.values, rel=1e-12)
        assert (row.probe.num_changed, row.swallowed.count) == (whole.probe, whole.differ - whole.changed)
        assert (row.step.num_changed, row.step.probe.num_changed) == (step.changed, step.probe)
        assert row.step.sparsity == pytest.approx(1 - step.changed / step.values, rel=1e-12)
        assert row.relative_norm == pytest.approx(np.sqrt(whole.update_square / whole.base_square), rel=1e-9)
        for name, share in row.roles.items():
            part = together({each: base[each] for each in base if role(each) == name}, tuned[i])
            assert share == pytest.approx(1 - part.changed / part.values, rel=1e-12)
    last = report.trajectory[-1]
    assert (last.sparsity, last.num_changed) == (report.sparsity, report.num_changed)
    assert [(each.first, each.second) for each in report.overlap] == [(i, j) for i in range(5) for j in range(i + 1, 5)]
    for each in report.overlap:
        first, second = masks[each.first], masks[each.second]
        assert (each.shared, each.either) == ((first & second).sum(), (first | second).sum())
        assert each.jaccard == pytest.approx(each.shared / each.either)
        p, q = first.mean(), second.mean()
        assert each.independent == pytest.approx(p * q / (p + q - p * q))


@pytest.mark.parametrize(("copy", "nothing_stored"), [("tiny-bf16-as-fp32", True), ("tiny-bf16-as-fp16", False)])
def test_a_copy_in_another_dtype(copy: str, nothing_stored: bool) -> None:
    report = compare("sample:tiny-bf16", f"sample:{copy}")
    agree(report, together(load(folder("tiny-bf16")), load(folder(copy))))
    assert not report.swallowed.meaningful
    assert (report.num_changed == 0) == (report.swallowed.count == 0) == nothing_stored or copy == "tiny-bf16-as-fp16"
    assert [note.code for note in report.notes] == ["dtypes", "probe"]


def test_the_same_twice() -> None:
    report = compare("sample:tiny-bf16", "sample:tiny-bf16")
    assert (report.sparsity, report.num_changed, report.probe.num_changed, report.swallowed.count) == (1, 0, 0, 0)
    assert report.answer.code == "same-files"
    assert [each.energy for each in report.energy] == [None] * 3
    other = compare("sample:tiny-bf16", "sample:tiny-sharded")
    assert other.sparsity == 1 and other.num_changed == 0
    assert other.answer.code == "unchanged" and other.answer.values == {"values": other.total_parameters}


def test_two_runs_give_the_same_report() -> None:
    every: tuple[dict[str, Any], ...] = ({}, {"budget": 60_000, "seed": 3, "mode": "quick"})
    for options in every:
        names = ("sample:tiny-bf16", "sample:tiny-step-1", "sample:tiny-tuned")
        first, second = compare(*names, **options), compare(*names, **options)
        assert steady(first) == steady(second)
        assert first.id == second.id
