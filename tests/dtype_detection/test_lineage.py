"""Verdicts on checkpoints of known history: right where the bits decide, undecided where they do not."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.dtype_detection.checkpoints import from_fp8, normal, through, write
from tests.dtype_detection.reports import exact, parsed

F64, F32, BF16, F16 = torch.float64, torch.float32, torch.bfloat16, torch.float16
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2

# What was done to fp32 values, and what their bits then prove.
HISTORIES: dict[str, tuple[torch.Tensor, str, tuple[str, ...]]] = {
    "fp32": (normal(256, 256), "native", ()),
    "bf16": (normal(512, 512).to(BF16), "native", ()),
    "fp16": (normal(256, 256).to(F16), "native", ()),
    "fp64": (torch.from_numpy(np.random.default_rng(1).standard_normal((128, 128))), "native", ()),
    "bf16->fp64": (through(normal(128, 128), BF16, F64), "upcast-from-bf16", ("bf16",)),
    "bf16->fp32": (through(normal(512, 512), BF16, F32), "upcast-from-bf16", ("bf16",)),
    "fp16->fp32": (through(normal(256, 256), F16, F32), "upcast-from-fp16", ("fp16",)),
    "bf16->fp16": (through(normal(256, 256), BF16, F16), "downcast-from-bf16", ("bf16",)),
    "fp16->bf16": (through(normal(512, 512), F16, BF16), "fp16-ancestor", ("fp16",)),
    "fp16->bf16->fp32": (through(normal(512, 512), F16, BF16, F32), "upcast-from-bf16", ("fp16", "bf16")),
    "bf16->fp32->fp16": (through(normal(256, 256), BF16, F32, F16), "downcast-from-bf16", ("bf16",)),
    "e4m3->bf16": (from_fp8(normal(256, 1280), E4M3, BF16), "fp8-ancestor", ("fp8_e4m3",)),
    "e5m2->bf16": (from_fp8(normal(256, 1280), E5M2, BF16), "fp8-ancestor", ("fp8_e5m2",)),
    "e4m3->fp32": (from_fp8(normal(256, 1280), E4M3, F32), "fp8-ancestor", ("fp8_e4m3",)),
    "e4m3->bf16->fp32": (through(from_fp8(normal(256, 1280), E4M3, BF16), F32), "upcast-from-bf16", ("fp8_e4m3", "bf16")),
    "e4m3->fp16": (from_fp8(normal(256, 1280, scale=1.0), E4M3, F16), "fp8-ancestor", ("fp8_e4m3",)),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_histories(name: str, tmp_path: Path) -> None:
    tensor, verdict, ancestors = HISTORIES[name]
    report = exact(write(tmp_path, {"model.layers.0.mlp.up_proj.weight": tensor}))
    assert (report.lineage.verdict, report.lineage.passed_through) == (verdict, ancestors)
    assert (report.tensors[0].lineage.verdict, report.tensors[0].lineage.passed_through) == (verdict, ancestors)
    (part,) = report.lineage.parts
    assert (part.verdict, part.tensors, part.parameters) == (verdict, 1, tensor.numel())
    assert report.lineage.fossil_rows == 0
    for evidence in report.lineage.evidence:
        assert 0 <= evidence.exceptions <= evidence.tested
        assert not (evidence.proven and evidence.exceptions)
        if evidence.proven:
            assert evidence.log10_chance <= -9


UNDECIDED = {
    "one value": torch.tensor([0.5]),
    "scalar": torch.tensor(0.25, dtype=BF16),
    "ones": torch.ones(4096),
    "zeros": torch.zeros(64, 64, dtype=F16),
    "powers of two": torch.exp2(torch.arange(-8, 8)).repeat(64),
    "constant on all grids": torch.full((64, 64), 0.375),
    "bf16 without small values": torch.ones(4096, dtype=BF16) * 0.1,
    "NaN": torch.full((100,), float("nan")),
    "infinity": torch.full((100,), float("inf"), dtype=BF16),
    "binary": ((2 * torch.randint(0, 2, (64, 256), generator=torch.Generator().manual_seed(0)) - 1) * 0.37).to(BF16),
    "few magnitudes of both signs": torch.tensor([1.25, 1.5, 1.75, 2.5, 3.5, -1.25, -1.5, -1.75, -2.5, -3.5] * 40, dtype=F16),
    "norms near one in bf16": (1 + 0.003 * normal(64, 1280, scale=1.0)).to(BF16),
    "fp8 as stored": normal(64, 64, scale=1.0).to(E4M3),
}


@pytest.mark.parametrize("name", UNDECIDED)
def test_what_the_bits_do_not_decide_is_left_open(name: str, tmp_path: Path) -> None:
    report = exact(write(tmp_path, {"weight": UNDECIDED[name]}))
    assert report.lineage.verdict == "undecided" == report.tensors[0].lineage.verdict
    assert report.lineage.passed_through == ()
    assert not any(e.proven for e in report.lineage.evidence)
    parsed(report)


@pytest.mark.parametrize("stored", [F32, F16])
def test_one_exception_refutes(stored: torch.dtype, tmp_path: Path) -> None:
    tensor = through(normal(128, 128), BF16, stored)
    tensor[5, 7] = 1 + 2.0**-10
    report = exact(write(tmp_path, {"weight": tensor}))
    (evidence,) = (e for e in report.lineage.evidence if e.test == "bf16_exact")
    assert evidence.exceptions == 1 and not evidence.proven
    assert report.lineage.verdict == "mixed" and report.lineage.fossil_rows == 127
    assert report.lineage.passed_through == ("bf16",)


@pytest.mark.parametrize("size", [8, 9, 14, 16])
def test_evidence_needs_enough_different_values(size: int, tmp_path: Path) -> None:
    """fp16 from bf16: three bits each, but for the values near the step of all, so that eleven are needed for 1e-9."""
    i = torch.arange(size)
    values = ((1 + (2 * i + 1) / 128) * 2.0 ** -(i % 8)).to(F16)
    report = exact(write(tmp_path, {"weight": values.repeat(50)}))
    assert report.lineage.verdict == ("downcast-from-bf16" if size >= 12 else "undecided")
    assert report.lineage.evidence[0].distinct < size


def test_integers_are_exact_in_bf16_whatever_came_before(tmp_path: Path) -> None:
    """A few above 256 are so by luck; and what is proven of one tensor is refuted for all by an exception in another."""
    integers = torch.cat([torch.arange(-255, 256), torch.tensor([258, 300, 516, 1032])]).float()
    report = exact(write(tmp_path / "lucky", {f"{i}.weight": integers.repeat(4) for i in range(3)}))
    assert (report.lineage.verdict, report.lineage.passed_through) == ("undecided", ())
    assert report.lineage.evidence[0].result == "open"
    rest = {f"{i}.weight": torch.arange(600.0) for i in range(28)}  # exact in fp16, and not in bf16
    assert exact(write(tmp_path / "rest", rest)).lineage.evidence[0].result == "refuted"  # though 43% of the values are exact in it
    lineage = exact(write(tmp_path / "two", rest | {f"b{i}.weight": through(normal(64, 64, seed=i), BF16, F32) for i in range(2)})).lineage
    assert (lineage.verdict, lineage.passed_through) == ("mixed", ("bf16",))
    assert [(part.verdict, part.tensors) for part in lineage.parts] == [("undecided", 28), ("upcast-from-bf16", 2)]


def test_fossil_rows_in_fp32(tmp_path: Path) -> None:
    tensor = normal(300, 64)
    tensor[:40] = through(tensor[:40], BF16, F32)
    report = exact(write(tmp_path, {"model.embed_tokens.weight": tensor, "model.norm.weight": normal(64, seed=2)}))
    row = report.tensors[0]
    assert (row.fossil_rows, row.lineage.verdict, row.lineage.passed_through) == (40, "mixed", ("bf16",))
    assert report.lineage.verdict == "mixed" and report.lineage.fossil_rows == 40
    found = next(e for e in row.lineage.evidence if e.test == "bf16_exact")
    assert found.result == "partly" and 1 - found.exceptions / found.tested == pytest.approx(40 / 300, abs=1e-3)


def test_fossil_rows_of_fp16_are_named_fp16(tmp_path: Path) -> None:
    tensor = normal(300, 64)
    tensor[7:90] = through(tensor[7:90], F16, F32)
    row = exact(write(tmp_path, {"model.embed_tokens.weight": tensor})).tensors[0]
    assert (row.fossil_rows, row.lineage.passed_through) == (83, ("fp16",))


@pytest.mark.parametrize("columns", [64, 512])
def test_rows_of_tf32_are_no_fossils_of_fp16(columns: int, tmp_path: Path) -> None:
    """Of as many bits as fp16 keeps, all values from 2^-14 on are fp16's, and most rows hold no others."""
    tf32 = (normal(1024, columns, scale=0.05).view(torch.int32) & ~0x1FFF).view(F32)
    row = exact(write(tmp_path, {"a.weight": tf32})).tensors[0]
    assert (row.fossil_rows, row.lineage.verdict, row.lineage.passed_through) == (0, "native", ())


