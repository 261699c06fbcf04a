"""Errors of tensors and of log-probabilities, compared with their formulas in float64."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from analyzers.precision_variants import reductions
from analyzers.precision_variants.compare import Compared, Sums, sums
from analyzers.precision_variants.headroom import extremes
from analyzers.precision_variants.reductions import totals
from analyzers.precision_variants.summary import logprobs

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
    pair = x.reshape(1, -1), ref.reshape(1, -1)
    return sums([pair], totals([(pair[1], None)]), scale)[0]


def row(x: Tensor, ref: Tensor, scale: float = 1.0) -> dict[str, Any]:
    return Compared("hidden", "layers.0", 0, compared(x, ref, scale)).row().model_dump()


@pytest.mark.parametrize(
    ("dtype", "scale", "size"),
    [
        (torch.bfloat16, 1.0, 1e-9),
        (torch.bfloat16, 1.0, 1e3),
        (torch.float16, 1.0, 1.0),
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
def test_extremes_of_every_kind(dtype: torch.dtype) -> None:
    x = torch.randn(40, 50, generator=torch.Generator().manual_seed(4)).to(dtype)
    x[3, 7] = -19.5
    several = (x, x.T, x[:, 3:9], x[3, 7], torch.cat([x, -x]))
    assert extremes(several) == [(19.5 if -19.5 in each or 19.5 in each else float(each.abs().max()), 0) for each in several]
    x[0, :3] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    assert extremes([torch.zeros(5, dtype=dtype), x, x[:0], torch.full((5,), torch.nan)]) == [(0.0, 0), (19.5, 3), (0.0, 0), (0.0, 5)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("size", [1e-25, 1.0, 1e25])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_the_kernels_of_a_gpu_give_the_same_sums(dtype: torch.dtype, size: float, offset: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several blocks, on a CPU, against float64: also of values whose squares float32 does not hold, and of a large mean."""
    monkeypatch.setattr(reductions, "on_gpu", lambda tensor: True)
    monkeypatch.setattr(reductions, "_GPU_CHUNK", 70_001)
    generator = torch.Generator().manual_seed(5)
    ref = (torch.randn(4, 100_000, generator=generator) + offset) * size
    scale = {1e-25: 2.0**24, 1.0: 4.0, 1e25: 2.0**-75}[size] if dtype == torch.float16 else 4.0
    x = (1.01 * scale * ref).to(dtype)
    pairs = [(x[:1], ref[:1]), (x.reshape(1, -1), ref.reshape(1, -1))]
    moments = totals([(each, None) for _, each in pairs])
    for (value, exact), row, known in zip(pairs, sums(pairs, moments, scale), moments, strict=True):
        w = exact.double().numpy()[0]
        e = value.double().numpy()[0] / scale - w
        assert known[0, 1] == pytest.approx((w**2).sum(), rel=1e-12, abs=0)
        norms = float(np.linalg.norm(w) * np.linalg.norm(e))
        assert row.ref == pytest.approx(w.sum(), abs=1e-12 * np.abs(w).sum())
        assert row.d == pytest.approx(e.sum(), abs=1e-6 * np.abs(e).sum())
        assert row.ref_d == pytest.approx((w * e).sum(), abs=1e-6 * norms)
        assert (row.ref_ref, row.d_d, row.largest) == pytest.approx(((w**2).sum(), (e**2).sum(), np.abs(e).max()), rel=1e-6, abs=0)
    assert compared(torch.full((9_999,), 0.1), torch.full((9_999,), 0.1)).fit().slope is None


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


def test_parts_add_up() -> None:
    ref, x = torch.randn(2, 1000, generator=torch.Generator().manual_seed(4)).unbind()
    together, first, last = (compared(x[part], ref[part]) for part in (slice(None), slice(300), slice(300, None)))
    assert tuple(together) == pytest.approx(tuple(Sums.of([first, last])), rel=1e-12)


def test_log_probabilities_and_the_importance_ratio() -> None:
    ref = torch.tensor([[-1.0, -2.0, -4.0], [-0.5, -0.25, -3.0]])
    x = ref + torch.tensor([[1e-3, -2e-3, 4e-3], [1e-4, 0.0, -1e-4]])
    found, d = logprobs(x, ref), (x.double() - ref.double()).numpy()
    ratios = np.exp(d.mean(1))
    slope, intercept = np.polyfit(ref.double().numpy().ravel(), x.double().numpy().ravel(), 1)
    assert found.slope == pytest.approx(slope) and abs(intercept) < 0.01
    assert found.bias == pytest.approx(d.mean())
    assert found.ratio_max == pytest.approx(np.max(np.abs(np.exp(d) - 1)))
    assert found.ratio_mean == pytest.approx(np.mean(np.abs(np.exp(d) - 1)))
    assert found.sequence_ratio_max == pytest.approx(np.max(np.abs(ratios - 1)))
    assert found.outside_clip == 0.5
    broken = logprobs(torch.full((2, 3), torch.nan), ref)
    assert broken.bias is broken.ratio_max is broken.outside_clip is broken.slope is None
