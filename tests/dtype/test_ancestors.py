"""fp8 and fp4 ancestors of 16- and 32-bit weights: proven where they were, and never where something else was."""

from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzers.dtype.rows import TensorRow
from tests.cases import few
from tests.dtype.checkpoints import through, write
from tests.dtype.quantized import FP4, NF4, Values, coded, fp8, integers, mxfp4, nvfp4, weights
from tests.dtype.reports import exact

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
STORED = {"bf16": (BF16,), "fp16": (F16,), "fp32": (F32,), "bf16 then fp32": (BF16, F32), "bf16 then fp16": (BF16, F16)}
E4M3, E5M2 = (torch.float8_e4m3fn,), (torch.float8_e5m2, torch.float8_e5m2fnuz)

# Rows and columns of a scale block (0: all), powers of two.
GRANULARITIES = {
    "tensor": (0, 0, False),
    "channel": (1, 0, False),
    "block": (128, 128, False),
    "block, powers of two": (128, 128, True),
    "group": (1, 128, False),
    "mx": (1, 32, True),
}
ROWS = [(64, 1280), (160, 200), (300, 96)]
ROWS_OF_BLOCKS = {"mxfp4": [(32, 1280), (160, 96)], "nvfp4": [(32, 1280), (160, 96), (80, 208)]}


def rows(folder: Path, tensors: dict[str, torch.Tensor]) -> dict[str, TensorRow]:
    return {row.name: row for row in exact(write(folder, tensors)).tensors}


@cache
def _fp8(shape: tuple[int, int], kind: torch.dtype, height: int, width: int, powers: bool) -> torch.Tensor:
    return fp8(weights(*shape), kind, height, width, powers)


@pytest.mark.parametrize(("kind", "stored"), few(product(E4M3 + E5M2, STORED), {0, 3, 4, 5}))
def test_fp8_of_every_granularity(kind: torch.dtype, stored: str, tmp_path: Path) -> None:
    tensors = {}
    for name, (height, width, powers) in GRANULARITIES.items():
        for shape in ROWS:
            tensors[f"{name} {shape[1]}.weight"] = through(_fp8(shape, kind, height, width, powers), *STORED[stored])
    for name, row in rows(tmp_path, tensors).items():
        narrow = "fp8_e5m2" if kind in E5M2 else "fp8_e4m3"
        assert row.lineage.passed_through[0].removeprefix("mx") == narrow, name
        assert set(row.lineage.passed_through[1:]) <= ({"bf16"} if "then" in stored else set()), name
        expected = {"bf16 then fp32": "upcast-from-bf16", "bf16 then fp16": "downcast-from-bf16"}.get(stored)
        assert row.lineage.verdict == (expected if len(row.lineage.passed_through) > 1 else "fp8-ancestor"), name


@pytest.mark.parametrize(("scheme", "stored"), few(product(("mxfp4", "nvfp4"), STORED), {0, 8}))
def test_fp4_of_every_spread(stored: str, scheme: str, tmp_path: Path) -> None:
    tensors = {}
    for shape in ("normal", "laplace", "uniform", "student", "outliers"):
        for size in ROWS_OF_BLOCKS[scheme]:
            values = weights(*size, shape=shape)
            quantized = [nvfp4(values)] if scheme == "nvfp4" else [mxfp4(values), mxfp4(values, round_up=True)]
            for i, (elements, scales) in enumerate(quantized):
                whole = (elements * scales).reshape(size)
                tensors[f"{shape} {size[1]} {i}.weight"] = through(whole, *STORED[stored])
                in_bf16 = (elements.to(BF16) * scales.to(BF16)).reshape(size)
                tensors[f"{shape} {size[1]} {i} in bf16.weight"] = through(in_bf16, *STORED[stored])
    for name, row in rows(tmp_path, tensors).items():
        assert row.lineage.passed_through[:1] == (scheme,), name
        if "then" not in stored and "in bf16" not in name:
            assert (row.lineage.verdict, row.lineage.passed_through) == ("fp4-ancestor", (scheme,)), name


def lookalikes(shape: str) -> Iterator[tuple[str, Values]]:
    """What has few significands, few values or a regular grid, and was neither fp8 nor fp4."""
    values = weights(24, 1280, shape=shape)
    rng = np.random.default_rng(1)
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (16, 32, 64, 128, 1280):
            for asymmetric in (False, True):
                scale = (F16, BF16, F32)[bits % 3]
                yield f"int{bits} group {group} {asymmetric}", integers(values, bits, group, asymmetric, scale)
                yield f"int{bits} group {group} {asymmetric} powers of two", integers(values, bits, group, asymmetric, None)
    both_signs = np.concatenate([-FP4[:0:-1], FP4])
    for group in (64, 128, 40):
        yield f"nf4 {group}", coded(values, NF4, group)
        yield f"fp4 of bitsandbytes {group}", coded(values, both_signs, group)
    yield "fp4 of bitsandbytes, pruned", np.where(rng.random(values.shape) < 0.5, 0, coded(values, both_signs, 64))
    step = np.abs(values).mean()
    yield "ternary", np.clip(np.rint(values / step), -1, 1) * step
    yield "binary", np.sign(values) * step
    yield "powers of two", np.sign(values) * np.exp2(np.rint(np.log2(np.abs(values))))
    for parts in (2, 4, 8):
        yield f"powers of the root {parts} of 2", np.sign(values) * np.exp2(np.rint(np.log2(np.abs(values) + 1e-12) * parts) / parts)
    yield "pruned", np.where(rng.random(values.shape) < 0.6, 0, values)
    for size in (16, 256):
        yield f"{size} quantiles", nearest_quantile(values, size)
    yield "constant rows", np.repeat(values[:, :1], 1280, axis=1)
    yield "repeats", np.tile(values[:, :8], 160)
    yield "norms", 1 + values / 100