def test_fossil_rows_in_fp16(tmp_path: Path) -> None:
    tensor = normal(200, 96).to(F16)
    tensor[150:] = through(normal(50, 96, seed=3), BF16, F16)
    row = exact(write(tmp_path, {"model.embed_tokens.weight": tensor})).tensors[0]
    assert (row.fossil_rows, row.lineage.verdict, row.lineage.passed_through) == (50, "mixed", ("bf16",))


def test_rows_of_ones_zeros_and_padding_are_no_fossils(tmp_path: Path) -> None:
    tensor = normal(100, 64)
    tensor[10], tensor[11], tensor[12], tensor[13] = 0, 1, 0.5, 0.375
    row = exact(write(tmp_path, {"model.embed_tokens.weight": tensor})).tensors[0]
    assert (row.fossil_rows, row.lineage.verdict) == (0, "native")


def test_small_values_alone_prove_no_fp16(tmp_path: Path) -> None:
    """Cancellation leaves small sums on a coarse grid too; no training changes the larger values alone."""
    small = normal(400, 400, seed=4, scale=1e-5)
    native = torch.where(normal(400, 400).abs() < 1e-4, 0.0123, normal(400, 400))
    report = exact(write(tmp_path, {"weight": torch.where(small.abs() < 2.0**-18, through(small, F16, F32), native)}))
    assert (report.lineage.verdict, report.lineage.passed_through) == ("native", ())


