"""What an adapter changes and what survives merging it, compared with merging and casting in torch."""

import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from analyzers.checkpoints import Access
from analyzers.update_sparsity import SparsityReport, SparsityRequest, analyze
from analyzers.update_sparsity.adapters.report import Adapter
from tests.dtype_detection.checkpoints import write
from tests.numerics.test_update_lost import CASTS, lost
from tests.update_sparsity.adapters import ALPHA, base, factors, merged, write_adapter
from tests.update_sparsity.checkpoints import BF16, F16, F32, Tensors

QUICK = ("q_proj", "up_proj")


def report(*sides: Path | str, **options: Any) -> SparsityReport:
    """Compare the sides exactly, unless options say otherwise."""
    first, *others = map(str, sides)
    asked: dict[str, Any] = {"mode": "exact"} if "budget" not in options else {}
    found = list(analyze(SparsityRequest(base=first, tuned=tuple(others), **asked, **options), Access(local=True)))[-1]
    assert isinstance(found, SparsityReport)
    assert SparsityReport.model_validate_json(found.model_dump_json()) == found
    return found


def described(*sides: Path | str, **options: Any) -> Adapter:
    """Return what the report says about the adapter."""
    found = report(*sides, **options).adapter
    assert found is not None
    return found


def sums(tensors: Tensors, whole: Tensors, name: str, names: list[str]) -> tuple[float, ...]:
    """Count and sum over several tensors with torch, in one format."""
    found = np.array([lost(tensors[each].float(), whole[each], CASTS[name]) for each in names])
    return tuple(found.sum(axis=0).tolist())


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_survival_equals_merging_and_casting(dtype: torch.dtype, tmp_path: Path) -> None:
    folder, tensors = base(tmp_path, dtype, width=160)
    drawn = factors(tensors, 2e-4, *QUICK)
    adapter, whole = write_adapter(tmp_path / "adapter", drawn), merged(tensors, drawn)
    found = described(folder, f"{folder}+{adapter}")
    for name, survival in found.survival.items():
        assert survival is not None
        touched, changed, overflowed, error, square = sums(tensors, whole, name, list(drawn))
        assert (survival.touched, survival.overflowed) == (touched, overflowed)
        assert survival.changed_share == changed / touched
        assert survival.lost_norm == pytest.approx((error / square) ** 0.5, rel=1e-9)
        assert survival.low is None and survival.high is None
        for row in survival.worst:
            one = sums(tensors, whole, name, [row.name])
            assert row.lost_norm == pytest.approx((one[3] / one[4]) ** 0.5, rel=1e-9)
        for role, part in (("attention", "q_proj"), ("mlp", "up_proj")):
            own = sums(tensors, whole, name, [each for each in drawn if part in each])
            (row,) = (each for each in survival.roles if each.name == role)
            assert row.lost_norm == pytest.approx((own[3] / own[4]) ** 0.5, rel=1e-9)


def test_weights_that_are_read_twice_are_said_to_be(tmp_path: Path) -> None:
    folder, tensors = base(tmp_path)
    found = report(folder, write_adapter(tmp_path / "adapter", factors(tensors, 1e-3, "q_proj")))
    assert found.bytes_read > found.base.bytes + found.tuned[0].bytes  # the weights with an update are read again for fp8
    assert "parts of it twice" in found.text()


def test_an_adapter_alone_is_merged_into_the_base_that_is_given(tmp_path: Path) -> None:
    folder, tensors = base(tmp_path)
    adapter = write_adapter(tmp_path / "adapter", factors(tensors, 1e-3, "q_proj"), base_model_name_or_path="/of/the/trainer")
    alone, both = (described(folder, tuned) for tuned in (adapter, f"{folder}+{adapter}"))
    assert alone.survival == both.survival and alone.modules == both.modules


