"""Errors of tensors and of log-probabilities, compared with their formulas in float64."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from analyzers.precision.errors import Compared, Sums, sums
from analyzers.precision.magnitudes import Peaks
from analyzers.precision.summary import logprobs

FloatArray = NDArray[np.float64]


def metrics(x: FloatArray, ref: FloatArray) -> dict[str, Any]:
    """Each metric by its formula."""
    d = x - ref
    return {
        "rms": np.sqrt(np.mean(d**2)),
        "rms_rel": np.sqrt(np.mean(d**2)) / np.sqrt(np.mean(ref**2)),
        "max": np.max(np.abs(d)),
        "bias": np.mean(d),
        "correlation": np.corrcoef(x, ref)[0, 1],
        "ref_rms": np.sqrt(np.mean(ref**2)),
    }


def compared(x: Tensor, ref: Tensor, scale: float = 1.0) -> Sums:
    """Sums over all elements."""
    return sums([(x, ref)], scale)[0]


def row(x: Tensor, ref: Tensor, scale: float = 1.0) -> dict[str, Any]:
    return Compared("hidden", "layers.0", 0, compared(x, ref, scale)).row().model_dump()


@pytest.mark.parametrize(
    ("dtype", "scale", "size"),
    [
        (torch.bfloat16, 1.0, 1e3),
        (torch.float16, 2.0**12, 1e-3),
        (torch.float32, 1.0, 1e-9),
    ],
)
def test_every_metric_is_exact(dtype: torch.dtype, scale: float, size: float) -> None:
    generator = torch.Generator().manual_seed(3)
    ref = (torch.randn(3, 40_000, generator=generator) + 0.3) * size
    noise = 1e-3 if dtype == torch.float32 else 0.0
    x = (1.002 * ref * scale * (1 + noise * torch.randn(ref.shape, generator=generator)) + 1e-3 * size * scale).to(dtype)
    found, exact = row(x, ref, scale), metrics((x.double() / scale).numpy().ravel(), ref.double().numpy().ravel())
    for name, value in exact.items():
        assert found[name] == pytest.approx(value, rel=1e-6), name
    assert found["nonfinite"] == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 63, 32_768, 100_001])
def test_sums_of_every_dtype_and_size(dtype: torch.dtype, size: int) -> None:
    """Also of strided tensors, which are not written to."""
    generator = torch.Generator().manual_seed(size)
    ref = torch.randn(size, generator=generator)
    x = (8 * ref + 0.1 * torch.randn(size, generator=generator)).to(dtype)
    wide, d = ref.double().numpy(), (x.double() / 8 - ref.double()).numpy()
    exact = [wide.sum(), d.sum(), (wide**2).sum(), (d**2).sum(), np.abs(d).max()]
    product, norms = (wide * d).sum(), float(np.linalg.norm(wide) * np.linalg.norm(d))
    strided = torch.stack([x, x + 1], 1)
    before = strided.clone()
    for values in (x, strided[:, 0]):
        *found, ref_d, greatest = compared(values, ref, scale=8.0)[3:]
        assert [*found, greatest] == pytest.approx(exact, rel=1e-9, abs=1e-9)
        assert ref_d == pytest.approx(product, abs=1e-11 * norms)
    assert torch.equal(strided, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_peaks_of_every_kind(dtype: torch.dtype) -> None:
    x = torch.randn(40, 50, generator=torch.Generator().manual_seed(4)).to(dtype)
    x[3, 7] = -19.5
    peaks = Peaks()
    for layer, tensor in enumerate((x, x.T, x[:, 3:9], x[3, 7], torch.zeros(5, dtype=dtype), x[:0])):
        peaks.add(layer, f"tensor {layer}", tensor)
    x[3, 7] = 99  # written after what was read of it
    peaks.settle()
    assert [(spot.layer, spot.size) for spot in peaks.spots] == [(0, 19.5), (1, 19.5), (2, 19.5), (3, 19.5), (4, 0.0)]
    assert peaks.finite and (peaks.largest_fp16() == 19.5) == (dtype == torch.float16) and peaks.largest(4) is None
    largest = peaks.largest()
    assert largest is not None and largest.layer == 0
    x[0, :3] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    peaks.add(5, "x", x)
    peaks.add(5, "nothing", torch.full((5,), torch.nan))
    peaks.settle()
    last, first = peaks.largest(5), peaks.first("forward")
    assert last is not None and first is not None
    assert (last.size, peaks.nonfinite(5), first.name, first.nonfinite, peaks.finite) == (99, 8, "x", 3, False)


def test_what_is_the_same_has_no_error_and_a_constant_has_no_fit() -> None:
    ref = torch.randn(70_000, generator=torch.Generator().manual_seed(1))
    same = row(ref, ref)
    assert all(same[name] == 0 for name in ("rms_rel", "rms", "max", "bias"))
    assert same["correlation"] == 1
    nothing, infinite = row(torch.zeros(9), torch.zeros(9)), row(torch.ones(9), torch.zeros(9))
    assert nothing["rms_rel"] == 0 and infinite["rms_rel"] is None
    constant = row(torch.full((99_999,), 0.1) + 1e-3, torch.full((99_999,), 0.1))
    assert constant["correlation"] is None and constant["bias"] == pytest.approx(1e-3, rel=1e-4)


def test_what_is_not_finite_is_counted_and_left_out() -> None:
    generator = torch.Generator().manual_seed(2)
    ref = torch.randn(50_000, generator=generator)
    x = ref + 0.01 * torch.randn(50_000, generator=generator)
    x[[1, 40_000]], x[7] = torch.inf, torch.nan
    finite = torch.isfinite(x)
    found, exact = row(x, ref), metrics(x[finite].double().numpy(), ref[finite].double().numpy())
    assert found["nonfinite"] == 3
    for name, value in exact.items():
        assert found[name] == pytest.approx(value, rel=1e-6), name
    nothing = row(torch.full((5,), torch.nan), torch.ones(5))
    assert nothing["nonfinite"] == 5 and nothing["rms_rel"] is nothing["max"] is nothing["correlation"] is None


def test_log_probabilities_and_the_importance_ratio() -> None:
    ref = torch.tensor([[-1.0, -2.0, -4.0], [-0.5, -0.25, -3.0]])
    x = ref + torch.tensor([[1e-3, -2e-3, 4e-3], [1e-4, 0.0, -1e-4]])
    found, d = logprobs(x, ref), (x.double() - ref.double()).numpy()
    assert found.bias == pytest.approx(d.mean())
    assert found.ratio_max == pytest.approx(np.max(np.abs(np.exp(d) - 1)))
    assert found.ratio_mean == pytest.approx(np.mean(np.abs(np.exp(d) - 1)))
    broken = logprobs(torch.full((2, 3), torch.nan), ref)
    assert broken.bias is broken.ratio_max is None