def test_bf16_values_that_fp16_does_not_hold_refute_it(tmp_path: Path) -> None:
    """From 2^-18 to 2^-17 bf16 has steps of 2^-25, which fp16 has not."""
    off = ((2 * torch.arange(64, 128) + 1) * 2.0**-25).repeat(64, 8).to(BF16)
    report = exact(write(tmp_path, {"a.weight": through(normal(512, 512), F16, BF16), "b.weight": off}))
    assert report.representable.fp16 != 1
    assert (report.lineage.verdict, report.tensors[1].lineage.evidence[0].exceptions) == ("mixed", off.numel())


@pytest.mark.parametrize("stored", [(BF16,), (BF16, F32)])
@pytest.mark.parametrize("scale", [0.003, 0.02])
def test_fixed_point_of_fp16s_smallest_step_is_no_fp16(scale: float, stored: tuple[torch.dtype, ...], tmp_path: Path) -> None:
    """Differences of fp32 sums are multiples of 2^-24, whatever their size; fp16 has as many bits as bf16 has and three more."""
    differences = (1 + normal(1024, 512, scale=scale)) - 1
    assert "fp16" not in exact(write(tmp_path / "sum", {"a.weight": through(differences, *stored)})).lineage.passed_through
    assert "fp16" in exact(write(tmp_path / "fp16", {"a.weight": through(differences, F16, *stored)})).lineage.passed_through


