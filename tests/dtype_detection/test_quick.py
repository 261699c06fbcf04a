"""Quick mode: the verdicts of exact mode from a small part, and intervals that hold the exact shares."""

import re
from pathlib import Path

import pytest
import torch

from analyzers.coverage import unseen
from analyzers.errors import InvalidRequest
from analyzers.formatting import share
from tests.cases import few
from tests.dtype_detection.checkpoints import from_fp8, normal, through, write
from tests.dtype_detection.reports import exact, inspect

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
HISTORIES = {
    "fp32": (F32,),
    "bf16": (BF16,),
    "fp16": (F16,),
    "bf16-as-fp32": (BF16, F32),
    "fp16-as-fp32": (F16, F32),
    "bf16-as-fp16": (BF16, F16),
    "fp16-as-bf16": (F16, BF16),
}


def model(*dtypes: torch.dtype) -> dict[str, torch.Tensor]:
    """Two layers, 0.8 million parameters."""
    tensors = {"model.embed_tokens.weight": through(normal(1000, 256, seed=99), *dtypes)}
    for i in range(2):
        for j, part in enumerate(("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")):
            tensors[f"model.layers.{i}.{part}.weight"] = through(normal(256, 256, seed=10 * i + j), *dtypes)
        tensors[f"model.layers.{i}.input_layernorm.weight"] = through(1 + normal(256, seed=50 + i, scale=0.1), *dtypes)
    return tensors


@pytest.mark.parametrize("name", few(HISTORIES, {0, 1, 3, 5}))
def test_verdicts_from_a_small_part(name: str, tmp_path: Path) -> None:
    folder = write(tmp_path, model(*HISTORIES[name]))
    whole, quick = exact(folder), inspect(folder, budget=1_000_000, seed=5)
    assert quick.bytes_read <= 1_000_000 < whole.bytes_read
    assert (quick.lineage.verdict, quick.lineage.passed_through) == (whole.lineage.verdict, whole.lineage.passed_through)
    assert (quick.training.verdict, quick.fp16_risk.level) == (whole.training.verdict, whole.fp16_risk.level)
    assert not quick.extremes.exact and any("sample" in note for note in quick.notes)
    assert quick.extremes.abs_max is not None and whole.extremes.abs_max is not None
    assert quick.extremes.abs_max <= whole.extremes.abs_max
    assert quick.extremes.norm_max == pytest.approx(whole.extremes.norm_max, rel=0.1)
    assert [row.name for row in quick.tensors] == [row.name for row in whole.tensors]
    assert quick.values_read == sum(row.values_read for row in quick.tensors)


def test_what_a_sample_says_of_the_rest(tmp_path: Path) -> None:
    """With B blocks read, kinds of blocks of which none was read are at most 3/B of all."""
    native, copy = write(tmp_path / "native", model(F32)), write(tmp_path / "copy", model(BF16, F32))
    for folder, said in ((native, "No narrower format survives in the fp32 values read: "), (copy, "bf16 then fp32: ")):
        whole, quick = exact(folder).lineage.statement, inspect(folder, budget=1_000_000).lineage.statement
        bound = re.search(r" Blocks of another history, of which none was read, are at most ([\d.]+)% of all \(95% confidence\)\.$", quick)
        assert quick.startswith(said) and bound and 0 < float(bound[1]) < 100
        assert "none was read" not in whole and "values read" not in whole
    assert "none an exception. That so many different values of one grid (" in whole and "has odds of 1 in 10^" in whole


@pytest.mark.exhaustive
def test_shares_of_parameters_and_rows_of_a_sample_are_of_what_was_read(tmp_path: Path) -> None:
    tensors = {f"model.layers.{i}.mlp.up_proj.weight": normal(512, 512, seed=i) for i in range(8)}
    for name in list(tensors)[:4]:
        tensors[name] = through(tensors[name], BF16, F32)
    tensors |= {"fossils.weight": torch.cat([through(normal(400, 512, seed=8), BF16, F32), normal(112, 512, seed=9)])}
    folder = write(tmp_path, tensors)
    whole, quick = exact(folder).lineage, inspect(folder, budget=3_000_000).lineage
    assert whole.verdict == quick.verdict == "mixed" and whole.fossil_rows and quick.fossil_rows
    assert "of the parameters, each tensor judged by what was read of it; " in quick.statement and "rows read are exact" in quick.statement
    assert "of the parameters; " in whole.statement and "rows are exact" in whole.statement and "read" not in whole.statement
    tensors = {"a.weight": through(normal(2048, 1024), BF16, F32), "model.norm.weight": normal(1024)}
    quick = inspect(write(tmp_path / "upcast", tensors), budget=2_000_000).lineage
    assert "1 tensor is native (0.0488% of the parameters, by what was read)." in quick.statement


def test_the_headline_of_a_native_sample_bounds_the_rest(tmp_path: Path) -> None:
    folder = write(tmp_path, model(F32))
    whole, quick = exact(folder), inspect(folder, budget=1_000_000)
    assert quick.blocks and quick.unseen and f"(others: {unseen(quick.blocks, quick.unseen)})." in quick.headline()
    assert "survives in the values." in whole.headline() and " read carries" not in whole.text()
    older = inspect(write(tmp_path / "copy", model(BF16, F32)), budget=1_000_000).model_copy(update={"blocks": None})
    step = older.next_step()
    assert step is not None and "the same values" not in step.advice and "the values read stay the same" in step.advice


