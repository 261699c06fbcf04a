"""Values of every layout, bit for bit those of the libraries that write or load it, or else of its documented formula."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from analyzers.checkpoints import Access, Checkpoint, open_checkpoint
from tests.checkpoints.test_scales import opened, same, values_of

FIXTURES = Path(__file__).parent / "fixtures"
LIBRARIES = ("mlx", "bitsandbytes", "compressed-tensors")
Integers = NDArray[np.int64]
Tensors = dict[str, torch.Tensor]


def fixture(library: str) -> tuple[Tensors, dict[str, Any]]:
    folder = FIXTURES / library
    return load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("library", LIBRARIES)
def test_fixtures_of_libraries(library: str) -> None:
    """Every value, and nothing beside the weights counts as a parameter (`make_fixtures`)."""
    expected = load_file(FIXTURES / f"{library}.safetensors")
    with open_checkpoint(str(FIXTURES / library), Access(local=True)) as checkpoint:
        for name, values in expected.items():
            same(values_of(checkpoint, name), values)
        assert {t.name for t in checkpoint.tensors if not t.holds_scales} == set(expected)
        assert checkpoint.parameters == sum(values.numel() for values in expected.values()) and not checkpoint.notes
        assert checkpoint.nbytes == sum(t.nbytes for t in fixture(library)[0].values())


def packed(codes: Integers, bits: int) -> torch.Tensor:
    """Codes of rows, each row from the lowest bit of a word on."""
    rows = [sum(int(code) << bits * i for i, code in enumerate(row)).to_bytes(len(row) * bits // 8, "little") for row in codes]
    return torch.from_numpy(np.frombuffer(b"".join(rows), np.int32).reshape(len(codes), -1).copy())


def packed_by_auto_gptq(column: Integers) -> list[int]:
    """32 codes of 3 bits in three words, as AutoGPTQ's ``pack`` writes them."""
    words, at = [0, 0, 0], 0
    for word, (low, first, rest) in enumerate(((0, 0, 0), (1, 2, 1), (2, 1, 3))):
        if word:
            words[word] |= (int(column[at - 1]) >> first) & rest
        for j in range(10):
            words[word] |= int(column[at + j]) << (3 * j + low)
        at += 10
        if word < 2:
            words[word] |= int(column[at]) << (30 + word) & 0xFFFFFFFF
            at += 1
    return words


def test_three_bits_are_packed_as_by_auto_gptq() -> None:
    column = np.random.default_rng(0).integers(0, 8, 32)
    assert packed(column[None], 3).numpy().view(np.uint32).tolist() == [packed_by_auto_gptq(column)]


