"""Weights and their scales: which belong to which, and values against torch, transformers and plain loops."""

import tracemalloc
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.torch import save_file
from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from analyzers.checkpoints import Access, Checkpoint, Chunk, Span, Tensor, account_notes, open_checkpoint, stream, whole_spans
from analyzers.checkpoints.quantization.decoded_file import DecodedFile
from analyzers.checkpoints.quantization.quantized import Packing, Quantized
from analyzers.core import limits
from analyzers.numerics.formats import FP4_E2M1, e8m0_values
from analyzers.numerics.warm_up import warm_up
from tests.dtype.checkpoints import write

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FP8 = {"F8_E4M3": E4M3, "F8_E5M2": E5M2, "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)
Floats = NDArray[np.float32]


def codes(*shape: int, dtype: torch.dtype = E4M3, seed: int = 0) -> torch.Tensor:
    """fp8 values of all magnitudes, finite."""
    values = np.random.default_rng(seed).standard_normal(shape) * 2.0 ** np.random.default_rng(seed + 1).integers(-6, 6, shape)
    return torch.from_numpy(values.astype(np.float32)).to(dtype)


def positive(*shape: int, seed: int = 7) -> torch.Tensor:
    """Scales."""
    return torch.from_numpy(np.random.default_rng(seed).uniform(1e-4, 3e-4, shape).astype(np.float32))


def nbytes(*shape: int, low: int = 0, high: int = 256, seed: int = 3) -> torch.Tensor:
    """Random bytes."""
    return torch.from_numpy(np.random.default_rng(seed).integers(low, high, shape, dtype=np.uint8))


def values_of(checkpoint: Checkpoint, name: str, spans: list[Span] | None = None) -> Floats:
    """What a stream hands over of one tensor, in its shape."""
    tensor = next(t for t in checkpoint.tensors if t.name == name)
    out = np.full(tensor.elements, np.nan, dtype=np.float32)

    def collect(span: Span, chunks: Iterator[Chunk]) -> int:
        for chunk in chunks:
            assert chunk.codes.dtype == np.uint32
            out[chunk.start : chunk.start + chunk.codes.size] = chunk.codes.view(np.float32)
        return span.count

    found = [step for step in stream([checkpoint], spans or whole_spans([(tensor,)]), collect) if step.span is not None]
    assert sum(step.result or 0 for step in found) == tensor.elements
    return out.reshape(tensor.shape)


def same(found: Floats, expected: torch.Tensor | Floats) -> None:
    """Bit for bit, but for what kind of NaN."""
    other = expected.numpy() if isinstance(expected, torch.Tensor) else expected
    assert found.shape == other.shape and other.dtype == np.float32
    assert np.array_equal(found, other, equal_nan=True)
    numbers = ~np.isnan(found)
    assert np.array_equal(found.view(np.uint32)[numbers], np.ascontiguousarray(other).view(np.uint32)[numbers])


def opened(folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any] | None = None) -> Checkpoint:
    return open_checkpoint(str(write(folder, tensors, config)), Access(local=True))


def expanded(scales: torch.Tensor, shape: tuple[int, ...], block: tuple[int, int]) -> torch.Tensor:
    """Scales, each repeated over its block and cut off at the edges."""
    wide = scales.float().repeat_interleave(block[0], -2).repeat_interleave(block[1], -1)
    return wide[..., : shape[-2], : shape[-1]]


_LAYOUTS = {
    "blocks": ((256, 384), (2, 3), (128, 128)),
    "partial blocks": ((200, 300), (2, 3), (128, 128)),
    "one block": ((64, 64), (1, 1), (64, 64)),
    "per row": ((96, 130), (96, 1), (1, 130)),
    "groups of a row": ((64, 512), (64, 4), (1, 128)),
    "groups of 32": ((64, 512), (64, 16), (1, 32)),
    "per column": ((64, 96), (1, 96), (64, 1)),
    "experts": ((3, 200, 300), (3, 2, 3), (128, 128)),
    "experts, per row": ((3, 20, 30), (3, 20, 1), (1, 30)),
    "experts, per column": ((3, 20, 30), (3, 1, 30), (20, 1)),
    "layers of experts": ((2, 3, 130, 40), (2, 3, 2, 1), (128, 40)),
    "a vector": ((300,), (3,), (1, 128)),
    "groups of 32, some": ((96, 96), (96, 3), (1, 32)),
    "a vector of columns": ((64, 96), (96,), (64, 1)),
    "columns, on the first axis": ((64, 96), (96, 1), (64, 1)),
    "columns, half as many as rows": ((192, 96), (96, 1), (192, 1)),
    "rows, on the last axis": ((196, 96), (1, 196), (1, 96)),
    "experts, columns on the first axis": ((3, 40, 30), (3, 30, 1), (40, 1)),
    "rows of a square": ((40, 40), (40,), (1, 40)),
    "a grid of blocks of one row": ((64, 8192), (1, 64), (64, 128)),
}


