"""What values are computed from, (level - zero) x scale + bias, against all values of each grid."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from analyzers.checkpoints import Access, Tensor, open_checkpoint
from analyzers.checkpoints.adapters.merged_file import read_values
from analyzers.checkpoints.quantization.decoded_file import read_field
from analyzers.checkpoints.quantization.quantized import Quantized
from analyzers.checkpoints.views import View
from tests.checkpoints.quantization.test_layouts import LIBRARIES, Tensors, awq, blocks, decodable, fixture, gptq, write_gguf
from tests.checkpoints.test_scales import codes, nbytes, opened, positive

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


def fields(tensor: Tensor, start: int, count: int) -> tuple[Doubles, Doubles, Doubles]:
    """Scale, zero point and bias of some elements."""
    scale, zero, bias = (read_field(tensor, name, start, count).astype(np.float64) for name in ("scale", "zero", "bias"))
    return scale, zero, bias


def check(tensor: Tensor, every: Floats) -> None:
    """Compare with all values of the grids. every: (n, levels), ascending."""
    start, count = 7, tensor.elements - 20
    scale, zero, bias = (each[:, None] for each in fields(tensor, start, count))
    assert isinstance(tensor.stored, Quantized)
    values = np.sort((tensor.stored.levels - zero) * scale + bias, axis=1)
    every = every[start : start + count]
    assert (np.abs(values - every) <= 1e-6 * np.abs(every).max(1, keepdims=True)).all()


def every_value(folder: Path, tensors: Tensors, config: Any, filled: Callable[[Tensor, int], bytes]) -> dict[str, Floats]:
    """The grids of all tensors: their values with each code in place of all codes. filled: the codes of a tensor that are all one."""
    found: dict[str, list[Floats]] = {}
    with opened(folder / "as it is", tensors, config) as checkpoint:
        quantized = {t.name: t for t in checkpoint.tensors if t.stored is not None}
    content = bytearray((folder / "as it is" / "model.safetensors").read_bytes())
    for code in range(1 << max(tensor.stored_bits for tensor in quantized.values())):
        for tensor in quantized.values():
            content[tensor.on_disk.offset : tensor.on_disk.offset + tensor.on_disk.nbytes] = filled(tensor, code)
        shutil.copytree(folder / "as it is", folder / str(code))
        (folder / str(code) / "model.safetensors").write_bytes(content)
        with open_checkpoint(str(folder / str(code)), Access(local=True)) as checkpoint:
            for tensor in (t for t in checkpoint.tensors if t.stored is not None and code < 1 << t.stored_bits):
                found.setdefault(tensor.name, []).append(read_values(checkpoint.files, tensor, 0, tensor.elements))
    return {name: ascending(np.stack(each, 1)) for name, each in found.items()}


def ascending(every: Floats) -> Floats:
    """Sort the values of each grid, zero once, without NaN."""
    finite = np.sort(every[:, np.isfinite(every).all(0)], axis=1)
    return finite[:, np.append(True, (np.diff(finite, axis=1) != 0).any(0))]


def in_a_row(tensor: Tensor, code: int) -> bytes:
    """The bytes of codes that are all the same, from the lowest bit on."""
    bits, nbytes = tensor.stored_bits, tensor.on_disk.nbytes
    pattern = sum(code % (1 << bits) << bits * i for i in range(8)).to_bytes(bits, "little")
    return (pattern * (nbytes // bits + 1))[:nbytes]


def down(tensor: Tensor, code: int) -> bytes:
    """The same of codes that are packed along the columns."""
    words = np.frombuffer(in_a_row(tensor, code), np.uint32)[: tensor.on_disk.shape[0]]
    return np.repeat(words, tensor.on_disk.shape[1]).tobytes()


def check_all(folder: Path, tensors: Tensors, config: Any, filled: Callable[[Tensor, int], bytes] = in_a_row) -> None:
    every = every_value(folder, tensors, config, filled)
    with opened(folder / "whole", tensors, config) as checkpoint:
        for tensor in (t for t in checkpoint.tensors if t.stored is not None):
            check(tensor, every[tensor.name])
            if len(tensor.shape) == 2:
                turned = View.of(tensor).permute((1, 0)).part_of(tensor, "turned")
                order = np.arange(tensor.elements).reshape(tensor.shape).T.reshape(-1)
                check(turned, every[tensor.name][order])


@pytest.mark.parametrize("library", LIBRARIES)
def test_of_libraries(library: str, tmp_path: Path) -> None:
    check_all(tmp_path, *fixture(library))


@pytest.mark.parametrize("acted", [False, True])
def test_gptq(acted: bool, tmp_path: Path) -> None:
    check_all(tmp_path, gptq(3, acted, False)[0], {"quantization_config": {"bits": 3, "group_size": 32}}, down)


def test_awq(tmp_path: Path) -> None:
    check_all(tmp_path, awq()[0], None)


@pytest.mark.parametrize("sign", [1, -1])
def test_fp8_in_blocks(sign: int, tmp_path: Path) -> None:
    tensors = {"a.weight": codes(40, 70), "a.weight_scale": positive(2, 3) * sign}
    check_all(tmp_path, tensors, {"quantization_config": {"weight_block_size": [32, 32]}})


def test_mxfp4(tmp_path: Path) -> None:
    check_all(tmp_path, {"e_blocks": nbytes(2, 9, 3, 16), "e_scales": nbytes(2, 9, 3, low=120, high=130)}, None)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "TQ1_0", "TQ2_0"])
def test_gguf(kind: str, tmp_path: Path) -> None:
    """A value is on its grid, between the ends, and on the grid of other codes in the same block."""
    data = blocks(kind)
    path = write_gguf(tmp_path / "m.gguf", {"blk.0.ffn_up.weight": (data, kind)})
    values = dequantize(data, GGMLQuantizationType[kind]).reshape(-1)
    with open_checkpoint(str(path), Access(local=True)) as checkpoint:
        (tensor,) = checkpoint.tensors
        scale, zero, bias = fields(tensor, 5, tensor.elements - 9)
        assert isinstance(tensor.stored, Quantized) and not zero.any()
        ends = bias, tensor.stored.levels[-1] * scale + bias
        low, high = np.minimum(*ends), np.maximum(*ends)
        size = np.maximum(np.abs(low), np.abs(high))
        assert (low <= values[5:-4] + 1e-6 * size).all() and (values[5:-4] <= high + 1e-6 * size).all()
        usable = np.abs(scale) > 1e-3 * size  # in which rounding to float32 does not matter
        place = (values[5:-4] - bias)[usable] / scale[usable]
        assert np.abs(place - np.rint(place)).max() < 1e-2


def test_types_of_gguf_without_a_grid(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"blk.0.ffn_up.weight": (blocks("IQ4_XS"), "IQ4_XS")})
    assert "IQ4_XS" in decodable()
    with open_checkpoint(str(path), Access(local=True)) as checkpoint:
        assert all(np.isnan(each).all() for each in fields(checkpoint.tensors[0], 0, 100))
