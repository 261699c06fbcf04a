"""Errors of tensors, losses and their gradients, against the same written out in float64."""

from dataclasses import astuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from analyzers.precision_variants.compare import Sums, _torch_totals, by_sequence, sums
from analyzers.precision_variants.headroom import extreme
from analyzers.precision_variants.losses import cross_entropy, gspo, log_probabilities, logits_gradient
from analyzers.precision_variants.reference import Compared
from analyzers.precision_variants.summary import logprobs

FloatArray = NDArray[np.float64]


def metrics(x: FloatArray, ref: FloatArray) -> dict[str, float]:
    """Each metric by its formula, the fit by numpy's own least squares."""
    d = x - ref
    slope, intercept = np.polyfit(ref, x, 1)
    return {
        "rms": np.sqrt(np.mean(d**2)),
        "rms_rel": np.sqrt(np.mean(d**2)) / np.sqrt(np.mean(ref**2)),
        "max": np.max(np.abs(d)),
        "bias": np.mean(d),
        "slope": slope,
        "intercept": intercept,
        "correlation": np.corrcoef(x, ref)[0, 1],
        "residual": np.sqrt(np.mean((x - slope * ref - intercept) ** 2)),
        "ref_rms": np.sqrt(np.mean(ref**2)),
    }


def row(x: Tensor, ref: Tensor, sequences: int = 1, scale: float = 1.0) -> dict[str, float]:
    return Compared("hidden", "layers.0", 0, by_sequence(x, ref, sequences, scale)).row().model_dump()


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
    found, exact = row(x, ref, 3, scale), metrics((x.double() / scale).numpy().ravel(), ref.double().numpy().ravel())
    for name, value in exact.items():
        assert found[name] == pytest.approx(value, rel=1e-6), name
    each = [metrics(x[i].double().numpy() / scale, ref[i].double().numpy())["rms_rel"] for i in range(3)]
    assert (found["low"], found["high"]) == pytest.approx((min(each), max(each)), rel=1e-6)
    assert (found["elements"], found["nonfinite"]) == (ref.numel(), 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 63, 32_768, 100_001])
def test_both_ways_to_add_up_agree(dtype: torch.dtype, size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    ref = torch.randn(size, generator=generator)
    x = (8 * ref + 0.1 * torch.randn(size, generator=generator)).to(dtype)
    slow = _torch_totals(x, ref, 8.0)
    assert list(astuple(sums(x, ref, 8.0))[3:]) == pytest.approx(slow, rel=1e-9, abs=1e-9)
    d = x.double() / 8 - ref.double()
    assert slow == pytest.approx([float(each) for each in (ref.double().sum(), d.sum(), ref.double().square().sum(), d.square().sum(),
        (ref * d).sum(), d.abs().max())], rel=1e-9, abs=1e-9)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_extremes_of_every_kind(dtype: torch.dtype) -> None:
    x = torch.randn(40, 50, generator=torch.Generator().manual_seed(4)).to(dtype)
    x[3, 7] = -19.5
    for tensor in (x, x.T, x[:, 3:9], x[3, 7], torch.cat([x, -x])):
        assert extreme(tensor) == (19.5 if -19.5 in tensor or 19.5 in tensor else float(tensor.abs().max()), 0)
    x[0, :3] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    assert extreme(x) == (19.5, 3)
    assert extreme(torch.full((5,), torch.nan, dtype=dtype)) == (0.0, 5)
    assert extreme(torch.zeros(5, dtype=dtype)) == (0.0, 0) and extreme(x[:0]) == (0.0, 0)


def test_what_is_the_same_has_no_error_and_a_constant_has_no_fit() -> None:
    ref = torch.randn(70_000, generator=torch.Generator().manual_seed(1))
    same = row(ref, ref)
    assert all(same[name] == 0 for name in ("rms_rel", "rms", "max", "bias", "residual", "intercept"))
    assert same["slope"] == same["correlation"] == 1
    assert row(torch.zeros(9), torch.zeros(9))["rms_rel"] == 0
    assert row(torch.ones(9), torch.zeros(9))["rms_rel"] is None
    constant = row(torch.full((99_999,), 0.1) + 1e-3, torch.full((99_999,), 0.1))
    assert constant["slope"] is None and constant["correlation"] is None and constant["bias"] == pytest.approx(1e-3, rel=1e-4)


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
    assert nothing["nonfinite"] == 5 and nothing["rms_rel"] is None and nothing["max"] is None and nothing["slope"] is None


def test_parts_add_up() -> None:
    ref, x = torch.randn(2, 1000, generator=torch.Generator().manual_seed(4)).unbind()
    together, split = sums(x, ref), Sums.merged([sums(x[:300], ref[:300]), sums(x[300:], ref[300:])])
    assert astuple(together) == pytest.approx(astuple(split), rel=1e-12)


@pytest.mark.parametrize("loss", ["ce", "gspo"])
def test_losses_and_their_gradients(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against autograd in float64, with logits cut into many pieces."""
    monkeypatch.setattr("analyzers.precision_variants.losses.PIECE_BYTES", 4 * 33 * 4)
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(3, 7, 33, generator=generator)
    targets = torch.randint(33, (3, 7), generator=generator)
    before = torch.log_softmax(logits + 0.1 * torch.randn(logits.shape, generator=generator), -1).gather(-1, targets[..., None])[..., 0]
    given = torch.tensor([1.5, -0.5, 0.25])
    wide = logits.double().requires_grad_()
    chosen = torch.stack([torch.stack([torch.log_softmax(wide[s, t], 0)[targets[s, t]] for t in range(7)]) for s in range(3)])
    each = -chosen if loss == "ce" else -given.double() * torch.exp((chosen - before.double()).mean(1))
    (exact,) = torch.autograd.grad(each.mean(), wide)
    log_p = log_probabilities(logits, targets)
    losses, coefficients = cross_entropy(log_p) if loss == "ce" else gspo(log_p, before, given)
    torch.testing.assert_close(log_p.double(), chosen.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(losses.double(), each.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(logits_gradient(logits, targets, coefficients).double(), exact, rtol=1e-5, atol=1e-8)


def test_log_probabilities_and_the_importance_ratio() -> None:
    ref = torch.tensor([[-1.0, -2.0, -4.0], [-0.5, -0.25, -3.0]])
    x = ref + torch.tensor([[1e-3, -2e-3, 4e-3], [1e-4, 0.0, -1e-4]])
    found, d = logprobs(x, ref), (x.double() - ref.double()).numpy()
    ratios = np.exp(d.mean(1))
    assert found.mean == pytest.approx(np.abs(d).mean()) and found.max == pytest.approx(np.abs(d).max())
    assert found.bias == pytest.approx(d.mean())
    assert found.ratio_max == pytest.approx(np.max(np.abs(np.exp(d) - 1)))
    assert found.ratio_mean == pytest.approx(np.mean(np.abs(np.exp(d) - 1)))
    assert found.sequence_ratio_max == pytest.approx(np.max(np.abs(ratios - 1)))
    assert found.outside_clip == 0.5
    broken = logprobs(torch.full((2, 3), torch.nan), ref)
    assert broken.mean is broken.ratio_max is broken.outside_clip is broken.slope is None
