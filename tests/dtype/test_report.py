"""What a report says against torch; its JSON, its id, its names; filters, subfolders, shards, buffers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from analyzers.core import limits
from analyzers.core.errors import InvalidFilter, InvalidRequest, MantissaError, NoWeights, UnsupportedWeights
from analyzers.dtype import DtypeReport, DtypeRequest
from tests.dtype.checkpoints import NAMES, normal, write
from tests.dtype.reports import exact, inspect, parsed, steady

F64, F32, BF16, F16 = torch.float64, torch.float32, torch.bfloat16, torch.float16
inf, nan = float("inf"), float("nan")


def varied() -> dict[str, torch.Tensor]:
    """Tensors of every dtype and oddity that statistics must get right."""
    odd = normal(64, 48, seed=1)
    odd[0, :8] = torch.tensor([nan, inf, -inf, 0.0, -0.0, 65519.0, 65520.0, -7e4])
    odd[1, :8] = torch.tensor([65504.0, 65535.0, 65536.0, 2.0**-25, 2.0**-24, 3e-8, 1e-40, 2.0**-14])
    return {
        "model.embed_tokens.weight": normal(100, 48),
        "model.layers.0.self_attn.q_proj.weight": normal(48, 48, seed=2).to(BF16),
        "model.layers.0.mlp.up_proj.weight": odd,
        "model.layers.1.mlp.up_proj.weight": odd.to(F16),
        "model.layers.1.mlp.down_proj.weight": (odd * 1e3).to(BF16),
        "model.layers.1.self_attn.o_proj.weight": odd.to(F64) * 1e3,
        "model.layers.2.mlp.up_proj.weight": normal(16, 128, scale=10).to(torch.float8_e4m3fn),
        "model.layers.2.mlp.down_proj.weight": (normal(16, 128, scale=10)).to(torch.float8_e5m2),
        "model.norm.weight": torch.ones(48),
        "zeros": torch.zeros(8, 8),
        "nothing": torch.zeros(0, 8),
        "scalar": torch.tensor(-3.0),
        "not.a.number": torch.full((5,), nan, dtype=BF16),
    }


def check(row: dict[str, Any], tensor: torch.Tensor) -> None:
    """One row of the report against torch in float64."""
    x = (tensor.to(F32) if tensor.dtype == F64 else tensor).to(F64).flatten()  # fp64 is converted on reading
    finite = x[x.isfinite()].abs()
    nonzero = finite[finite > 0]

    def least(v: torch.Tensor) -> float | None:
        return v.min().item() if v.numel() else None

    assert (row["abs_min"], row["abs_min_nonzero"]) == (least(finite), least(nonzero))
    assert row["abs_max"] == (finite.max().item() if finite.numel() else None)
    assert row["norm"] == (pytest.approx(finite.norm().item(), rel=1e-12) if finite.numel() else None)
    half = nonzero.numpy().astype("float16") if nonzero.numel() and nonzero.max() < 6e4 else torch.clamp(nonzero, max=1e5).numpy()
    assert row["zero"] == int((x == 0).sum()) and row["nan"] == int(x.isnan().sum()) and row["inf"] == int(x.isinf().sum())
    assert row["fp16_overflow"] == int((nonzero >= 65520).sum())
    assert row["fp16_underflow"] == int((nonzero <= 2.0**-25).sum())
    assert row["fp16_subnormal"] == int(((nonzero > 2.0**-25) & (nonzero < 2.0**-14)).sum())
    subnormal = nonzero[(nonzero > 2.0**-25) & (nonzero < 2.0**-14)]
    assert row["fp16_inexact_subnormal"] == int((subnormal.to(F16).to(F64) != subnormal).sum())
    assert len(half) == nonzero.numel()
    for name, dtype in (("bf16", BF16), ("fp16", F16), ("fp8_e4m3", torch.float8_e4m3fn), ("fp8_e5m2", torch.float8_e5m2)):
        narrow = nonzero.to(F32)
        kept = (narrow.to(F64) == nonzero) & (narrow.to(dtype).to(F64) == nonzero)
        assert row["representable"][name] == (pytest.approx(kept.double().mean().item(), rel=1e-12) if nonzero.numel() else None), name


def test_every_row_is_what_torch_says(tmp_path: Path) -> None:
    tensors = varied()
    report = parsed(exact(write(tmp_path, tensors)))
    rows = {row["name"]: row for row in report["tensors"]}
    assert rows.keys() == tensors.keys()
    for name, tensor in tensors.items():
        row = rows[name]
        assert (row["dtype"], row["shape"], row["parameters"]) == (NAMES[tensor.dtype], list(tensor.shape), tensor.numel())
        assert row["values_read"] == tensor.numel()
        check(row, tensor)


def test_the_whole_is_the_sum_of_its_rows(tmp_path: Path) -> None:
    report = exact(write(tmp_path, varied()))
    for name in ("zero", "nan", "inf", "fp16_overflow", "fp16_underflow", "fp16_subnormal", "fp16_inexact_subnormal"):
        assert getattr(report.counts, name) == sum(getattr(row, name) for row in report.tensors)
    rows = report.tensors
    assert report.extremes.abs_min == 0 and report.extremes.exact
    assert report.extremes.abs_max_in == max(rows, key=lambda row: row.abs_max or 0).name
    assert report.extremes.abs_min_nonzero == min(r.abs_min_nonzero for r in rows if r.abs_min_nonzero is not None)
    assert report.extremes.abs_max == max(r.abs_max for r in rows if r.abs_max is not None)
    norms = [r.norm for r in rows if r.norm]
    assert (report.extremes.norm_min, report.extremes.norm_max) == (min(norms), max(norms))
    assert report.checkpoint.parameters == report.selected_parameters == sum(t.numel() for t in varied().values())
    assert report.values_read == report.checkpoint.parameters and report.bytes_read == report.checkpoint.bytes
    nonzero = sum(int((t.to(F64).isfinite() & (t.to(F64) != 0)).sum()) for t in varied().values())
    assert sum(e.count for e in report.exponents) == nonzero
    assert [e.exponent for e in report.exponents] == sorted({e.exponent for e in report.exponents})
    assert report.fp16_risk.level == "overflow" and report.fp16_risk.reasons[0] == "overflow"
    layers = {(row.layer, row.role): row for row in report.layers}
    assert layers[0, "attention"].parameters == 48 * 48
    attention = varied()["model.layers.0.self_attn.q_proj.weight"].to(F64)
    assert layers[0, "attention"].rms == pytest.approx((attention**2).mean().sqrt().item(), rel=1e-12)


def test_buffers_decide_nothing(tmp_path: Path) -> None:
    weights = {"h.0.attn.c_attn.weight": normal(64, 64).to(BF16).to(F32), "ln_f.weight": torch.ones(64)}
    buffers = {
        "h.0.attn.masked_bias": torch.tensor(-1e9),
        "h.0.attn.bias": torch.tril(torch.ones(1, 1, 16, 16)),
        "rotary_emb.inv_freq": 1 / 10000 ** (torch.arange(0, 16, 2) / 16),
        "position_ids": torch.arange(32),
        "token_map": torch.arange(10),
    }
    plain, both = exact(write(tmp_path / "a", weights)), exact(write(tmp_path / "b", weights | buffers))
    assert {row.name for row in both.buffers} == set(buffers)
    ids = ("id", "request", "checkpoint", "timing", "environment", "advice", "notes", "buffers", "coverage")
    assert {k: v for k, v in parsed(both).items() if k not in ids} == {k: v for k, v in parsed(plain).items() if k not in ids}
    assert both.extremes.abs_max is not None and both.extremes.abs_max < 2 and both.fp16_risk.level != "overflow"
    assert both.coverage[0].classes["buffer"].tensors == len(buffers) and both.coverage[0].whole
    assert both.checkpoint.tensors == 7 and both.checkpoint.parameters == plain.checkpoint.parameters


def test_the_same_request_gives_the_same_report(tmp_path: Path) -> None:
    """And the same id, which depends on the commit and on options that are not at their default."""
    tensors = {"a.weight": normal(64, 64), "b.weight": normal(64, 64, seed=1)}
    folder = write(tmp_path / "a", tensors)
    base = inspect(folder, budget=9000, seed=3)
    assert steady(base) == steady(inspect(folder, budget=9000, seed=3))
    assert DtypeReport.model_validate_json(base.model_dump_json()) == base
    assert inspect(folder, budget=9000, seed=3, include="", device="cpu").id == base.id
    other: list[dict[str, Any]] = [{"seed": 1}, {"budget": 5000}, {"include": "a"}, {"exclude": "a"}, {"mode": "exact"}]
    assert len({base.id, *(inspect(folder, **options).id for options in other)}) == 1 + len(other)
    moved = write(folder, tensors | {"a.weight": normal(64, 64, seed=9)})
    assert inspect(moved, budget=9000, seed=3).checkpoint.commit != base.checkpoint.commit


def test_filters_leave_only_what_is_asked_for(tmp_path: Path) -> None:
    tensors = {f"model.layers.{i}.mlp.up_proj.weight": normal(32, 32, seed=i) for i in range(12)} | {"lm_head.weight": normal(64, 32) * 1e7}
    folder = write(tmp_path, tensors)
    report = exact(folder, include=r"layers\.(1|2)\.", exclude=r"\.2\.")
    assert [row.name for row in report.tensors] == ["model.layers.1.mlp.up_proj.weight"]
    assert (report.selected_tensors, report.selected_parameters, report.checkpoint.parameters) == (1, 1024, 12 * 1024 + 2048)
    assert report.bytes_read == 4096 and report.fp16_risk.level != "overflow"
    for options in ({"include": "decoder"}, {"include": "("}, {"exclude": "weight"}):
        with pytest.raises(InvalidFilter):
            exact(folder, **options)


@pytest.mark.parametrize(
    ("tensors", "error"),
    [
        ({"layer.qweight": torch.zeros(8, 8, dtype=torch.int32), "layer.qzeros": torch.zeros(1, dtype=torch.int32),
          "layer.scales": torch.ones(8, dtype=F16), "layer.g_idx": torch.zeros(8, dtype=torch.int32)}, UnsupportedWeights),
        ({"codes.weight": torch.zeros(8, 8, dtype=torch.int8)}, UnsupportedWeights),
        ({"position_ids": torch.arange(8)}, NoWeights),
        ({"weight": torch.zeros(0, 4)}, NoWeights),
    ],
)  # fmt: skip
def test_without_floats_there_is_no_report(tensors: dict[str, torch.Tensor], error: type[MantissaError], tmp_path: Path) -> None:
    with pytest.raises(error):
        exact(write(tmp_path, tensors))


@pytest.mark.parametrize(
    ("values", "level"),
    [
        ([0.1] * 100, "fits"),
        ([0.1] * 100 + [65519.0], "fits"),
        ([0.1] * 100 + [65520.0], "overflow"),
        ([0.1] * 9999 + [2.0**-25], "fits"),
        ([0.1] * 9998 + [2.0**-25] * 2, "caution"),
        ([0.1] * 98 + [1e-5] * 2, "caution"),
        ([0.1] * 98 + [2.0**-15, 3 * 2.0**-24], "fits"),  # subnormal, and held exactly
        ([0.1] * 99 + [1e-5], "fits"),
        ([0.0] * 10, "unknown"),
        ([nan, inf], "unknown"),
        ([0.1] * 100 + [nan], "broken"),
        ([0.1] * 98 + [1e-5] * 2 + [-inf], "broken"),
        ([0.1] * 100 + [65520.0, nan], "overflow"),
    ],
)
def test_fp16_risk(values: list[float], level: str, tmp_path: Path) -> None:
    report = exact(write(tmp_path, {"weight": torch.tensor(values)}))
    assert report.fp16_risk.level == level


def test_classifier_without_head_and_names_its_basis(tmp_path: Path) -> None:
    """The features are those of the reference table, without the LM head; without magnitudes there is no basis."""
    tensors = {"model.layers.0.mlp.up_proj.weight": normal(512, 512, scale=1.0), "lm_head.weight": normal(64, 64) * 1e5}
    report = exact(write(tmp_path / "a", tensors))
    assert (report.training.verdict, report.training.basis) == ("undecided", "classifier")
    assert report.extremes.abs_max is not None and report.extremes.abs_max > 1e2
    assert exact(write(tmp_path / "b", {"a.weight": torch.full((64, 64), nan)})).training.basis == "none"


@pytest.mark.parametrize(
    "options",
    [
        {"budget": -1},
        {"budget": 1.5},
        {"budget": True},
        {"budget": 10**18},
        {"seed": 2**63},
        {"mode": "exact", "budget": 5},
        {"include": 3},
    ],
)
def test_requests_validate_everything(options: dict[str, Any]) -> None:
    with pytest.raises((ValidationError, InvalidRequest)):
        DtypeRequest(model="a/b", **options)


def test_of_many_tensors_the_report_has_the_first_and_files_have_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REPORT_TENSORS", 400)
    tensors = {f"model.layers.{i // 100}.mlp.experts.{i % 100}.up_proj.weight": normal(4, 8, seed=i) for i in range(500)}
    tensors["model.norm.weight"] = torch.ones(8)
    report = exact(write(tmp_path, tensors))
    assert len(report.tensors) == 400 and sum(row.tensors for row in report.layers) == 501
    full = report.full_tables()["tensors"]
    assert sorted(full["name"]) == sorted(tensors) and len(report.tables()["tensors"]) == 400
    row = full[full["name"] == "model.norm.weight"].iloc[0]
    assert (row["norm"], row["parameters"], row["lineage_verdict"]) == (pytest.approx(8**0.5), 8, "undecided")
