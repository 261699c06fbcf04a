"""Verdicts on checkpoints of known history: right where the bits decide, undecided where they do not."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.dtype.checkpoints import from_fp8, normal, through, write
from tests.dtype.reports import exact, parsed

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


def integers(levels: int) -> torch.Tensor:
    """Draw fixed point of few bits, which is exact in bf16 whatever its history."""
    return torch.randint(-levels, levels + 1, (256, 256), generator=torch.Generator().manual_seed(1)) * 2.0**-9


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
    "integers exact in bf16, four above 256 by luck": torch.tensor([*range(-255, 256), 258, 300, 516, 1032]).float().repeat(4),
    "few values of fp16, large and small": torch.cat(
        [torch.arange(1, 128, 2) * 2.0**-24, (1 + torch.arange(1, 60) * 2.0**-10) / 8, (1 + torch.arange(1, 30) * 2.0**-10) / 32]
    ).repeat(40),
    "fixed point of 5 bits in fp32": integers(31),
    "fixed point of 7 bits in fp16": integers(127).to(F16),
}


@pytest.mark.parametrize("name", UNDECIDED)
def test_what_the_bits_do_not_decide_is_left_open(name: str, tmp_path: Path) -> None:
    report = exact(write(tmp_path, {"weight": UNDECIDED[name]}))
    assert report.lineage.verdict == "undecided" == report.tensors[0].lineage.verdict
    assert report.lineage.passed_through == ()
    assert not any(e.proven for e in report.lineage.evidence)
    parsed(report)


def with_exception(stored: torch.dtype) -> torch.Tensor:
    tensor = through(normal(128, 128), BF16, stored)
    tensor[5, 7] = 1 + 2.0**-10
    return tensor


def with_rows(tensor: torch.Tensor, rows: slice, *dtypes: torch.dtype) -> torch.Tensor:
    tensor[rows] = through(tensor[rows].float(), *dtypes)
    return tensor


def with_constant_rows() -> torch.Tensor:
    tensor = normal(100, 64)
    tensor[10], tensor[11], tensor[12], tensor[13] = 0, 1, 0.5, 0.375
    return tensor


def small_of_fp16() -> torch.Tensor:
    """Small values as cancellation leaves them, on a coarse grid; no training changes the larger values alone."""
    small = normal(400, 400, seed=4, scale=1e-5)
    native = torch.where(normal(400, 400).abs() < 1e-4, 0.0123, normal(400, 400))
    return torch.where(small.abs() < 2.0**-18, through(small, F16, F32), native)


def codes_times_scales() -> torch.Tensor:
    """Products of codes and scales of few bits, some of them exact in bf16: with groups of a size that is not tried, so are whole rows."""
    groups = normal(2000, 5, 20, seed=45, scale=1e-4) * torch.exp(1.5 * torch.randn(2000, 5, 1, generator=torch.Generator().manual_seed(1)))
    low, high = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True).clamp(min=0)
    mantissa, exponent = torch.frexp((high - low) / 15)
    scale = torch.ldexp((mantissa * 32).round() / 32, exponent)
    zero = (-low / scale).round()
    values = ((groups / scale).round() + zero).clamp(0, 15) - zero
    return (values * scale).reshape(2000, -1)


def largest_of_fp16(value: float) -> torch.Tensor:
    tensor = through(normal(512, 512), F16, F32)
    tensor[0, 0] = value
    return tensor.to(BF16)


# A tensor, its verdict, its ancestors and its fossil rows: exceptions, rows of another history, and what resembles them.
ROWS: dict[str, tuple[Callable[[], torch.Tensor], str, tuple[str, ...], int]] = {
    "one exception in fp32": (lambda: with_exception(F32), "mixed", ("bf16",), 127),
    "one exception in fp16": (lambda: with_exception(F16), "mixed", ("bf16",), 127),
    "rows of bf16 in fp32": (lambda: with_rows(normal(300, 64), slice(40), BF16, F32), "mixed", ("bf16",), 40),
    "rows of fp16 in fp32": (lambda: with_rows(normal(300, 64), slice(7, 90), F16, F32), "mixed", ("fp16",), 83),
    "rows of bf16 in fp16": (lambda: with_rows(normal(200, 96).to(F16), slice(150, 200), BF16, F16), "mixed", ("bf16",), 50),
    "rows of ones, zeros and padding": (with_constant_rows, "native", (), 0),
    "short rows of tf32": (lambda: (normal(1024, 64, scale=0.05).view(torch.int32) & ~0x1FFF).view(F32), "native", (), 0),
    "rows of tf32": (lambda: (normal(1024, 512, scale=0.05).view(torch.int32) & ~0x1FFF).view(F32), "native", (), 0),
    "small values of fp16": (small_of_fp16, "native", (), 0),
    "repeats of few values": (lambda: normal(512, 32).repeat_interleave(16, 1), "native", (), 0),
    "codes times scales": (codes_times_scales, "native", (), 0),
    "the largest of fp16": (lambda: largest_of_fp16(65504.0), "fp16-ancestor", ("fp16",), 0),
    "beyond the largest of fp16": (lambda: largest_of_fp16(70000.0), "native", (), 0),
}


@pytest.mark.parametrize("name", ROWS)
def test_exceptions_and_rows_of_another_history(name: str, tmp_path: Path) -> None:
    make, *expected = ROWS[name]
    row = exact(write(tmp_path, {"model.embed_tokens.weight": make()})).tensors[0]
    assert [row.lineage.verdict, row.lineage.passed_through, row.fossil_rows] == expected


def test_a_share_far_above_chance_is_said(tmp_path: Path) -> None:
    row = exact(write(tmp_path, {"model.embed_tokens.weight": with_rows(normal(300, 64), slice(40), BF16, F32)})).tensors[0]
    found = next(e for e in row.lineage.evidence if e.test == "bf16_exact")
    assert found.result == "partly" and 1 - found.exceptions / found.tested == pytest.approx(40 / 300, abs=1e-3)
    rest = {f"{i}.weight": torch.arange(600.0) for i in range(28)}  # of which 43% are exact in bf16, as integers are
    assert exact(write(tmp_path / "rest", rest)).lineage.evidence[0].result == "refuted"


@pytest.mark.parametrize("size", [8, 9, 14, 16])
def test_evidence_needs_enough_different_values(size: int, tmp_path: Path) -> None:
    """fp16 from bf16: three bits each, but for the values near the step of all, so that eleven are needed for 1e-9."""
    i = torch.arange(size)
    values = ((1 + (2 * i + 1) / 128) * 2.0 ** -(i % 8)).to(F16)
    report = exact(write(tmp_path, {"weight": values.repeat(50)}))
    assert report.lineage.verdict == ("downcast-from-bf16" if size >= 12 else "undecided")
    assert report.lineage.evidence[0].distinct < size


@pytest.mark.parametrize("stored", [(BF16,), (BF16, F32)])
@pytest.mark.parametrize("scale", [0.003, 0.02])
def test_fixed_point_of_fp16s_smallest_step_is_no_fp16(scale: float, stored: tuple[torch.dtype, ...], tmp_path: Path) -> None:
    """Differences of fp32 sums are multiples of 2^-24, whatever their size; fp16 has as many bits as bf16 has and three more."""
    differences = (1 + normal(1024, 512, scale=scale)) - 1
    assert "fp16" not in exact(write(tmp_path / "sum", {"a.weight": through(differences, *stored)})).lineage.passed_through
    assert "fp16" in exact(write(tmp_path / "fp16", {"a.weight": through(differences, F16, *stored)})).lineage.passed_through


def test_bf16_values_that_fp16_does_not_hold_refute_it(tmp_path: Path) -> None:
    """From 2^-18 to 2^-17 bf16 has steps of 2^-25, which fp16 has not."""
    off = ((2 * torch.arange(64, 128) + 1) * 2.0**-25).repeat(64, 8).to(BF16)
    report = exact(write(tmp_path, {"a.weight": through(normal(512, 512), F16, BF16), "b.weight": off}))
    assert (report.lineage.verdict, report.tensors[1].lineage.evidence[0].exceptions) == ("mixed", off.numel())


def upcast(*shape: int, seed: int = 0) -> torch.Tensor:
    return through(normal(*shape, seed=seed), BF16, F32)


one_bit = (torch.randint(0, 2, (300, 1280), generator=torch.Generator().manual_seed(0)) * 0.01).to(F32)
large = (2.0**-8 + normal(512, 512, seed=9).abs()).to(BF16)  # values that do not tell fp16
# Tensors, the verdict on the checkpoint, its ancestors, and the verdicts on its tensors, those of most parameters first.
SETS: dict[str, tuple[list[torch.Tensor], str, tuple[str, ...], list[str]]] = {
    "a scalar of another history is set aside": ([upcast(640, 640), normal(1, seed=5)], "upcast-from-bf16", ("bf16",), []),
    "a norm of another history is set aside": (
        [upcast(640, 640), normal(300, seed=5)], "upcast-from-bf16", ("bf16",), ["upcast-from-bf16", "native"],
    ),
    "more than a thousandth makes it mixed": (
        [upcast(500, 640), normal(640, seed=5)], "mixed", ("bf16",), ["upcast-from-bf16", "native"],
    ),
    "what is set aside is no ancestor of the rest": (
        [normal(640, 640), upcast(300, seed=5)], "native", (), ["native", "upcast-from-bf16"],
    ),
    "norms do not answer for weights that tell nothing": ([one_bit, normal(1280)], "undecided", (), ["undecided", "native"]),
    "half of it has values that tell": (
        [through(normal(512, 512), F16, BF16), large], "fp16-ancestor", ("fp16",), ["fp16-ancestor", "undecided"],
    ),
    "an eighth of it has values that tell": (
        [through(normal(512, 512), F16, BF16), *[large] * 7], "undecided", (), ["undecided", "fp16-ancestor"],
    ),
    "tensors too small alone decide together": ([*upcast(40, 5)], "upcast-from-bf16", ("bf16",), ["undecided"]),
    "an exception in undecided tensors": (
        [*[torch.arange(600.0)] * 28, upcast(64, 64), upcast(64, 64, seed=1)], "mixed", ("bf16",), ["undecided", "upcast-from-bf16"],
    ),
    "two dtypes": ([normal(512, 512).to(BF16), normal(64, seed=1)], "native", (), ["native"]),
    "three histories": (
        [upcast(192, 128), normal(96, 128, seed=2), through(normal(256, 128, seed=3), F16, F32), torch.ones(128)],
        "mixed", ("bf16", "fp16"), ["upcast-from-fp16", "upcast-from-bf16", "native", "undecided"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SETS)
def test_tensors_of_several_histories(name: str, tmp_path: Path) -> None:
    tensors, verdict, ancestors, parts = SETS[name]
    report = exact(write(tmp_path, {f"{i:02}.{'norm.' * (each.ndim < 2)}weight": each.clone() for i, each in enumerate(tensors)}))
    assert (report.lineage.verdict, set(report.lineage.passed_through)) == (verdict, set(ancestors))
    assert not parts or [part.verdict for part in report.lineage.parts] == parts
    assert sum(part.parameters for part in report.lineage.parts) == sum(each.numel() for each in tensors)
    if verdict == "fp16-ancestor":
        assert report.lineage.telling == report.answer.values["share"] == 0.5
