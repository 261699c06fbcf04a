"""Shrink to a grid: every bit comes back when transformers loads the folder, or nothing is written, in one sentence."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from analyzers.checkpoints import Tensor
from analyzers.numerics.bins import CODE_TYPE
from analyzers.shrink.grid_formats import FAMILIES, GridFormat
from tests.dtype_detection.checkpoints import NAMES, normal, write
from tests.grids.formats import FORMATS, STORAGES, dequantized
from tests.grids.natives import natives
from tests.shrink.grid_models import save_gpt_oss, save_llama, unpacked
from tests.shrink.test_shrink import refused, shrink, tensors_of, unchanged

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
UP = "model.layers.0.mlp.up_proj.weight"


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def test_fp8_blocks_come_back_when_transformers_loads_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = "model.layers.1.self_attn.q_proj"
    source = save_llama(tmp_path / "in", "transformers fp8 128x128", BF16, [kept], shard="300KB")
    capsys.readouterr()  # progress of transformers
    done = shrink(capsys, source, tmp_path / "out", "--to", "grid")
    to = {row["name"]: row["to"] for row in done["tensors"]}
    assert to[UP] == "fp8, blocks of 128 x 128" and to[f"{kept}.weight"] == to["lm_head.weight"] == to["model.norm.weight"] == "BF16"
    assert sum(each.startswith("fp8") for each in to.values()) == 13 and done["bytes_after"] < 0.7 * done["bytes_before"]
    loaded = [AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in (source, tmp_path / "out")]
    assert loaded[0].keys() == loaded[1].keys()
    for name, tensor in loaded[0].items():
        assert tensor.dtype == loaded[1][name].dtype == BF16 and torch.equal(bits_of(tensor), bits_of(loaded[1][name])), name
    capsys.readouterr()
    assert any("rounds activations" in note for note in done["notes"])
    assert "quantized (fp8)" in unchanged(capsys, tmp_path / "out", tmp_path / "again", "--to", "grid")


def test_experts_of_mxfp4_come_back_when_transformers_loads_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = save_gpt_oss(tmp_path / "in")
    capsys.readouterr()
    done = shrink(capsys, source, tmp_path / "out", "--to", "grid")
    assert [row["name"] for row in done["tensors"] if row["to"] == "MXFP4"] == [
        f"model.layers.{layer}.mlp.experts.{name}" for layer in (0, 1) for name in ("down_proj", "gate_up_proj")
    ]
    loaded = [AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in (source, tmp_path / "out")]
    assert loaded[0].keys() == loaded[1].keys()
    assert all(torch.equal(bits_of(tensor), bits_of(loaded[1][name])) for name, tensor in loaded[0].items())


@pytest.mark.parametrize(
    ("quantizer", "bits", "dtype", "said"),
    [
        ("compressed-tensors int4 group 32", 4, BF16, "int4, groups of 32"),
        ("torchao int4 row", 4, FP16, "int4, a scale per row"),
        ("compressed-tensors int8 row", 8, BF16, "int8, a scale per row"),
        ("gptq int8 group 128", 8, FP32, "int8, groups of 128"),
    ],
)
def test_integers_are_packed_as_compressed_tensors_defines_it(
    quantizer: str, bits: int, dtype: torch.dtype, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = save_llama(tmp_path / "in", quantizer, dtype)
    capsys.readouterr()
    done = shrink(capsys, source, tmp_path / "out", "--to", "grid")
    stored, before = tensors_of(tmp_path / "out"), tensors_of(source)
    packed = [row["name"] for row in done["tensors"] if row["to"] == said]
    assert len(packed) == 14 and any("compressed-tensors to load them" in note for note in done["notes"])
    for name in packed:
        assert torch.equal(bits_of(unpacked(stored, name, bits)), bits_of(before[name])), name
    assert all(torch.equal(bits_of(stored[name]), bits_of(tensor)) for name, tensor in before.items() if name not in packed)
    settings = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert settings["config_groups"]["group_0"]["weights"]["num_bits"] == bits and settings["ignore"] == ["lm_head", "model.embed_tokens"]


def encoded(form: GridFormat, values: torch.Tensor) -> bool | None:
    """Whether a format holds a matrix bit for bit, None if it cannot hold one of this shape; decoded again if so."""
    dtype = NAMES[values.dtype]
    codes = values.contiguous().view(torch.int32 if dtype == "F32" else torch.int16).numpy().view(CODE_TYPE[dtype]).ravel()
    tensor = Tensor(UP, dtype, tuple(values.shape), 0, 0, values.nbytes, "mlp", 0, False)
    if not form.fits(tensor):
        return None
    parts = form.encode(tensor, codes)
    if parts is None:
        return False
    assert [part.nbytes for part in parts] == [part.nbytes for part in form.parts(tensor, UP)]
    assert np.array_equal(form.decode(tensor, parts).ravel(), codes)
    return True


# Quantizers whose scales are of the dtype of the weights, and the first format of each family that must hold their values
HELD = {
    "compressed-tensors int4 group 128": "int4, groups of 128", "torchao int4 group 32": "int4, groups of 32",
    "torchao int8 row": "int8, a scale per row", "compressed-tensors int8 row": "int8, a scale per row",
    "transformers fp8 128x128": "fp8, blocks of 128 x 128", "transformers fp8 128x128 powers": "fp8, blocks of 128 x 128",
    "e4m3 tensor": "fp8, blocks of 128 x 128",
}  # fmt: skip


@pytest.mark.parametrize("quantizer", HELD)
def test_scales_are_found(quantizer: str) -> None:
    form = next(form for form in FORMATS if form.name == quantizer)
    formats = [each for family in FAMILIES for each in family]
    for storage in ("fp32", "bf16 computed", "fp16 computed"):
        for distribution in ("gaussian", "trained"):
            values = dequantized(form, storage, distribution, rows=128)
            assert encoded(next(each for each in formats if each.name == HELD[quantizer]), values), (storage, distribution)


@pytest.mark.exhaustive
def test_whatever_is_held_comes_back() -> None:
    for form in FORMATS:
        for storage in STORAGES:
            values = dequantized(form, storage, "heavy", rows=128, columns=256)
            assert any(encoded(each, values) is not None for family in FAMILIES for each in family)


def test_natives_are_on_no_grid() -> None:
    plain = ("gaussian", "trained", "uniform", "tuned", "averaged", "integers of 1", "NaN", "infinities", "norm", "outlier")
    for kind, values in natives(170):
        if any(word in kind for word in plain) and values.dim() == 2:
            assert not any(encoded(each, values) for family in FAMILIES for each in family), kind


def one(values: torch.Tensor, folder: Path, config: Any = None, name: str = UP) -> Path:
    return write(
        folder, {name: values, "lm_head.weight": normal(8, 64).to(values.dtype)}, {"dtype": "bfloat16"} if config is None else config
    )


def quantized() -> torch.Tensor:
    return dequantized(next(form for form in FORMATS if form.name == "compressed-tensors int4 group 32"), "bf16", "gaussian", rows=128)


def test_a_grid_whose_scales_have_more_bits_is_refused_for_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """GGUF's scales are fp16; those of packed integers have the dtype of the weights, here bf16."""
    values = dequantized(next(form for form in FORMATS if form.name == "gguf Q4_0"), "bf16", "gaussian", rows=128)
    said = unchanged(capsys, one(values, tmp_path / "in"), tmp_path / "out", "--to", "grid")
    assert UP in said and "needs a scale that they cannot hold" in said