def test_modules_are_measured_one_by_one(tmp_path: Path) -> None:
    folder, tensors = base(tmp_path)
    drawn = factors(tensors, 1e-3, "q_proj", "o_proj")
    _, second, third, fourth = drawn
    drawn[second] = drawn[second][0], torch.zeros_like(drawn[second][1])
    drawn[third][1][:, 2:] = drawn[third][1][:, :2]
    nothing: Any = {"model.layers.7.self_attn.q_proj.weight": tuple(factor.clone() for factor in drawn[fourth])}
    adapter, whole = write_adapter(tmp_path / "adapter", drawn | nothing), merged(tensors, drawn)
    found = described(folder, adapter)
    rows = {row.name: row for row in found.modules}
    for name in drawn:
        update = (whole[name] - tensors[name].float()).double().numpy()
        exact = drawn[name][1].double() @ drawn[name][0].double()
        assert rows[name].relative_norm == pytest.approx(np.linalg.norm(update) / np.linalg.norm(tensors[name].double().numpy()))
        assert rows[name].rank_used == np.linalg.matrix_rank(exact.numpy())
        assert (rows[name].rank, rows[name].scale) == (4, ALPHA / 4)
    assert [rows[name].rank_used for name in drawn] == [4, 0, 2, 4]
    assert [rows[name].empty for name in drawn] == [False, True, False, False]
    assert rows.keys() == drawn.keys() and len(found.unmatched) == 1
    assert "layers.7.self_attn.q_proj" in found.unmatched[0]
    said = report(folder, adapter).headline()
    assert "1 module was not merged: this is said of the other 4 of 5 (80%)." in said
    assert "1 module changes nothing: s B A is 0." in said


def test_updates_far_below_and_far_above_the_resolution_of_bf16(tmp_path: Path) -> None:
    folder, tensors = base(tmp_path)
    small = report(folder, write_adapter(tmp_path / "small", factors(tensors, 1e-8, "q_proj")))
    large = report(folder, write_adapter(tmp_path / "large", factors(tensors, 10.0, "q_proj")))
    assert small.adapter is not None and large.adapter is not None
    tiny, huge = small.adapter.survival["bf16"], large.adapter.survival["bf16"]
    assert tiny is not None and huge is not None
    assert tiny.changed_share is not None and tiny.changed_share < 0.01 and tiny.lost_norm == pytest.approx(1, abs=0.1)
    assert huge.changed_share == 1 and huge.lost_norm is not None and huge.lost_norm < 0.01
    assert "keeps its update" in large.headline() and "keeps" not in small.headline()
    assert "Store the merged model in" in small.next_step().advice and large.next_step().advice.startswith("Merge it in bf16")


def test_errors_larger_than_the_update_are_no_share_of_it(tmp_path: Path) -> None:
    """Of an fp32 base, rounding errors of base and merged weights do not cancel."""
    folder, tensors = base(tmp_path, F32)
    found = report(folder, write_adapter(tmp_path / "adapter", factors(tensors, 1e-6, "q_proj")))
    assert found.adapter is not None and (survival := found.adapter.survival["bf16"]) is not None
    assert survival.lost_norm is not None and survival.lost_norm > 1
    assert "is lost in rounding, whose errors are" in found.headline() and "%" not in found.headline().split(":")[0]


def test_an_empty_adapter_has_no_survival(tmp_path: Path) -> None:
    folder, tensors = base(tmp_path)
    drawn = {name: (a, torch.zeros_like(b)) for name, (a, b) in factors(tensors, 1, "q_proj").items()}
    found = report(folder, write_adapter(tmp_path / "adapter", drawn))
    assert found.adapter is not None and set(found.adapter.survival.values()) == {None}
    assert found.headline().startswith("The adapter changes nothing")


def test_an_update_that_is_not_finite_was_read_and_not_measured(tmp_path: Path) -> None:
    folder, tensors = base(tmp_path)
    drawn = {name: (a * torch.nan, b) for name, (a, b) in factors(tensors, 1, "q_proj").items()}
    headline = report(folder, write_adapter(tmp_path / "adapter", drawn)).headline()
    assert "not measured: no weight that was read changes by a finite amount" in headline


def test_one_infinite_value_is_counted_in_the_merged_weights(tmp_path: Path) -> None:
    folder, tensors = base(tmp_path)
    drawn = factors(tensors, 1, "q_proj")
    a, b = next(iter(drawn.values()))
    a[0, 3] = torch.inf  # a column of the product
    found = report(folder, write_adapter(tmp_path / "adapter", drawn))
    assert found.adapter is not None and found.adapter.non_finite == b.shape[0]
    assert f"{b.shape[0]} merged weights are NaN or infinite where the base is finite; this is about the others. " in found.headline()
    assert found.next_step().advice.startswith("Do not merge or use this adapter")


