"""What an adapter changes and what survives merging it, compared with merging and casting in torch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from analyzers.checkpoints import Access
from analyzers.comparison.sparsity import SparsityReport, SparsityRequest, analyze
from analyzers.comparison.sparsity.rows import Adapter
from analyzers.core.records import Interval
from tests.sparsity.adapters import ALPHA, base, factors, lost, merged, write_adapter
from tests.sparsity.checkpoints import BF16, F16, F32

QUICK = ("q_proj", "up_proj")


def report(*sides: Path | str, **options: Any) -> SparsityReport:
    """Compare the sides exactly, unless options say otherwise."""
    first, *others = map(str, sides)
    asked: dict[str, Any] = {"mode": "exact"} if "budget" not in options else {}
    found = list(analyze(SparsityRequest(base=first, tuned=tuple(others), **asked, **options), Access(local=True)))[-1]
    assert isinstance(found, SparsityReport)
    return found


def described(*sides: Path | str, **options: Any) -> Adapter:
    """Return what the report says about the adapter."""
    found = report(*sides, **options).adapter
    assert found is not None
    return found


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_survival_equals_merging_and_casting(dtype: torch.dtype, tmp_path: Path) -> None:
    folder, tensors = base(tmp_path, dtype, width=160)
    drawn = factors(tensors, 2e-4, *QUICK)
    next(iter(drawn.values()))[0][:, 3] *= 1e10  # beyond fp16
    adapter, whole = write_adapter(tmp_path / "adapter", drawn), merged(tensors, drawn)
    found = described(folder, f"{folder}+{adapter}")
    for name, survival in found.survival.items():
        assert survival is not None
        touched, changed, overflowed, error, square = lost(tensors, whole, name, drawn)
        assert (survival.touched, survival.overflowed) == (touched, overflowed)
        assert survival.changed_share == changed / touched
        assert survival.lost_norm == pytest.approx((error / square) ** 0.5, rel=1e-9)
        assert survival.low is None and survival.high is None
    assert {row.role for row in found.modules} == {"attention", "mlp"}


def test_modules_are_measured_one_by_one(tmp_path: Path) -> None:
    folder, tensors = base(tmp_path)
    drawn = factors(tensors, 1e-3, "q_proj", "o_proj")
    _, second, _, fourth = drawn
    drawn[second] = drawn[second][0], torch.zeros_like(drawn[second][1])
    nothing: Any = {"model.layers.7.self_attn.q_proj.weight": tuple(factor.clone() for factor in drawn[fourth])}
    adapter, whole = write_adapter(tmp_path / "adapter", drawn | nothing), merged(tensors, drawn)
    found = described(folder, adapter)
    rows = {row.name: row for row in found.modules}
    for name in drawn:
        update = (whole[name] - tensors[name].float()).double().numpy()
        assert rows[name].relative_norm == pytest.approx(np.linalg.norm(update) / np.linalg.norm(tensors[name].double().numpy()))
    assert (found.kind, found.rank, found.scale) == ("LoRA", 4, ALPHA / 4)
    assert [rows[name].empty for name in drawn] == [False, True, False, False]
    assert rows.keys() == drawn.keys() and len(found.unmatched) == 1
    assert "layers.7.self_attn.q_proj" in found.unmatched[0]


def test_updates_far_below_and_far_above_the_resolution_of_bf16(tmp_path: Path) -> None:
    folder, tensors = base(tmp_path)
    small = report(folder, write_adapter(tmp_path / "small", factors(tensors, 1e-8, "q_proj")))
    large = report(folder, write_adapter(tmp_path / "large", factors(tensors, 10.0, "q_proj")))
    assert small.adapter is not None and large.adapter is not None
    tiny, huge = small.adapter.survival["bf16"], large.adapter.survival["bf16"]
    assert tiny is not None and huge is not None
    assert tiny.changed_share is not None and tiny.changed_share < 0.01 and tiny.lost_norm == pytest.approx(1, abs=0.1)
    assert huge.changed_share == 1 and huge.lost_norm is not None and huge.lost_norm < 0.01
    assert [(each.answer.code, each.advice.code) for each in (small, large)] == [("adapter-lost", "store-fp32"), ("adapter-kept", "merge")]


def test_an_empty_adapter_has_no_survival(tmp_path: Path) -> None:
    folder, tensors = base(tmp_path)
    drawn = {name: (a, torch.zeros_like(b)) for name, (a, b) in factors(tensors, 1, "q_proj").items()}
    found = report(folder, write_adapter(tmp_path / "adapter", drawn))
    assert found.adapter is not None and set(found.adapter.survival.values()) == {None}
    assert found.answer.code == "adapter-nothing" and all(row.empty for row in found.adapter.modules)


def test_one_infinite_value_is_counted_in_the_merged_weights(tmp_path: Path) -> None:
    folder, tensors = base(tmp_path)
    drawn = factors(tensors, 1, "q_proj")
    a, b = next(iter(drawn.values()))
    a[0, 3] = torch.inf  # a column of the product
    found = report(folder, write_adapter(tmp_path / "adapter", drawn))
    assert found.adapter is not None and found.adapter.non_finite == b.shape[0]
    assert found.answer.code == "adapter-broken" and found.answer.values == {"broken": b.shape[0]}


def test_quick_mode_estimates_with_an_interval(tmp_path: Path) -> None:
    folder, tensors = base(tmp_path, layers=4, width=512)
    drawn = factors(tensors, 3e-4, *QUICK)
    adapter, whole = write_adapter(tmp_path / "adapter", drawn), merged(tensors, drawn)
    found = report(folder, adapter, budget=1 << 20)
    assert found.adapter is not None and found.blocks
    for name in ("bf16", "fp16"):
        survival = found.adapter.survival[name]
        touched, changed, _, error, square = lost(tensors, whole, name, drawn)
        assert survival is not None and survival.low is not None and survival.high is not None
        assert survival.touched < touched and survival.changed_share == pytest.approx(changed / touched, abs=0.05)
        assert survival.low < (error / square) ** 0.5 < survival.high
    said = found.answer.values["lost"]
    assert isinstance(said, Interval) and (found.answer.code, said.low < said.estimate < said.high) == ("adapter-lost", True)


def test_saved_modules_survive_as_they_are_stored(tmp_path: Path) -> None:
    folder, tensors = base(tmp_path)
    saved = {"lm_head.weight": tensors["lm_head.weight"].float() + 1e-3}
    adapter = write_adapter(tmp_path / "adapter", factors(tensors, 1e-3, "q_proj"), saved, modules_to_save=["lm_head"])
    found = described(folder, adapter)
    (head,) = (row for row in found.modules if row.name == "lm_head.weight")
    assert head.role == "head" and head.empty is False and head.relative_norm is not None


def test_nothing_is_said_of_an_adapter_merged_into_another_base(tmp_path: Path) -> None:
    folder, tensors = base(tmp_path)
    adapter = write_adapter(tmp_path / "adapter", factors(tensors, 1e-3, "q_proj"))
    other, _ = base(tmp_path / "other", F16)
    assert report(other, f"{folder}+{adapter}").adapter is None


def test_a_changed_module_without_a_counterpart_is_named(tmp_path: Path) -> None:
    folder, tensors = base(tmp_path, tie_word_embeddings=True)
    head = factors({"lm_head.weight": tensors["model.embed_tokens.weight"]}, 1e-3, "lm_head")
    found = report(folder, write_adapter(tmp_path / "adapter", factors(tensors, 1e-3, "q_proj") | head))
    (note,) = (note for note in found.notes if note.code == "adapter-apart")
    assert note.values == {"modules": 1, "names": ("lm_head.weight",)}