def nearest_quantile(values: Values, size: int) -> Values:
    levels = np.quantile(values, (np.arange(size) + 0.5) / size)
    return np.asarray(levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, values)])


@pytest.mark.parametrize(("shape", "stored", "one_in"), few([(0, 0, 5), *((*pair, 1) for pair in product(range(3), repeat=2))], {0}))
def test_lookalikes_are_never_proven(shape: int, stored: int, one_in: int, tmp_path: Path) -> None:
    """Each is drawn of one distribution and stored in one format; nine cases have every pair of them. one_in: of the integers, one in so
    many is tried.
    """
    tensors = {}
    for number, alike in enumerate(zip(*map(lookalikes, ("normal", "student", "outliers")), strict=True)):
        name, values = alike[(shape + number) % 3]
        if name.startswith("int") and number % one_in:
            continue
        tensors[f"{name}.weight"] = torch.from_numpy(values).to(F32).to((BF16, F16, F32)[(stored + number) % 3])
    for name in list(tensors):  # the same values in rows that no group ends with
        tensors[f"{name}, other rows"] = tensors[name].flatten()[:20_000].reshape(-1, 1000).clone()
        tensors[f"{name}, short rows"] = tensors[name].flatten()[20_000:30_000].reshape(-1, 40).clone()
    for dtype in (BF16, F16, F32):
        tensors[f"counts {dtype}"] = torch.arange(1280 * 20).reshape(20, 1280).to(dtype)
        tensors[f"few counts {dtype}"] = (torch.arange(1280 * 20).reshape(20, 1280) % 64 * 2.0**-9).to(dtype)
        tensors[f"sinusoids {dtype}"] = torch.sin(torch.arange(1280)[None] * 0.3 + torch.arange(20)[:, None]).to(dtype)
    for name, row in rows(tmp_path, tensors).items():
        assert row.lineage.verdict not in ("fp8-ancestor", "fp4-ancestor"), name


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32), st.floats(1e-4, 30), st.sampled_from([BF16, F32]), st.integers(0, 5))
def test_any_seed_and_scale(tmp_path: Path, seed: int, scale: float, stored: torch.dtype, what: int) -> None:
    values = weights(24, 1280, seed=seed) * scale
    elements, scales = nvfp4(values) if what == 3 else mxfp4(values)
    tensor, ancestor = [
        (fp8(values, E4M3[0], 128, 128), "fp8_e4m3"),
        (fp8(values, E4M3[0], 1, 0), "fp8_e4m3"),
        (fp8(values, E5M2[0], 128, 128), "fp8_e5m2"),
        ((elements * scales).reshape(values.shape), "nvfp4"),
        ((elements * scales).reshape(values.shape), "mxfp4"),
        (torch.from_numpy(values).to(F32), None),
    ][what]
    row = rows(tmp_path, {"weight": tensor.to(stored)})["weight"]
    assert row.lineage.passed_through == (() if ancestor is None else (ancestor,))


@pytest.mark.parametrize("what", ["fp8_e4m3", "mxfp4"])
def test_native_values_in_one_group_are_an_exception(what: str, tmp_path: Path) -> None:
    elements, scales = mxfp4(weights(128, 1280))
    tensor = fp8(weights(128, 1280), E4M3[0], 1, 128) if what == "fp8_e4m3" else (elements * scales).reshape(128, 1280)
    tensor[60, 256:288] = torch.from_numpy(weights(1, 32)[0]).to(F32)
    report = exact(write(tmp_path, {"weight": tensor.to(BF16)}))
    (row,), (of_all,) = report.tensors, report.grids
    assert (of_all.proven, of_all.redundant_bytes) == (False, 0)
    grid = row.lineage.grid
    assert grid is not None and grid.format == what and not grid.proven and grid.exceptions == 1
    assert row.lineage.passed_through == ()


def test_scales_that_are_powers_of_two_prove_no_other_format(tmp_path: Path) -> None:
    """E4M3 times powers of two is exact in bf16, and in fp16 where it is in range, and never was either."""
    tensor = fp8(weights(256, 1280), E4M3[0], 128, 128, powers_of_two=True)
    for stored in (F32, F16):
        report = exact(write(tmp_path / str(stored), {"weight": tensor.to(stored)}))
        assert (report.lineage.verdict, report.lineage.passed_through) == ("fp8-ancestor", ("fp8_e4m3",))