@pytest.mark.parametrize("name", _LAYOUTS)
def test_fp8_with_scales(name: str, tmp_path: Path) -> None:
    shape, grid, block = _LAYOUTS[name]
    weight, scales = codes(*shape), positive(*grid)
    with opened(tmp_path, {"a.weight": weight, "a.weight_scale_inv": scales}) as checkpoint:
        tensor = checkpoint.tensors[0]
        assert isinstance(tensor.stored, Quantized) and tensor.stored.block == block and tensor.dtype == "F32"
        assert checkpoint.tensors[1].holds_scales and checkpoint.parameters == weight.numel()
        rows, columns = (1, *shape)[-2:]
        blocks = scales.reshape(*shape[:-2], -(-rows // block[0]), -(-columns // block[1]))
        wide = expanded(blocks, (rows, columns), block)
        same(values_of(checkpoint, "a.weight"), weight.float() * wide.reshape(shape))


@pytest.mark.parametrize("dtype", FP8)
def test_every_pattern_of_every_fp8_dtype(dtype: str, tmp_path: Path) -> None:
    every = torch.arange(256, dtype=torch.uint8).reshape(4, 64).view(FP8[dtype])
    with opened(tmp_path, {"a.weight": every, "a.weight_scale": torch.tensor(0.3)}) as checkpoint:
        same(values_of(checkpoint, "a.weight"), every.float() * torch.tensor(0.3))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz])
def test_rare_floats_are_converted_to_fp32(dtype: torch.dtype, tmp_path: Path) -> None:
    """As torch converts them, whichever part is read, and a note says so."""
    wide = torch.from_numpy(np.random.default_rng(0).integers(0, 256, 40 * 8 * 64, dtype=np.uint8)).view(dtype)
    if dtype == torch.float64:
        wide = torch.cat([wide, torch.tensor([1 + 2.0**-24, 1 + 3 * 2.0**-24, 3.5e38, -1e300, 1e-46, 5e-324, -0.0])])
    checkpoint = opened(tmp_path, {"weight": wide})
    (tensor,) = checkpoint.tensors
    assert tensor.counted_as == "F32" and "converted" in [note.code for note in account_notes(checkpoint, [tensor])]
    parts = [Span.of(tensor, start, min(101, wide.numel() - start)) for start in range(0, wide.numel(), 101)]
    for spans in (None, parts):
        same(values_of(checkpoint, "weight", spans), wide.to(torch.float32))


def test_every_pattern_of_e8m0_and_e2m1() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e8m0fnu).float().numpy()
    assert np.array_equal(e8m0_values().astype(np.float32), every, equal_nan=True)
    assert np.array_equal(FP4_E2M1.decode(), E2M1) and np.signbit(FP4_E2M1.decode()[8])
    assert (FP4_E2M1.largest, FP4_E2M1.smallest_normal, FP4_E2M1.smallest_subnormal) == (6.0, 1.0, 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e8m0fnu])
def test_every_dtype_of_scales(dtype: torch.dtype, tmp_path: Path) -> None:
    weight, scales = codes(128, 256), positive(1, 2).to(dtype)
    with opened(tmp_path, {"a.weight": weight, "a.weight_scale_inv": scales}) as checkpoint:
        found = values_of(checkpoint, "a.weight")
        same(found, weight.float() * expanded(scales, (128, 256), (128, 128)))
    ours = _dequantize_fp8_weight(weight, scales, [128, 128], torch.float32)
    same(found, ours)


