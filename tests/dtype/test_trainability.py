"""What weights say about further training: steps that move them, tensors that never moved, bits that they carry."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import entropy

from analyzers.dtype.trainability import STEPS
from analyzers.numerics import BF16 as BF16_FORMAT
from analyzers.numerics import FP16 as FP16_FORMAT
from analyzers.numerics import FloatFormat
from tests.cases import few
from tests.dtype.checkpoints import normal, write
from tests.dtype.reports import exact, inspect

F64, F32, BF16, F16 = torch.float64, torch.float32, torch.bfloat16, torch.float16
Array = NDArray[np.float64]


def every_pattern(dtype: torch.dtype) -> torch.Tensor:
    """All finite values of a 16-bit dtype, (n, 1)."""
    values = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    return values[values.isfinite()][:, None]


def frozen(weights: Array, dtype: torch.dtype, step: float) -> NDArray[np.bool_]:
    """Whether w + step and w - step both have w as their nearest value of ``dtype``, found among all values it has."""
    grid = np.unique(every_pattern(dtype).to(F64).numpy())

    def nearest(moved: Array) -> Array:
        above = np.clip(np.searchsorted(grid, moved), 1, len(grid) - 1)
        low, high = grid[above - 1], grid[above]
        return np.where(moved - low < high - moved, low, high)  # no sum here is a tie: the steps are no dyadic fractions

    return np.asarray((nearest(weights + step) == weights) & (nearest(weights - step) == weights))


def flips(weights: Array, stored: FloatFormat, step: float) -> float:
    """Mean of min(1, step / ulp)."""
    return float(np.minimum(1, step / stored.ulp(weights)).mean())


@pytest.mark.parametrize(("dtype", "stored"), [(BF16, BF16_FORMAT), (F16, FP16_FORMAT)])
def test_every_pattern_is_moved_by_the_steps_that_move_it(dtype: torch.dtype, stored: FloatFormat, tmp_path: Path) -> None:
    patterns = every_pattern(dtype)
    report = exact(write(tmp_path, {"model.layers.0.mlp.up_proj.weight": patterns}))
    found = report.movable if dtype == BF16 else report.movable_fp16
    assert found is not None and found.steps == STEPS and len(STEPS) == 13
    assert found.format == stored.name and found.roles == {"mlp": found.frozen}
    weights = patterns.to(F64).numpy().ravel()
    assert found.frozen == pytest.approx([frozen(weights, dtype, step).mean() for step in STEPS], rel=1e-12)
    assert found.expected_flips == pytest.approx([flips(weights, stored, step) for step in STEPS], rel=1e-12)


@pytest.mark.parametrize("dtype", few([F32, F16], {0}))
def test_other_values_move_as_rounded_to_bf16(dtype: torch.dtype, tmp_path: Path) -> None:
    values = normal(512, 512, seed=3).to(dtype)
    found = exact(write(tmp_path, {"model.layers.0.mlp.up_proj.weight": values})).movable
    assert found is not None
    weights = values.to(F32).to(BF16).to(F64).numpy().ravel()
    # A histogram of 32-bit floats takes each half of the values next to a power of two for rounded down, and the other for rounded up.
    assert found.frozen == pytest.approx([frozen(weights, BF16, step).mean() for step in STEPS], rel=1e-12, abs=0 if dtype == F16 else 1e-3)


def test_roles(tmp_path: Path) -> None:
    tensors = {
        "model.layers.0.self_attn.q_proj.weight": torch.full((4, 8), 1e-5, dtype=BF16),
        "model.layers.0.mlp.up_proj.weight": torch.tensor([[1.0, 1e-6], [float("nan"), float("inf")]], dtype=BF16),
        "model.norm.weight": torch.ones(8, dtype=BF16),
    }
    found = exact(write(tmp_path, tensors)).movable
    assert found is not None
    assert list(found.roles) == ["attention", "mlp", "norm"]
    at = STEPS.index(1e-6)
    assert (found.roles["attention"][at], found.roles["mlp"][at], found.roles["norm"][at]) == (0, 0.5, 1)
    assert found.frozen[at] == 9 / 42


def test_a_sample_weighs_roles_by_their_size(tmp_path: Path) -> None:
    tensors = {f"model.layers.{layer}.mlp.up_proj.weight": normal(256, 512, seed=layer).to(BF16) for layer in range(8)}
    tensors |= {f"model.layers.{layer}.input_layernorm.weight": torch.ones(512, dtype=BF16) for layer in range(8)}
    folder = write(tmp_path, tensors)
    whole, sample = exact(folder), inspect(folder, budget=200_000)
    assert whole.movable and sample.movable and sample.bytes_read < 250_000
    assert sample.movable.frozen == pytest.approx(whole.movable.frozen, abs=0.02)
    assert sample.movable.roles["norm"] == whole.movable.roles["norm"]
    assert sample.untouched == whole.untouched and len(sample.untouched) == 8
    assert sample.entropy and whole.entropy and sample.entropy.bits_per_weight == pytest.approx(whole.entropy.bits_per_weight, abs=0.1)


def test_tensors_that_never_moved(tmp_path: Path) -> None:
    half = torch.ones(8)
    half[:4] = torch.tensor([1.5, 0.9, 2.0, 1.25])
    fewer = half.clone()
    fewer[4] = 3.0
    tensors = {
        "model.layers.0.input_layernorm.weight": torch.ones(8, dtype=BF16),
        "model.layers.1.input_layernorm.weight": half,
        "model.layers.2.input_layernorm.weight": fewer,
        "model.layers.3.input_layernorm.weight": half - 1,  # zero-centred
        "model.layers.0.self_attn.q_proj.bias": torch.zeros(8, dtype=F64),
        "model.layers.1.self_attn.q_proj.bias": half.to(F16),
        "model.layers.0.mlp.up_proj.weight": torch.full((4, 4), -0.3),
        "model.layers.1.mlp.up_proj.weight": half.repeat(4, 1),
        "model.layers.2.mlp.up_proj.weight": torch.tensor([[0.3, -0.3]]),
        "not.a.number": torch.full((4, 4), float("nan")),
        "scale": torch.tensor(1.0),
    }
    found = {row.name.removeprefix("model.layers."): (row.role, row.value, row.share) for row in exact(write(tmp_path, tensors)).untouched}
    assert found == {
        "0.input_layernorm.weight": ("norm", 1.0, 1.0),
        "0.self_attn.q_proj.bias": ("attention", 0.0, 1.0),
        "0.mlp.up_proj.weight": ("mlp", pytest.approx(-0.3), 1.0),
        "1.input_layernorm.weight": ("norm", 1.0, 0.5),
        "3.input_layernorm.weight": ("norm", 0.0, 0.5),
    }
    assert list(found.values())[-1][2] == 0.5


@pytest.mark.parametrize("dtype", [BF16, F16, torch.float8_e4m3fn, F32])
def test_entropy_is_scipys(dtype: torch.dtype, tmp_path: Path) -> None:
    values = normal(256, 128).to(dtype)
    norm = torch.ones(8, dtype=F16 if dtype != F16 else F32)
    found = exact(write(tmp_path, {"model.layers.0.mlp.up_proj.weight": values, "norm.weight": norm})).entropy
    assert found is not None and found.stored_bits == 8 * values.element_size()
    codes = values.view({1: torch.uint8, 2: torch.uint16, 4: torch.uint32}[values.element_size()]).numpy().astype(np.int64).ravel()
    if dtype == F32:
        codes >>= 16
    bits = float(entropy(np.unique(codes, return_counts=True)[1], base=2))
    whole, half = (found.high_half_bits, found.bits_per_weight) if dtype == F32 else (found.bits_per_weight, found.high_half_bits)
    assert whole == pytest.approx(bits) and half is None
    mantissa, exponent = {BF16: (7, 8), F32: (7, 8), F16: (10, 5)}.get(dtype, (3, 4))
    exponents = np.unique((codes >> mantissa) & ((1 << exponent) - 1), return_counts=True)[1]
    assert found.exponent_bits == pytest.approx(float(entropy(exponents, base=2)))
