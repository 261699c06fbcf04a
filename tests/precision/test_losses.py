"""Losses, their gradients and clipping, compared with the formulas of the paper in float64 under autograd."""

import pytest
import torch
from torch import Tensor

from analyzers.precision import PrecisionReport, PrecisionRequest, analyze
from analyzers.precision.losses import Objective, gspo, log_probabilities, logits_gradient
from analyzers.precision.request import CLIP

S, L, V = 4, 7, 33
ADVANTAGES = (1.5, -0.5, 0.25, -2.0)


def exact(loss: str, logits: Tensor, targets: Tensor, old: Tensor) -> tuple[Tensor, Tensor]:
    """Losses and the gradient of their mean, token by token and sequence by sequence as in the paper, in float64."""
    wide = logits.double().requires_grad_()
    losses = []
    for s in range(S):
        log_p = [torch.log_softmax(wide[s, t], 0)[targets[s, t]] for t in range(L)]
        if loss == "ce":
            losses += [-each for each in log_p]
            continue
        ratio = torch.stack([torch.exp(log_p[t] - old[s, t].double()) for t in range(L)]).prod() ** (1 / L)
        clipped = min(max(float(ratio.detach()), 1 - CLIP[0]), 1 + CLIP[1])
        candidates = [ratio * ADVANTAGES[s], ratio * 0 + clipped * ADVANTAGES[s]]
        losses.append(-min(candidates, key=lambda each: float(each.detach())))
    stacked = torch.stack(losses)
    (gradient,) = torch.autograd.grad(stacked.mean(), wide)
    return stacked.detach(), gradient


@pytest.mark.parametrize(("loss", "spread"), [("ce", 0.0), ("gspo", 1e-3), ("gspo", 0.3)])
def test_losses_and_gradients(loss: str, spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where ratios are clipped on both sides, and with logits cut into many pieces."""
    monkeypatch.setattr("analyzers.precision.losses.PIECE_BYTES", 4 * V * 4)
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(S, L, V, generator=generator)
    targets = torch.randint(V, (S, L), generator=generator)
    noisy = logits + spread * torch.randn(logits.shape, generator=generator)
    old = torch.log_softmax(noisy, -1).gather(-1, targets[..., None])[..., 0]
    expected, gradient = exact(loss, logits, targets, old)
    log_p = log_probabilities(logits, targets)
    torch.testing.assert_close(log_p, torch.log_softmax(logits, -1).gather(-1, targets[..., None])[..., 0], rtol=1e-6, atol=1e-6)
    losses, coefficients = Objective(torch.tensor(ADVANTAGES) if loss == "gspo" else None).terms(log_p, old)
    torch.testing.assert_close(losses.double().flatten(), expected, rtol=3e-6, atol=3e-6)
    torch.testing.assert_close(logits_gradient(logits, targets, coefficients).double(), gradient, rtol=1e-5, atol=1e-8)


def test_a_ratio_is_clipped_only_where_it_helps() -> None:
    """Above the range with a positive advantage and below it with a negative one, as min(...) of the objective has it."""
    ratios, advantages = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.0001]), torch.tensor([2.0, -2.0, 2.0, -2.0, 2.0])
    losses, coefficients = gspo(ratios.log()[:, None], torch.zeros(5, 1), advantages)
    torch.testing.assert_close(losses.flatten(), torch.tensor([-2.0008, 3.0, -1.0, 1.9994, -2.0002]))
    torch.testing.assert_close(coefficients.flatten() * 5, torch.tensor([0.0, -3.0, 1.0, 0.0, 2.0002]))


def test_the_reference_is_the_sampling_policy() -> None:
    """Its own ratios are 1, so that the loss is the mean advantage."""
    request = PrecisionRequest(
        model="sample:tiny-bf16", variants=("same: dtype=fp32", "bf16"), sequence_length=48, loss="gspo", advantages=(1.0, -0.5)
    )
    *_, found = analyze(request)
    assert isinstance(found, PrecisionReport)
    assert found.reference.loss == pytest.approx(-0.25) and found.variants["same"].summary.parameters_bw == 0
    rows = [row for row in found.variants["bf16"].tensors if row.kind == "logits_grad"]
    assert rows[0].rms_rel is not None and rows[0].rms_rel > 0