def test_quick_mode_estimates_with_an_interval(tmp_path: Path) -> None:
    folder, tensors = base(tmp_path, layers=4, width=512)
    drawn = factors(tensors, 3e-4, *QUICK)
    adapter, whole = write_adapter(tmp_path / "adapter", drawn), merged(tensors, drawn)
    found = report(folder, adapter, budget=1 << 20)
    assert found.adapter is not None and found.blocks
    for name in ("bf16", "fp16", "int4"):
        survival = found.adapter.survival[name]
        touched, changed, _, error, square = sums(tensors, whole, name, list(drawn))
        assert survival is not None and survival.low is not None and survival.high is not None
        assert survival.touched < touched and survival.changed_share == pytest.approx(changed / touched, abs=0.05)
        assert survival.low < (error / square) ** 0.5 < survival.high
    assert found.adapter.survival["fp8"] is not None and found.adapter.survival["fp8"].low is None
    assert "loses about" in found.headline() and "95% interval" in found.headline()
    assert any("its figures have no interval" in note for note in found.notes)


def test_two_adapters_that_pull_apart(tmp_path: Path) -> None:
    folder, tensors = base(tmp_path)
    drawn = factors(tensors, 1e-3, "q_proj")
    against = {name: (a, -b) for name, (a, b) in drawn.items()}
    one, other = write_adapter(tmp_path / "one", drawn), write_adapter(tmp_path / "other", against)
    third = write_adapter(tmp_path / "third", factors(tensors, 1e-3, "q_proj", "o_proj", seed=5))
    (overlap,) = described(folder, one, other).overlap
    assert overlap.modules == 2 and overlap.cosine == pytest.approx(-1)
    assert overlap.rows == pytest.approx(1) and overlap.columns == pytest.approx(1) and overlap.smallest_angle == pytest.approx(0, abs=1e-4)
    assert "their updates fight" in report(folder, one, other).headline()
    (overlap,) = described(folder, f"{folder}+0.5*{one}+2*{third}").overlap
    assert overlap.modules == 2 and overlap.cosine is not None and overlap.cosine_by_chance is not None
    assert abs(overlap.cosine) < 3 * overlap.cosine_by_chance < 0.2
    assert "unrelated" in report(folder, f"{folder}+0.5*{one}+2*{third}").headline()


def test_adapters_that_cancel(tmp_path: Path) -> None:
    """What is left is an error of the sum in fp32, which no format keeps."""
    folder, tensors = base(tmp_path)
    one = write_adapter(tmp_path / "one", factors(tensors, 1e-2, "q_proj"))
    found = report(folder, f"{folder}+{one}+-1*{one}")
    assert found.headline().startswith("The update is within the rounding errors of fp32: ")
    assert "Store the merged model in fp32" not in found.next_step().advice
    assert report(folder, f"{folder}+{one}+{one}").headline().startswith("Merged into bf16 these adapters keep their update")


def test_an_adapter_that_is_stored_with_its_base(tmp_path: Path) -> None:
    """It is described where the base that it is stored with is the one that it is compared with."""
    folder, tensors = base(tmp_path)
    adapter = write_adapter(tmp_path / "adapter", factors(tensors, 1e-3, "q_proj"))
    both = {name.replace("q_proj.weight", "q_proj.base_layer.weight"): tensor for name, tensor in tensors.items()}
    both |= {
        name.removeprefix("base_model.model.").replace(".weight", ".default.weight"): tensor
        for name, tensor in load_file(adapter / "adapter_model.safetensors").items()
    }
    unmerged = write(tmp_path / "unmerged", both, {"model_type": "llama"})
    shutil.copy(adapter / "adapter_config.json", unmerged)
    found, expected = report(folder, unmerged), described(folder, adapter)
    assert found.adapter is not None and (found.adapter.survival, found.adapter.modules) == (expected.survival, expected.modules)
    assert any("The adapter is stored with its base" in note for note in found.notes)
    other, _ = base(tmp_path / "other", F16)
    assert report(other, unmerged).adapter is None