@pytest.mark.parametrize(("extra", "verdict"), [(65504.0, "fp16-ancestor"), (70000.0, "native")])
def test_the_largest_of_fp16_does_not_rule_fp16_out(extra: float, verdict: str, tmp_path: Path) -> None:
    tensor = through(normal(512, 512), F16, F32)
    tensor[0, 0] = extra
    report = exact(write(tmp_path, {"weight": tensor.to(BF16)}))
    assert report.lineage.verdict == verdict


def test_tensors_of_different_histories_are_mixed_and_counted(tmp_path: Path) -> None:
    tensors = {
        "model.layers.0.self_attn.q_proj.weight": through(normal(128, 128), BF16, F32),
        "model.layers.0.self_attn.k_proj.weight": through(normal(64, 128, seed=1), BF16, F32),
        "model.layers.0.mlp.up_proj.weight": normal(96, 128, seed=2),
        "model.layers.0.mlp.down_proj.weight": through(normal(256, 128, seed=3), F16, F32),
        "model.norm.weight": torch.ones(128),
    }
    report = exact(write(tmp_path, tensors))
    lineage = report.lineage
    assert lineage.verdict == "mixed" and set(lineage.passed_through) == {"bf16", "fp16"}
    assert {p.verdict: (p.tensors, p.parameters) for p in lineage.parts} == {
        "upcast-from-bf16": (2, 192 * 128),
        "native": (1, 96 * 128),
        "upcast-from-fp16": (1, 256 * 128),
        "undecided": (1, 128),
    }
    assert [p.parameters for p in lineage.parts] == sorted((p.parameters for p in lineage.parts), reverse=True)


@pytest.mark.parametrize("kept", [normal(1, seed=5), normal(300, seed=5)], ids=["scalar", "norm"])
def test_a_few_other_values_are_set_aside_and_told(kept: torch.Tensor, tmp_path: Path) -> None:
    """A norm kept in fp32 does not make a checkpoint mixed that was upcast from bf16, up to 0.1% of the parameters."""
    weight = through(normal(640, 640), BF16, F32)
    lineage = exact(write(tmp_path, {"up_proj.weight": weight, "norm.weight": kept})).lineage
    assert (lineage.verdict, lineage.passed_through) == ("upcast-from-bf16", ("bf16",))
    own = {part.verdict: part.tensors for part in lineage.parts}
    assert own["upcast-from-bf16"] == 1
    if kept.numel() > 1:
        assert own["native"] == 1


def test_more_than_a_thousandth_makes_a_checkpoint_mixed(tmp_path: Path) -> None:
    tensors = {"up_proj.weight": through(normal(500, 640), BF16, F32), "norm.weight": normal(640, seed=5)}
    lineage = exact(write(tmp_path, tensors)).lineage
    assert lineage.verdict == "mixed" and lineage.passed_through == ("bf16",)


def test_what_is_set_aside_is_no_ancestor_of_the_rest(tmp_path: Path) -> None:
    tensors = {"up_proj.weight": normal(640, 640), "norm.weight": through(normal(300, seed=5), BF16, F32)}
    lineage = exact(write(tmp_path, tensors)).lineage
    assert (lineage.verdict, lineage.passed_through) == ("native", ())
    assert [part.verdict for part in lineage.parts] == ["native", "upcast-from-bf16"]


def test_norms_do_not_answer_for_weights_that_tell_nothing(tmp_path: Path) -> None:
    one_bit = (torch.randint(0, 2, (300, 1280), generator=torch.Generator().manual_seed(0)) * 0.01).to(F32)
    lineage = exact(write(tmp_path, {"up_proj.weight": one_bit, "norm.weight": normal(1280)})).lineage
    assert lineage.verdict == "undecided" and lineage.passed_through == ()
    assert [part.verdict for part in lineage.parts] == ["undecided", "native"]


