"""Quantization headroom against torchao's rounding, against float64, and what it says of a sample."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torchao.prototype.mx_formats.mx_tensor import to_dtype, to_mx
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
from torchao.quantization.quant_primitives import dequantize_affine, quantize_affine

from analyzers.dtype import DtypeRequest, quantization_headroom
from analyzers.dtype.report import DtypeReport
from analyzers.dtype.rows import QuantizationFormat
from tests.dtype.checkpoints import normal, write
from tests.dtype.quantized import E2M1, nearest
from tests.dtype.reports import exact, inspect, parsed

BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64
FORMATS = get_args(QuantizationFormat)
NAME = "model.layers.0.mlp.up_proj.weight"


def torchaos(x: torch.Tensor, name: str) -> torch.Tensor:
    """``x`` (rows, columns) rounded by torchao, under the scales that each format is defined by."""
    fp8 = {"fp8": tuple(x.shape), "fp8-block": (128, 128)}
    if name in fp8:
        blocks = x.unfold(0, fp8[name][0], fp8[name][0]).unfold(1, fp8[name][1], fp8[name][1])
        scale = blocks.abs().amax((-1, -2)) / 448
        spread = scale.repeat_interleave(fp8[name][0], 0).repeat_interleave(fp8[name][1], 1)
        rounded: torch.Tensor = (x / spread).to(torch.float8_e4m3fn).to(F32) * spread
        return rounded
    if name in ("int8", "int4"):
        group, largest = (x.shape[1], 127) if name == "int8" else (128, 7)
        scale = x.reshape(len(x), -1, group).abs().amax(-1) / largest
        zero = torch.zeros_like(scale, dtype=torch.int32)
        codes = quantize_affine(x, (1, group), scale, zero, torch.int8, -largest, largest)
        rounded = dequantize_affine(codes, (1, group), scale, zero, torch.int8, -largest, largest)
        return rounded
    if name == "mxfp4":
        scales, codes = to_mx(x, torch.float4_e2m1fn_x2, 32)
        rounded = to_dtype(codes, scales, torch.float4_e2m1fn_x2, 32, F32)
        return rounded
    rounded = NVFP4Tensor.to_nvfp4(x, 16, per_tensor_amax_to_scale(x.abs().max())).dequantize(F32)
    return rounded


def float64s(x: np.ndarray[Any, np.dtype[np.float64]], name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The same for any number of rows and columns, in float64 arithmetic, tile by tile."""
    e4m3 = np.sort(torch.arange(256, dtype=torch.int16).to(torch.uint8).view(torch.float8_e4m3fn).to(F64).numpy())
    e4m3 = np.unique(e4m3[np.isfinite(e4m3)])
    e2m1 = np.unique([*-E2M1, *E2M1])
    tiles = {"fp8": x.shape, "fp8-block": (128, 128), "int8": (1, x.shape[1]), "int4": (1, 128), "mxfp4": (1, 32), "nvfp4": (1, 16)}
    rows, columns = tiles[name]
    out = np.empty_like(x)
    for i in range(0, x.shape[0], rows):
        for j in range(0, x.shape[1], columns):
            tile = x[i : i + rows, j : j + columns]
            amax = np.abs(tile).max()
            if name.startswith("fp8"):
                scale, grid = amax / 448, e4m3
            elif name.startswith("int"):
                largest = 127 if name == "int8" else 7
                scale, grid = amax / largest, np.arange(-largest, largest + 1.0)
            elif name == "mxfp4":
                scale, grid = 2.0 ** (np.floor(np.log2(amax)) - 2), e2m1
            else:
                whole = np.abs(x).max() / (6 * 448)
                scale, grid = nearest(np.array([amax / 6 / whole]), e4m3)[0] * whole, e2m1
            out[i : i + rows, j : j + columns] = nearest(tile / scale, grid) * scale
    return out


def rows(report: DtypeReport, name: str = NAME) -> dict[str, Any]:
    return {row.format: row for row in report.quantization if row.name == name}


def test_every_format_rounds_as_torchao_does(tmp_path: Path) -> None:
    x = normal(256, 512, scale=30.0).to(BF16)
    found = rows(exact(write(tmp_path, {NAME: x}), quantize=FORMATS))
    assert tuple(found) == FORMATS
    for name, row in found.items():
        rounded = torchaos(x.to(F32), name)
        difference = rounded.to(F64) - x.to(F64)
        assert row.rms_rel == pytest.approx((difference.norm() / x.to(F64).norm()).item(), rel=2e-4), name  # ties after a division
        assert row.exact == pytest.approx((rounded == x.to(F32)).to(F64).mean().item(), abs=1e-4), name
        assert row.sqnr_db == pytest.approx(-20 * np.log10(row.rms_rel), rel=1e-12) and row.values == x.numel()