def test_the_work_grows_with_the_number_of_modules_not_with_its_square(tmp_path: Path) -> None:
    """Progress is reported for each tensor, and what is left to read is not added up again each time."""

    def asked(layers: int) -> int:
        """Count how often a size is asked for by the thread that reports progress."""
        folder, tensors = base(tmp_path / str(layers), layers=layers)
        adapter = write_adapter(tmp_path / f"adapter-{layers}", factors(tensors, 1e-3, "_proj"))
        calls: Counter[str] = Counter()
        sys.setprofile(lambda frame, event, _: calls.update([frame.f_code.co_name] if event == "call" else []))
        try:
            report(folder, adapter)
        finally:
            sys.setprofile(None)
        return calls["nbytes"]

    assert asked(16) < 3 * asked(8)


def test_a_tied_head_that_drifts(tmp_path: Path) -> None:
    folder, tensors = base(tmp_path, tie_word_embeddings=True)
    embedding = tensors["model.embed_tokens.weight"]
    drawn = factors({"lm_head.weight": embedding}, 1e-3, "lm_head")
    found = report(folder, write_adapter(tmp_path / "adapter", drawn))
    update = ALPHA / 4 * drawn["lm_head.weight"][1].double() @ drawn["lm_head.weight"][0].double()
    assert found.adapter is not None
    assert found.adapter.tied_drift == pytest.approx(float(update.norm() / embedding.double().norm()), rel=1e-5)
    assert "The base ties its head to its embedding" in found.headline()


def test_dora_has_no_rank(tmp_path: Path) -> None:
    folder, tensors = base(tmp_path)
    drawn = factors(tensors, 1e-3, "q_proj")
    magnitudes = {f"{name.removesuffix('.weight')}.lora_magnitude_vector": tensors[name].float().norm(dim=1) * 1.01 for name in drawn}
    adapter = write_adapter(tmp_path / "adapter", drawn, magnitudes, use_dora=True)
    found = described(folder, adapter)
    assert found.kind == "DoRA" and {row.rank_used for row in found.modules} == {None} == {row.empty for row in found.modules}
    for row in found.modules:
        w = tensors[row.name].double()
        summed = w + ALPHA / 4 * drawn[row.name][1].double() @ drawn[row.name][0].double()
        update = magnitudes[f"{row.name.removesuffix('.weight')}.lora_magnitude_vector"].double()[:, None] / summed.norm(dim=1)[:, None]
        assert row.relative_norm == pytest.approx(float((update * summed - w).norm() / w.norm()), rel=1e-4)


def test_saved_modules_survive_as_they_are_stored(tmp_path: Path) -> None:
    folder, tensors = base(tmp_path)
    saved = {"lm_head.weight": tensors["lm_head.weight"].float() + 1e-3}
    adapter = write_adapter(tmp_path / "adapter", factors(tensors, 1e-3, "q_proj"), saved, modules_to_save=["lm_head"])
    found = described(folder, adapter)
    (head,) = (row for row in found.modules if row.name == "lm_head.weight")
    assert head.rank_used is None and head.empty is None and head.relative_norm is not None
    assert found.survival["bf16"] is not None and "head" in {row.name for row in found.survival["bf16"].roles}


def test_nothing_is_said_of_an_adapter_merged_into_another_base(tmp_path: Path) -> None:
    folder, tensors = base(tmp_path)
    adapter = write_adapter(tmp_path / "adapter", factors(tensors, 1e-3, "q_proj"))
    other, _ = base(tmp_path / "other", F16)
    assert report(other, f"{folder}+{adapter}").adapter is None


def test_a_changed_module_without_a_counterpart_is_named(tmp_path: Path) -> None:
    folder, tensors = base(tmp_path, tie_word_embeddings=True)
    head = factors({"lm_head.weight": tensors["model.embed_tokens.weight"]}, 1e-3, "lm_head")
    found = report(folder, write_adapter(tmp_path / "adapter", factors(tensors, 1e-3, "q_proj") | head))
    assert "1 module has no counterpart in the base to compare with" in found.headline()