def test_what_is_counted_in_a_sample_is_said_of_it(tmp_path: Path) -> None:
    tensors = {"a.weight": normal(2048, 512) * 1e-3, "model.norm.weight": normal(512)}
    whole, quick = (run(write(tmp_path / "small", tensors)) for run in (exact, lambda folder: inspect(folder, budget=500_000)))
    assert [reason.split("% ")[1] for reason in quick.fp16_risk.reasons[-2:-1]] == [
        "of the nonzero weights read become subnormal and lose precision (below 2^-14)."
    ]
    assert not any(" read " in reason for reason in whole.fp16_risk.reasons)
    assert quick.movable and quick.movable.statement.endswith(", as estimated from a sample.")
    assert whole.movable and "sample" not in whole.movable.statement
    tensors["a.weight"] *= 1e9
    quick = inspect(write(tmp_path / "large", tensors), budget=500_000)
    step = quick.next_step()
    assert step is not None and f"at least {quick.counts.fp16_overflow:,} weights would become infinite" in step.advice


def test_every_sentence_has_the_bound_over_the_strata(tmp_path: Path) -> None:
    """Small roles have many of the blocks and few of the values: 3/B over all blocks would say too little."""
    tensors = {f"model.layers.{i}.mlp.up_proj.weight": normal(1024, 256, seed=i) for i in range(6)}
    tensors |= {f"model.layers.{i}.self_attn.q_proj.weight": normal(64, 64, seed=10 + i) for i in range(6)}
    tensors |= {f"{name}.weight": normal(100, 256, seed=20) for name in ("model.embed_tokens", "lm_head", "visual.proj")}
    report = inspect(write(tmp_path, {name: through(each, BF16, F32) for name, each in tensors.items()}), budget=220_000)
    assert report.blocks and report.unseen and report.unseen > 4.5 / report.blocks
    bound = f"at most {share(report.unseen)} of "
    assert all(
        bound in said for said in (report.headline(), report.next_step().advice, report.lineage.statement, report.fp16_risk.reasons[0])
    )


def test_fp8_from_a_small_part(tmp_path: Path) -> None:
    tensors = {f"model.layers.{i}.mlp.up_proj.weight": from_fp8(normal(256, 1280, seed=i), torch.float8_e4m3fn, BF16) for i in range(4)}
    folder = write(tmp_path, tensors)
    report = inspect(folder, budget=300_000)
    assert (report.lineage.verdict, report.lineage.passed_through) == ("fp8-ancestor", ("fp8_e4m3",))


def test_intervals_hold_the_exact_shares(tmp_path: Path) -> None:
    """Over many seeds and shares: at least nine in ten, and never far off."""
    tensors = model(F32)
    for i, tensor in enumerate(tensors.values()):
        flat = tensor.view(-1)
        flat[:: 3 + i % 4] = through(flat[:: 3 + i % 4], BF16, F32)
        flat[:: 97 + i] = 0
        flat[1 :: 89 + i] *= 1e-4
    folder = write(tmp_path, tensors)
    whole = exact(folder)
    assert whole.intervals == {}
    nonzero = whole.values_read - whole.counts.zero
    truth = {f"representable.{name}": share for name, share in whole.representable.model_dump().items()}
    truth |= {name: getattr(whole.counts, name) / whole.values_read for name in ("zero", "fp16_underflow", "fp16_subnormal")}
    assert nonzero > 0
    inside = asked = 0
    for seed in range(6):
        report = inspect(folder, budget=500_000, seed=seed)
        for name, interval in report.intervals.items():
            assert 0 <= interval.low <= interval.estimate <= interval.high <= 1
            share = truth[name]
            assert share is not None
            asked += 1
            inside += interval.low <= share <= interval.high
            if name.startswith("representable."):
                assert getattr(report.representable, name.removeprefix("representable.")) == interval.estimate
    assert asked >= 6 * 4 and inside >= 0.9 * asked


def test_a_budget_for_everything_reads_everything(tmp_path: Path) -> None:
    folder = write(tmp_path, {"a.weight": normal(64, 64), "b.weight": normal(64)})
    quick, whole = inspect(folder), exact(folder)
    assert quick.extremes == whole.extremes and quick.extremes.exact and quick.intervals == {}
    assert quick.lineage == whole.lineage and quick.tensors == whole.tensors


@pytest.mark.parametrize("budget", [1, 4, 100, 5000])
def test_tiny_budgets_are_kept_or_refused(budget: int, tmp_path: Path) -> None:
    folder = write(tmp_path, {"a.weight": normal(640, 64), "b.weight": normal(64)})
    if budget < 4:
        with pytest.raises(InvalidRequest, match="too small"):
            inspect(folder, budget=budget)
    else:
        assert 0 < inspect(folder, budget=budget).bytes_read <= budget


def test_seeds_choose_other_places(tmp_path: Path) -> None:
    folder = write(tmp_path, {"a.weight": normal(6400, 64)})
    seen = {inspect(folder, budget=50_000, seed=seed).counts.fp16_subnormal for seed in range(4)}
    assert len(seen) > 1
