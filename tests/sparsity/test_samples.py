"""The built-in samples against the oracle: base and tuned, the trajectory, and copies in other dtypes."""

from pathlib import Path

import numpy as np
import pytest

from analyzers.language_models.samples import sample_folder
from tests.sparsity.oracle import changed, expected, load, together, values
from tests.sparsity.oracle_comparison import agree, compare

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
