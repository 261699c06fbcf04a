"""Steps, ends and nearest values of the grids of quantized tensors, against all values of each grid."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from analyzers.checkpoints import Checkpoint, Tensor
from analyzers.checkpoints.matching.views import View
from analyzers.checkpoints.quantization.grid import grid, nearest
from tests.checkpoints.test_scales import E2M1, E4M3, codes, expanded, nbytes, opened, positive

Floats = NDArray[np.float32]


def every_value(table: Floats, scale: Floats) -> Floats:
    """All (n, levels) values of the grids of n elements, ascending."""
    levels = np.unique(table[np.isfinite(table)])
    return np.sort(levels[None] * scale.reshape(-1, 1), axis=1)


def check(tensor: Tensor, values: Floats, every: Floats) -> None:
    """Compare with a search through all values. values: (n,) of the tensor; every: (n, levels) of their grids."""
    start, count = 7, tensor.elements - 20
    found = grid(tensor, start, count)
    values, every = values.reshape(-1)[start : start + count], every[start : start + count]
    assert np.array_equal(found.values, values)
    assert np.allclose(found.low, every[:, 0]) and np.allclose(found.high, every[:, -1])
    at = np.abs(every - values[:, None]).argmin(1)
    rows, last = np.arange(count), every.shape[1] - 1
    below = every[rows, np.maximum(at, 1)] - every[rows, np.maximum(at, 1) - 1]
    above = every[rows, np.minimum(at, last - 1) + 1] - every[rows, np.minimum(at, last - 1)]
    assert np.allclose(found.below, below) and np.allclose(found.above, above)

    random = np.random.default_rng(1)
    wanted = (values + random.uniform(-2, 2, count) * found.above).astype(np.float32)
    distances = np.abs(every.astype(np.float64) - wanted[:, None].astype(np.float64))
    rounded = nearest(tensor, start, wanted)
    off = np.abs(rounded.astype(np.float64) - wanted)
    assert np.allclose(off, distances.min(1), rtol=1e-6, atol=1e-7 * np.abs(every).max())
    assert np.array_equal(nearest(tensor, start, found.values), found.values)


def of(checkpoint: Checkpoint, name: str) -> Tensor:
    return next(tensor for tensor in checkpoint.tensors if tensor.name == name)


@pytest.mark.parametrize("sign", [1, -1])
def test_fp8_in_blocks_and_a_view_of_it(sign: int, tmp_path: Path) -> None:
    weight, scales = codes(40, 70), positive(2, 3) * sign
    with opened(
        tmp_path, {"a.weight": weight, "a.weight_scale": scales}, {"quantization_config": {"weight_block_size": [32, 32]}}
    ) as found:
        tensor, scale = of(found, "a.weight"), expanded(scales, (40, 70), (32, 32))
        values = (weight.float() * scale).numpy()
        table = torch.arange(256, dtype=torch.uint8).view(E4M3).float().numpy()
        check(tensor, values, every_value(table, scale.numpy()))
        turned = View.of(tensor).permute((1, 0)).part_of(tensor, "turned")
        check(turned, values.T.copy(), every_value(table, scale.numpy().T.copy()))


def test_mxfp4(tmp_path: Path) -> None:
    blocks, scales = nbytes(2, 9, 3, 16), nbytes(2, 9, 3, low=120, high=130)
    with opened(tmp_path, {"e_blocks": blocks, "e_scales": scales}) as found:
        halves = np.stack([blocks.numpy() & 15, blocks.numpy() >> 4], axis=-1).reshape(2, 9, 96)
        scale = np.exp2(scales.numpy().astype(np.float32) - 127).repeat(32, -1)
        check(of(found, "e"), E2M1[halves] * scale, every_value(E2M1, scale))