@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -0.0, 1.23e-4, 2.0**-133])
def test_one_odd_value_leaves_a_tensor_as_it_is(odd: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = quantized()
    zero = int((values[127, 480:] == 0).nonzero()[0, 0]) if odd == 0 else 31
    values[127, 480 + zero] = odd
    said = unchanged(capsys, one(values, tmp_path / "in"), tmp_path / "out", "--to", "grid")
    assert "restore no matrix bit for bit" in said and UP in said


def test_groups_of_zeros_and_constants_are_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = quantized()
    values[:3], values[3, :32], values[4] = 0, 0.02, -0.02
    done = shrink(capsys, one(values, tmp_path / "in"), tmp_path / "out", "--to", "grid")
    assert done["bytes_after"] < 0.4 * done["bytes_before"]
    assert torch.equal(bits_of(unpacked(load_file(tmp_path / "out" / "model.safetensors"), UP, 4)), bits_of(values))


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = quantized()
    for config, words in (({"quantization_config": {"quant_method": "awq"}}, "quantization_config"), ({}, "")):
        folder = one(values, tmp_path / f"config{bool(words)}", config)
        if not words:
            (folder / "config.json").unlink()
        assert (words or "no config.json") in refused(capsys, folder, tmp_path / "out", "--to", "grid")
    odd = one(values[:, :500], tmp_path / "odd")
    assert "no matrix" in unchanged(capsys, odd, tmp_path / "out", "--to", "grid")
    embedding = one(values, tmp_path / "embedding", name="model.embed_tokens.weight")
    assert "no tensor is the matrix of a linear layer" in unchanged(capsys, embedding, tmp_path / "out", "--to", "grid")


def test_a_change_of_one_written_byte_is_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from analyzers.shrink import output_folder

    write_all = output_folder._write_all

    def flip(descriptor: int, data: memoryview, at: int) -> None:
        damaged = bytearray(data.cast("B"))
        damaged[-1] ^= len(damaged) > 64  # codes, not the shape
        write_all(descriptor, memoryview(damaged), at)

    folder = one(quantized(), tmp_path / "in")
    monkeypatch.setattr(output_folder, "_write_all", flip)
    assert "reads back differently" in refused(capsys, folder, tmp_path / "out", "--to", "grid")