def gptq(bits: int, acted: bool, second: bool) -> tuple[Tensors, torch.Tensor]:
    """A module of GPTQ, and its weight: (code - zero point) x scale of the group of each input."""
    random = np.random.default_rng(bits)
    inputs, outputs, group = 128, 64, 32
    codes, zeros = random.integers(0, 1 << bits, (inputs, outputs)), random.integers(0, 1 << bits, (inputs // group, outputs))
    scales = torch.from_numpy(random.uniform(1e-3, 1e-2, zeros.shape)).half()
    index = random.permutation(inputs) // group if acted else np.arange(inputs) // group
    stored = (zeros if second else zeros - 1) % (1 << bits)
    tensors = {"qweight": packed(codes.T, bits).T, "qzeros": packed(stored, bits), "scales": scales}
    tensors["g_idx"] = torch.from_numpy(index.astype(np.int32))
    weight = torch.from_numpy((codes - zeros[index]).astype(np.float32)) * scales.float()[index]
    return {f"m.{name}": tensor.contiguous() for name, tensor in tensors.items()}, weight.T.contiguous()


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("acted", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_gptq(bits: int, acted: bool, second: bool, tmp_path: Path) -> None:
    tensors, weight = gptq(bits, acted, second)
    settings = {"quant_method": "gptq", "bits": bits, "group_size": 32} | ({"checkpoint_format": "gptq_v2"} if second else {})
    with opened(tmp_path, tensors, {"quantization_config": settings}) as checkpoint:
        check_only(checkpoint, "m.weight", weight)


def test_gptq_without_an_index(tmp_path: Path) -> None:
    tensors, weight = gptq(4, False, False)
    with opened(tmp_path, {name: tensor for name, tensor in tensors.items() if "g_idx" not in name}) as checkpoint:
        check_only(checkpoint, "m.weight", weight)


def awq() -> tuple[Tensors, torch.Tensor]:
    random = np.random.default_rng(3)
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # of AutoAWQ's WQLinear_GEMM.from_linear
    codes, zeros = random.integers(0, 16, (64, 48)), random.integers(0, 16, (2, 48))
    scales = torch.from_numpy(random.uniform(1e-3, 1e-2, zeros.shape)).half()
    words = [packed(each.reshape(len(each), -1, 8)[:, :, order].reshape(each.shape), 4) for each in (codes, zeros)]
    weight = torch.from_numpy((codes - zeros.repeat(32, 0)).astype(np.float32)) * scales.float().repeat_interleave(32, 0)
    return {"m.qweight": words[0], "m.qzeros": words[1], "m.scales": scales}, weight.T.contiguous()


def test_awq(tmp_path: Path) -> None:
    tensors, weight = awq()
    with opened(tmp_path, tensors, {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32}}) as checkpoint:
        check_only(checkpoint, "m.weight", weight)


def test_groups_of_columns_in_another_order(tmp_path: Path) -> None:
    """Of compressed-tensors with actorder "group": ``weight_g_idx`` names the group of each column."""
    tensors, config = fixture("compressed-tensors")
    index = torch.from_numpy((np.random.default_rng(0).permutation(128) // 32).astype(np.int32))
    names = {name: tensor for name, tensor in tensors.items() if name.startswith("int4.")}
    codes = torch.stack([names["int4.weight_packed"] >> 4 * i & 15 for i in range(8)], -1).reshape(16, 128) - 8
    with opened(tmp_path, names | {"int4.weight_g_idx": index}, config) as checkpoint:
        same(values_of(checkpoint, "int4.weight"), codes * names["int4.weight_scale"][:, index.long()])


def test_what_torchao_saves(tmp_path: Path) -> None:
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, IntxWeightOnlyConfig, quantize_
    from torchao.quantization.granularity import PerGroup

    int4: Any = getattr(torch, "int4")  # noqa: B009 - its stubs do not know it
    configs = (Int8WeightOnlyConfig(), Float8WeightOnlyConfig(), IntxWeightOnlyConfig(weight_dtype=int4, granularity=PerGroup(32)))
    for number, config in enumerate(configs):
        model: Any = torch.nn.Sequential(torch.nn.Linear(64, 32, bias=False))
        quantize_(model, config)
        tensors, metadata = flatten_tensor_state_dict(model.state_dict())
        folder = tmp_path / str(number)
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors", metadata)
        with open_checkpoint(str(folder), Access(local=True)) as checkpoint:
            check_only(checkpoint, "0.weight", model[0].weight.dequantize())


def test_torchao_int4_tensors(tmp_path: Path) -> None:
    """Int4Tensor, by the formula of mslk's int4_row_quantize_zp: code x scale + zero point, groups first."""
    random = np.random.default_rng(5)
    codes = random.integers(-8, 8, (32, 64))
    data = torch.from_numpy((codes[:, ::2] & 15 | (codes[:, 1::2] & 15) << 4).astype(np.uint8)).view(torch.int8)
    scale, zero = (torch.from_numpy(random.standard_normal((2, 32))).bfloat16() for _ in range(2))
    tensors = {"m._weight_qdata": data, "m._weight_scale": scale, "m._weight_zero_point": zero}
    wide_scale, wide_zero = (each.float().T.repeat_interleave(32, 1) for each in (scale, zero))
    with opened(tmp_path, tensors) as checkpoint:
        check_only(checkpoint, "m.weight", torch.from_numpy(codes.astype(np.float32)) * wide_scale + wide_zero)


def check_only(checkpoint: Checkpoint, name: str, values: torch.Tensor) -> None:
    """Compare the values of the only weight, of which all other tensors are parts."""
    assert [tensor.name for tensor in checkpoint.tensors if not (tensor.holds_scales or tensor.buffer)] == [name]
    assert checkpoint.parameters == values.numel() and not checkpoint.notes
    tensor = next(tensor for tensor in checkpoint.tensors if tensor.name == name)
    assert tensor.shape == tuple(values.shape)
    same(values_of(checkpoint, name), values)


def decodable() -> list[str]:
    """Return the GGML types that the library decodes, but for plain floats."""
    names = []
    for kind in GGMLQuantizationType:
        try:
            dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
        except (NotImplementedError, ValueError):
            continue
        names.append(kind.name)
    return [name for name in names if name not in ("F16", "F32", "BF16")]


def blocks(name: str, rows: int = 3, across: int = 2) -> NDArray[np.uint8]:
    """Random blocks of a GGML type whose scales, halves somewhere in each block, are mostly finite: bytes below 0x78."""
    return np.random.default_rng(1).integers(0, 0x78, (rows, across * GGML_QUANT_SIZES[GGMLQuantizationType[name]][1]), dtype=np.uint8)


def write_gguf(path: Path, tensors: dict[str, tuple[NDArray[Any], str]]) -> Path:
    writer = GGUFWriter(path, "llama")
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_every_type_of_gguf(tmp_path: Path) -> None:
    names = decodable()
    assert {"Q4_0", "Q8_0", "Q2_K", "Q6_K", "IQ1_S", "IQ4_XS", "TQ2_0", "MXFP4"} <= set(names)
    path = write_gguf(tmp_path / "m.gguf", {f"blk.{i}.ffn_up.weight": (blocks(name), name) for i, name in enumerate(names)})
    with open_checkpoint(str(path), Access(local=True)) as checkpoint:
        for number, kind in enumerate(names):
            with np.errstate(all="ignore"):
                expected = dequantize(blocks(kind), GGMLQuantizationType[kind])
            same(values_of(checkpoint, f"blk.{number}.ffn_up.weight"), expected)
        assert [tensor.stored_dtype for tensor in checkpoint.tensors] == names and not checkpoint.notes