@pytest.mark.parametrize(("shape", "dtype"), [((3, 150, 72), BF16), ((130, 300), F32), ((1, 17), F64), ((3, 150, 72), torch.float16)])
def test_tiles_that_do_not_fit_are_cut(shape: tuple[int, ...], dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a stack of matrices none shares a tile with the next; slabs are cut at tiles."""
    monkeypatch.setattr(quantization_headroom, "_SLAB_ELEMENTS", 1)
    x = normal(*shape, seed=5).to(dtype)
    found = rows(exact(write(tmp_path, {NAME: x}), quantize=FORMATS))
    values = x.to(F32).to(F64).numpy()
    for name, row in found.items():
        if name in ("fp8", "nvfp4"):
            rounded = float64s(values.reshape(-1, shape[-1]), name)
        else:
            rounded = np.concatenate([float64s(each, name) for each in values.reshape(-1, *shape[-2:])])
        difference = rounded - values.reshape(-1, shape[-1])
        assert row.rms_rel == pytest.approx(np.linalg.norm(difference) / np.linalg.norm(values), rel=1e-3), name


def test_saturated_nan_zero_and_what_is_no_matrix(tmp_path: Path) -> None:
    block = torch.ones(1, 32)
    block[0, :3] = torch.tensor([7.0, float("nan"), float("inf")])
    tensors = {NAME: block, "zeros.weight": torch.zeros(4, 32), "nan.weight": torch.full((4, 32), float("nan"))}
    tensors |= {
        "model.norm.weight": torch.ones(32),
        "empty.weight": torch.zeros(0, 32),
        "codes.qweight": torch.zeros(4, 4, dtype=torch.int32),
    }
    report = exact(write(tmp_path, tensors), quantize=("mxfp4",))
    found = {row.name: row for row in report.quantization}
    assert found.keys() == {NAME, "zeros.weight", "nan.weight"}
    first, zeros, nan = found[NAME], found["zeros.weight"], found["nan.weight"]
    assert (first.values, first.saturated, first.exact) == (30, 1 / 30, 29 / 30)
    assert (zeros.rms_rel, zeros.exact, nan.rms_rel, nan.exact, nan.values) == (None, 1, None, None, 0)
    assert parsed(report)["quantization_ignore"] == {"mxfp4": []}


def model(layers: int = 6, outliers: float = 1.0) -> dict[str, torch.Tensor]:
    tensors = {}
    for layer in range(layers):
        tensors[f"model.layers.{layer}.mlp.down_proj.weight"] = normal(256, 512, seed=layer).to(BF16)
        tensors[f"model.layers.{layer}.self_attn.q_proj.weight"] = normal(256, 256, seed=99 + layer).to(BF16)
    tensors[f"model.layers.{layers // 2}.mlp.down_proj.weight"][:, ::128] *= outliers  # one in every group of 128
    return tensors


def test_the_worst_come_first_and_are_to_be_ignored(tmp_path: Path) -> None:
    report = exact(write(tmp_path, model(outliers=20)), quantize=("int4", "fp8"))
    assert [row.format for row in report.quantization] == ["fp8"] * 12 + ["int4"] * 12
    int4 = [row for row in report.quantization if row.format == "int4"]
    assert int4[0].name == "model.layers.3.mlp.down_proj.weight"
    assert [row.rms_rel for row in int4] == sorted((row.rms_rel for row in int4 if row.rms_rel), reverse=True)
    assert report.quantization_ignore == {"fp8": (), "int4": ("model.layers.3.mlp.down_proj",)}
    assert [(row.format, row.role, row.tensors, row.blocks) for row in report.quantization_roles][2:] == [
        ("int4", "mlp", 6, None),
        ("int4", "attention", 6, None),
    ]


def test_a_sample_keeps_to_its_budget_and_is_near(tmp_path: Path) -> None:
    folder = write(tmp_path, model(12))
    formats: tuple[QuantizationFormat, ...] = ("fp8", "int4", "nvfp4")
    whole = {(row.role, row.format): row.rms_rel for row in exact(folder, quantize=formats).quantization_roles}
    report = inspect(folder, quantize=formats, budget=2_300_000, seed=1)
    assert report.bytes_read < 2 * 2_300_000 + 8 * 2 * 16 * 512
    for row in report.quantization_roles:
        assert row.blocks and row.rms_rel == pytest.approx(whole[row.role, row.format], rel=0.05)


def test_a_report_without_it_is_the_same_report(tmp_path: Path) -> None:
    folder = write(tmp_path, model(1))
    plain, asked = exact(folder), exact(folder, quantize=("nvfp4", "fp8", "nvfp4"))
    assert asked.request.quantize == ("fp8", "nvfp4") and asked.id != plain.id
    assert plain.quantization == () and plain.quantization_ignore == {} and plain.bytes_read * 2 == asked.bytes_read
    ignored = {"id", "request", "timing", "bytes_read", "requests", "quantization", "quantization_roles", "quantization_ignore"}
    assert plain.model_dump(exclude=ignored) == asked.model_dump(exclude=ignored)
    assert DtypeReport.model_validate_json(asked.model_dump_json()) == asked
    with pytest.raises(ValueError, match="fp8"):
        DtypeRequest(model="org/a", quantize=("fp7",))  # type: ignore[arg-type]