@pytest.mark.parametrize(("others", "verdict"), [(7, "undecided"), (1, "fp16-ancestor")])
def test_a_claim_on_the_whole_needs_values_that_tell_in_half_of_it(others: int, verdict: str, tmp_path: Path) -> None:
    large = {f"{i}.weight": (2.0**-8 + normal(512, 512, seed=i).abs()).to(BF16) for i in range(others)}
    report = exact(write(tmp_path, {"a.weight": through(normal(512, 512), F16, BF16), **large}))
    assert (report.lineage.verdict, report.tensors[-1].lineage.verdict) == (verdict, "fp16-ancestor")
    if others == 1:
        assert report.lineage.telling == report.answer.values["share"] == 0.5


def test_tensors_too_small_alone_decide_together(tmp_path: Path) -> None:
    values = normal(40, 5).to(BF16).to(F32)
    report = exact(write(tmp_path, {f"t{i}.weight": values[i] for i in range(40)}))
    assert {p.verdict for p in report.lineage.parts} == {"undecided"}
    assert report.lineage.verdict == "upcast-from-bf16" and report.lineage.passed_through == ("bf16",)


def test_two_stored_dtypes(tmp_path: Path) -> None:
    report = exact(write(tmp_path, {"a.weight": normal(512, 512).to(BF16), "norm.weight": normal(64, seed=1)}))
    assert report.lineage.stored == "BF16" and report.lineage.verdict == "native"
    assert {row.dtype: (row.tensors, row.parameters, row.bytes) for row in report.storage} == {
        "BF16": (1, 512 * 512, 2 * 512 * 512),
        "F32": (1, 64, 256),
    }
    assert [row.bytes for row in report.storage] == sorted((row.bytes for row in report.storage), reverse=True)


@pytest.mark.parametrize("stored", [F32, F16])
@pytest.mark.parametrize("levels", [31, 127])
def test_integer_grids_prove_no_ancestor(stored: torch.dtype, levels: int, tmp_path: Path) -> None:
    """Fixed point and dequantized integers of few bits are exact in bf16; their values are no independent draws."""
    grid = torch.randint(-levels, levels + 1, (256, 256), generator=torch.Generator().manual_seed(1)) * 2.0**-9
    report = exact(write(tmp_path, {"weight": grid.to(stored)}))
    assert (report.lineage.verdict, report.lineage.passed_through) == ("undecided", ())


def test_repeats_of_few_values_are_no_fp8(tmp_path: Path) -> None:
    report = exact(write(tmp_path, {"weight": normal(512, 32).repeat_interleave(16, 1)}))
    assert (report.lineage.verdict, report.lineage.passed_through) == ("native", ())


def test_tiny_fp16_values_are_not_said_to_be_bf16(tmp_path: Path) -> None:
    tiny = through(normal(256, 256) * 1e-4, F16, F32)
    report = exact(write(tmp_path, {"weight": tiny}))
    assert report.lineage.verdict in ("undecided", "upcast-from-fp16")
    assert "bf16" not in report.lineage.passed_through


def test_rows_of_codes_times_scales_are_no_fossils(tmp_path: Path) -> None:
    """Some products of codes and scales of few bits are exact in bf16: with groups of a size that is not tried, so are whole rows."""
    groups = normal(2000, 5, 20, seed=45, scale=1e-4) * torch.exp(1.5 * torch.randn(2000, 5, 1, generator=torch.Generator().manual_seed(1)))
    low, high = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True).clamp(min=0)
    mantissa, exponent = torch.frexp((high - low) / 15)
    scale = torch.ldexp((mantissa * 32).round() / 32, exponent)
    zero = (-low / scale).round()
    values = ((groups / scale).round() + zero).clamp(0, 15) - zero
    row = exact(write(tmp_path, {"a.weight": (values * scale).reshape(2000, -1)})).tensors[0]
    assert row.lineage.grid is not None and not row.lineage.grid.proven
    assert (row.fossil_rows, "bf16" in row.lineage.passed_through) == (0, False)