def test_exponents_stored_as_bytes(tmp_path: Path) -> None:
    weight, scales = codes(64, 256), nbytes(64, 8, low=100, high=140)
    with opened(tmp_path, {"a.weight": weight, "a.weight_scale": scales}) as checkpoint:
        wide = expanded(scales.view(torch.float8_e8m0fnu).float(), (64, 256), (1, 32))
        same(values_of(checkpoint, "a.weight"), weight.float() * wide)


def test_views_in_a_pickled_file(tmp_path: Path) -> None:
    weight, scales = codes(300, 200), positive(3, 2)
    torch.save({"a.weight": weight.t(), "a.weight_scale_inv": scales.t()}, tmp_path / "pytorch_model.bin")
    with open_checkpoint(str(tmp_path), Access(local=True)) as checkpoint:
        same(values_of(checkpoint, "a.weight"), (weight.float() * expanded(scales, (300, 200), (128, 128))).t().contiguous())


def test_fbgemm_experts_as_transformers_reads_them(tmp_path: Path) -> None:
    """Of Llama 4: (experts, in, out) times a scale per out, stored as (experts, 1, out) for one and (experts, out, 1) for the other."""
    experts, hidden, inner = 3, 40, 56
    up, up_scale = codes(experts, hidden, 2 * inner), positive(experts, 1, 2 * inner)
    down, down_scale = codes(experts, inner, hidden), positive(experts, hidden, 1)
    tensors = {"e.gate_up_proj": up, "e.gate_up_proj_scale": up_scale, "e.down_proj": down, "e.down_proj_scale": down_scale}
    with opened(tmp_path, tensors) as checkpoint:
        same(values_of(checkpoint, "e.gate_up_proj"), up.float() * up_scale)
        same(values_of(checkpoint, "e.down_proj"), down.float() * down_scale.transpose(1, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("group", [16, 32])
def test_fp4_with_scales_that_are_floats(group: int, dtype: torch.dtype, tmp_path: Path) -> None:
    """Of the dtype F4 nothing else can be meant; bytes are fp4 where the configuration says so (DeepSeek), else integers."""
    packed, scales = nbytes(3, 24, 48), positive(3, 24, 96 // group).to(dtype)
    halves = np.stack([packed.numpy() & 15, packed.numpy() >> 4], axis=-1).reshape(3, 24, 96)
    expected = torch.from_numpy(E2M1[halves]) * scales.float().repeat_interleave(group, -1)
    as_bytes = {"e.up_proj": packed.view(torch.int8), "e.up_proj_scale_inv": scales}
    with opened(tmp_path / "bytes", as_bytes, {"expert_dtype": "fp4"}) as checkpoint:
        assert (checkpoint.tensors[0].stored_dtype, checkpoint.tensors[0].shape, checkpoint.parameters) == ("F4", (3, 24, 96), 3 * 24 * 96)
        same(values_of(checkpoint, "e.up_proj"), expected)
    with opened(tmp_path / "integers", as_bytes) as checkpoint:
        assert checkpoint.tensors[0].dtype == "I8" and checkpoint.tensors[0].stored is None
    (tmp_path / "f4").mkdir()
    save_file({"a.weight": packed.view(torch.float4_e2m1fn_x2), "a.weight_scale": scales}, tmp_path / "f4" / "model.safetensors")
    with open_checkpoint(str(tmp_path / "f4"), Access(local=True)) as checkpoint:
        same(values_of(checkpoint, "a.weight"), expected)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_scale_for_all(shape: tuple[int, ...], tmp_path: Path) -> None:
    weight, scale = codes(3, 20, 40, dtype=E5M2), torch.full(shape, 0.3)
    with opened(tmp_path, {"e.gate_up_proj": weight, "e.gate_up_proj_scale": scale}) as checkpoint:
        same(values_of(checkpoint, "e.gate_up_proj"), weight.float() * torch.tensor(0.3))


@pytest.mark.parametrize("leaf", ["weight_scale_inv", "weight_scale", "scale", "scale_weight", "qscale_weight"])
def test_names_of_scales(leaf: str, tmp_path: Path) -> None:
    with opened(tmp_path, {"a.weight": codes(8, 8), f"a.{leaf}": torch.tensor(2.0), "a.input_scale": torch.tensor(3.0)}) as checkpoint:
        assert {t.name: t.holds_scales for t in checkpoint.tensors} == {"a.weight": False, f"a.{leaf}": True, "a.input_scale": True}


def test_the_configuration_decides_where_shapes_do_not(tmp_path: Path) -> None:
    weight, scales = codes(200, 200), positive(2, 2)
    tensors = {"a.weight": weight, "a.weight_scale_inv": scales}
    for block in ([100, 100], [128, 150], [199, 101]):
        config = {"quantization_config": {"weight_block_size": block}}
        with opened(tmp_path / str(block), tensors, config) as checkpoint:
            same(values_of(checkpoint, "a.weight"), weight.float() * expanded(scales, (200, 200), (block[0], block[1])))
    for i, hostile in enumerate([[0, 0], [-1, 5], "128", [128], [1.5, 2], [64, 64], None, {"a": 1}]):
        with opened(tmp_path / f"h{i}", tensors, {"quantization_config": {"weight_block_size": hostile}}) as checkpoint:
            same(values_of(checkpoint, "a.weight"), weight.float() * expanded(scales, (200, 200), (128, 128)))


@pytest.mark.parametrize("separator", ["_", "."])
def test_mxfp4_as_transformers_reads_it(separator: str, tmp_path: Path) -> None:
    blocks, scales = nbytes(3, 70, 5, 16), nbytes(3, 70, 5, low=100, high=140)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    with opened(tmp_path, {f"{name}{separator}blocks": blocks, f"{name}{separator}scales": scales}) as checkpoint:
        tensor = checkpoint.tensors[0]
        assert (tensor.name, tensor.stored_dtype, tensor.shape, tensor.role) == (name, "MXFP4", (3, 70, 160), "expert")
        assert (tensor.stored_bits, tensor.on_disk.nbytes, checkpoint.parameters) == (4, blocks.numel(), 3 * 70 * 160)
        assert checkpoint.quantization == "mxfp4" and not checkpoint.notes
        found = values_of(checkpoint, name)
    same(found, convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2).contiguous())


def test_mxfp4_over_every_scale(tmp_path: Path) -> None:
    """Also where the product leaves the normal numbers of float32; and no number has the scale 255."""
    blocks, scales = nbytes(256, 1, 16), torch.arange(256, dtype=torch.uint8).reshape(256, 1)
    with opened(tmp_path, {"e.w_blocks": blocks, "e.w_scales": scales}) as checkpoint:
        found = values_of(checkpoint, "e.w").astype(np.float64)
    halves = np.stack([blocks.numpy() & 15, blocks.numpy() >> 4], axis=-1).reshape(256, 32)
    exact = E2M1[halves].astype(np.float64) * np.exp2(np.arange(256.0) - 127)[:, None]
    assert np.isnan(found[255]).all() and np.isinf(found[254]).any()
    small = np.abs(exact) <= np.finfo(np.float32).max
    small[255] = False
    assert np.array_equal(found[small], exact[small])


@pytest.mark.parametrize(("weight", "scale"), [("weight_packed", torch.uint8), ("weight", torch.float8_e8m0fnu), ("weight", torch.int8)])
def test_packed_mxfp4(weight: str, scale: torch.dtype, tmp_path: Path) -> None:
    packed, scales = nbytes(40, 64), nbytes(40, 4, low=100, high=140)
    stored = packed.view(torch.int8) if scale is torch.int8 else packed
    held = scales if scale is torch.uint8 else scales.view(torch.float8_e8m0fnu)
    with opened(tmp_path, {f"a.{weight}": stored, "a.weight_scale": held}) as checkpoint:
        assert [(t.name, t.stored_dtype, t.shape) for t in checkpoint.tensors[:1]] == [("a.weight", "MXFP4", (40, 128))]
        found = values_of(checkpoint, "a.weight")
    same(found, convert_moe_packed_tensors(packed.reshape(1, 40, 4, 16), scales[None], dtype=torch.float32)[0].T.contiguous())


@pytest.mark.parametrize("divides", [False, True])
def test_nvfp4(divides: bool, tmp_path: Path) -> None:
    packed, scales = nbytes(24, 48), positive(24, 6).mul(1e6).to(E4M3)
    factor = torch.tensor([0.013])
    tensors = {"a.weight_packed" if divides else "a.weight": packed, "a.weight_scale": scales}
    tensors["a.weight_global_scale" if divides else "a.weight_scale_2"] = factor
    with opened(tmp_path, tensors) as checkpoint:
        assert (checkpoint.tensors[0].name, checkpoint.tensors[0].stored_dtype) == ("a.weight", "NVFP4")
        assert sum(t.holds_scales for t in checkpoint.tensors) == 2 and checkpoint.quantization == "nvfp4"
        found = values_of(checkpoint, "a.weight")
    halves = np.stack([packed.numpy() & 15, packed.numpy() >> 4], axis=-1).reshape(24, 96)
    one = scales.float() / factor if divides else scales.float() * factor
    same(found, torch.from_numpy(E2M1[halves]) * one.repeat_interleave(16, -1))


_MISFITS = {
    "other grid": {"a.weight": codes(200, 200), "a.weight_scale_inv": positive(3, 7)},
    "other experts": {"a.weight": codes(3, 20, 20), "a.weight_scale": positive(2, 1, 1)},
    "grid shared by experts": {"a.weight": codes(3, 256, 256), "a.weight_scale": positive(1, 2, 2)},
    "more axes": {"a.weight": codes(20, 20), "a.weight_scale": positive(2, 20, 1)},
    "scales of a wrong dtype": {"a.weight": codes(20, 20), "a.weight_scale": torch.ones(20, 1, dtype=torch.int64)},
    "no scales": {"a.weight": codes(20, 20), "a.weight_scale": torch.zeros(0, 1)},
    "25 or 32 for each": {"a.weight": codes(20, 100), "a.weight_scale": positive(20, 4)},
    "a grid turned over": {"a.weight": codes(96, 64), "a.weight_scale": positive(2, 96)},
    "a vector of neither": {"a.weight": codes(96, 65), "a.weight_scale": positive(64)},
    "thirds, which need not be equal": {"a.weight": codes(96, 65), "a.weight_scale": positive(3)},
    "blocks of another length": {"a_blocks": nbytes(4, 2, 8), "a_scales": nbytes(4, 2)},
    "other groups": {"a_blocks": nbytes(4, 2, 16), "a_scales": nbytes(4, 3)},
    "floats as exponents": {"a_blocks": nbytes(4, 2, 16), "a_scales": positive(4, 2)},
    "name taken": {"a_blocks": nbytes(4, 2, 16), "a_scales": nbytes(4, 2), "a": positive(4)},
}


@pytest.mark.parametrize("name", _MISFITS)
def test_what_does_not_fit_stays_as_it_is(name: str, tmp_path: Path) -> None:
    """Scales are none of the parameters all the same."""
    with opened(tmp_path, _MISFITS[name]) as checkpoint:
        assert {t.name for t in checkpoint.tensors} == set(_MISFITS[name])
        assert not any(t.stored for t in checkpoint.tensors)
        weight, scales = list(_MISFITS[name])[:2]
        assert [t.name for t in checkpoint.tensors if t.holds_scales] == [scales]
        assert [(note.code, note.values) for note in checkpoint.notes] == [("misfit-scales", {"tensors": 1, "name": weight})]


@pytest.mark.parametrize(
    "tensors",
    [
        {"a.weight": codes(20, 20)},
        {"a.weight": nbytes(16, 32), "a.weight_scale": nbytes(16, 2)},
        {"a.weight": torch.zeros(0, 20, dtype=E4M3), "a.weight_scale": positive(1)},
        {"a.weight": torch.ones(4, 4), "a.weight_scale": positive(1)},
        {"a_blocks": nbytes(4, 2, 16)},
        {"blocks": nbytes(4, 2, 16), "scales": nbytes(4, 2)},
    ],
    ids=["no scale", "bytes", "empty", "fp32", "no scales", "no name"],
)
def test_what_is_no_pair_is_left_alone(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    with opened(tmp_path, tensors) as checkpoint:
        assert not any(t.stored or t.holds_scales for t in checkpoint.tensors) and not checkpoint.notes


@pytest.mark.parametrize(
    ("packed", "restoring"),
    [
        ("a.qweight", "a.scales"),
        ("a.weight_packed", "a.weight_scale"),
        ("a.weight", "a.SCB"),
        ("a.weight", "a.weight.absmax"),
        ("a.W_q", "a.zero"),
        ("a.weight", "a.weight_scale"),
    ],
)
def test_floats_that_restore_integers_are_scales(packed: str, restoring: str, tmp_path: Path) -> None:
    values = {packed: torch.zeros(16, 64, dtype=torch.int8 if packed == "a.weight" else torch.int32), restoring: positive(16, 2)}
    with opened(tmp_path, values | {"b.weight": torch.ones(4, 4), "b.scale": positive(4)}) as checkpoint:
        assert {tensor.name for tensor in checkpoint.tensors if tensor.holds_scales} == {restoring}


class Bytes:
    """Bytes in memory as a file."""

    path = "bytes"

    def __init__(self, content: NDArray[Any]) -> None:
        self.content = content.reshape(-1).view(np.uint8)
        self.size = self.content.size

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.content[offset : offset + len(buffer)].data

    def close(self) -> None:
        pass


def scale_number(shape: tuple[int, int, int], block: tuple[int, int], element: int) -> int:
    """Number of the scale of an element, by going through every scale."""
    _, rows, columns = shape
    matrix, inside = divmod(element, rows * columns)
    down, across = -(-rows // block[0]), -(-columns // block[1])
    for number, (i, j) in enumerate(product(range(down), range(across))):
        row, column = inside // columns - i * block[0], inside % columns - j * block[1]
        if 0 <= row < block[0] and 0 <= column < block[1]:
            return matrix * down * across + number
    raise AssertionError(element)


lengths = st.integers(1, 12)


@given(st.booleans(), lengths, lengths, lengths, lengths, lengths, st.data())
def test_any_part_of_any_layout(
    packed: bool, matrices: int, rows: int, half_columns: int, block_rows: int, half_block: int, data: st.DataObject
) -> None:
    """Any grid, and any bytes of its values, against a search for the scale of each element."""
    shape, block = (matrices, rows, 2 * half_columns), (block_rows, 2 * half_block)
    elements, number = matrices * rows * 2 * half_columns, matrices * -(-rows // block_rows) * -(-half_columns // half_block)
    rng = np.random.default_rng(elements)
    stored = rng.integers(0, 256, elements // (2 if packed else 1), dtype=np.uint8)
    scales = rng.standard_normal(number).astype(np.float32)
    indices = np.array([scale_number(shape, block, element) for element in range(elements)])
    halves = np.stack([stored & 15, stored >> 4], axis=1).reshape(-1)
    table = torch.arange(256, dtype=torch.uint8).view(E4M3).float().numpy()
    expected = (E2M1[halves] if packed else table[stored]) * scales[indices]

    file = DecodedFile((Bytes(stored), Bytes(scales)))
    codes = Tensor("w", "U8", stored.shape, 0, 0, stored.nbytes, "other", None, False)
    scale = Tensor("s", "F32", scales.shape, 1, 0, scales.nbytes, "other", None, False, holds_scales=True)
    quantized = Quantized("", "", codes, shape, Packing(4 if packed else 8), E2M1 if packed else table, block, scale, file=file)
    file.add(quantized)
    assert quantized.consistent and quantized.nbytes(0, elements) == stored.nbytes + scales.nbytes
    for _ in range(3):
        start = data.draw(st.integers(0, elements - 1))
        found = np.zeros(data.draw(st.integers(1, elements - start)), np.float32)
        file.read_into(4 * start, found.view(np.uint8).data)
        assert np.array_equal(found, expected[start : start + found.size], equal_nan=True)


def test_rows_longer_than_a_piece(tmp_path: Path) -> None:
    columns = (1 << 17) + 200
    weight, scales = codes(3, columns), positive(3, -(-columns // 128))
    with opened(tmp_path, {"a.weight": weight, "a.weight_scale": scales}) as checkpoint:
        same(values_of(checkpoint, "a.weight"), weight.float() * expanded(scales, (3, columns), (1, 128)))


def test_memory_does_not_grow_with_the_tensor(tmp_path: Path) -> None:
    tensors = {"e_blocks": nbytes(128, 512, 16, 16), "e_scales": nbytes(128, 512, 16)}
    with opened(tmp_path, tensors) as checkpoint:
        tensor = checkpoint.tensors[0]
        warm_up()  # what it takes to load them is another matter
        tracemalloc.start()
        try:
            steps = list(stream([checkpoint], whole_spans([(tensor,)]), lambda span, chunks: sum(c.codes.size for c in chunks)))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert steps[-1].bytes_read == sum(t.numel() for t in tensors.values()) and peak < limits.STREAM_BYTES < tensor.nbytes
