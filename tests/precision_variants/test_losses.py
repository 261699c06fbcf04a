"""Losses, their gradients and clipping, compared with the formulas of the papers in float64 under autograd."""

from typing import Any

import pytest
import torch
from torch import Tensor

from analyzers.checkpoints import Access
from analyzers.core.errors import InvalidData, MantissaError
from analyzers.precision_variants import PrecisionReport, PrecisionRequest, analyze
from analyzers.precision_variants.losses import Objective, grpo, gspo, log_probabilities, logits_gradient
from analyzers.precision_variants.request import CLIP, parse_old_logprobs

MODEL = "sample:tiny-bf16"
S, L, V = 4, 7, 33
ADVANTAGES = (1.5, -0.5, 0.25, -2.0)


def exact(loss: str, logits: Tensor, targets: Tensor, old: Tensor, clip: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Losses and the gradient of their mean, token by token and sequence by sequence as in the papers, in float64."""
    wide = logits.double().requires_grad_()
    losses = []
    for s in range(S):
        log_p = [torch.log_softmax(wide[s, t], 0)[targets[s, t]] for t in range(L)]
        if loss == "ce":
            losses += [-each for each in log_p]
            continue
        ratios = [torch.exp(log_p[t] - old[s, t].double()) for t in range(L)]
        if loss == "gspo":
            ratios = [torch.stack(ratios).prod() ** (1 / L)]
        for ratio in ratios:
            clipped = min(max(float(ratio.detach()), 1 - clip[0]), 1 + clip[1])
            candidates = [ratio * ADVANTAGES[s], ratio * 0 + clipped * ADVANTAGES[s]]
            losses.append(-min(candidates, key=lambda each: float(each.detach())))
    stacked = torch.stack(losses)
    (gradient,) = torch.autograd.grad(stacked.mean(), wide)
    return stacked.detach(), gradient


@pytest.mark.parametrize(("loss", "clip", "spread"), [
    ("ce", (0.0, 0.0), 0.0), ("gspo", CLIP["gspo"], 1e-3), ("gspo", CLIP["gspo"], 0.3), ("gspo", (1.0, 1e6), 0.3),
    ("grpo", CLIP["grpo"], 0.3), ("grpo", (0.05, 0.4), 0.3), ("grpo", (1.0, 1e6), 0.3),
])  # fmt: skip
def test_losses_and_gradients(loss: str, clip: tuple[float, float], spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where ratios are clipped on both sides, and with logits cut into many pieces."""
    monkeypatch.setattr("analyzers.precision_variants.losses.PIECE_BYTES", 4 * V * 4)
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(S, L, V, generator=generator)
    targets = torch.randint(V, (S, L), generator=generator)
    noisy = logits + spread * torch.randn(logits.shape, generator=generator)
    old = torch.log_softmax(noisy, -1).gather(-1, targets[..., None])[..., 0]
    expected, gradient = exact(loss, logits, targets, old, clip)
    log_p = log_probabilities(logits, targets)
    torch.testing.assert_close(log_p, torch.log_softmax(logits, -1).gather(-1, targets[..., None])[..., 0], rtol=1e-6, atol=1e-6)
    objective = Objective(loss, torch.tensor(ADVANTAGES), old, clip)  # type: ignore[arg-type]
    losses, coefficients, clipped = objective.terms(log_p, torch.zeros_like(log_p))
    torch.testing.assert_close(losses.double().flatten(), expected, rtol=3e-6, atol=3e-6)
    torch.testing.assert_close(logits_gradient(logits, targets, coefficients).double(), gradient, rtol=1e-5, atol=1e-8)
    if loss == "ce":
        assert clipped is None
    elif clip == (1.0, 1e6):
        assert clipped == 0
    elif spread > 0.1:
        assert clipped is not None and 0 < clipped < 1


def test_a_ratio_is_clipped_only_where_it_helps() -> None:
    """Above the range with a positive advantage and below it with a negative one, as min(...) of the objective has it."""
    ratios = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1])
    advantages = torch.tensor([2.0, -2.0, 2.0, -2.0, 2.0])
    expected = torch.tensor([-2.4, 3.0, -1.0, 1.6, -2.2])
    for policy_loss in (gspo, grpo):
        losses, coefficients, clipped = policy_loss(ratios.log()[:, None], torch.zeros(5, 1), advantages, (0.2, 0.2))
        torch.testing.assert_close(losses.flatten(), expected)
        torch.testing.assert_close(coefficients.flatten() * 5, torch.tensor([0.0, -3.0, 1.0, 0.0, 2.2]))
        assert clipped == 0.4


def report(*variants: str, **asked: Any) -> PrecisionReport:
    request = PrecisionRequest(model=MODEL, variants=variants, sequence_length=48, **asked)
    *_, last = analyze(request, Access())
    assert isinstance(last, PrecisionReport)
    return last


def test_what_clipping_removes_is_reported() -> None:
    """bf16 moves GSPO's ratios out of its narrow published range: the gradient of a clipped sequence is 0, an error of 100%."""
    clipped = report("bf16", loss="gspo", advantages=(1.0, -1.0), data="random").variants["bf16"]
    logprobs = clipped.logprobs
    assert clipped.clipped is not None and logprobs.outside_clip is not None and 0 <= clipped.clipped <= logprobs.outside_clip
    found = report("bf16", loss="gspo", advantages=(1.0, -1.0), clip_low=0, clip_high=0)
    share = found.variants["bf16"].clipped
    assert share is not None and found.reference.clipped == 0
    rows = [row for row in found.variants["bf16"].tensors if row.kind == "logits_grad"]
    assert rows[0].rms_rel is not None and (rows[0].rms_rel > 0.3) == (share > 0)


@pytest.mark.parametrize("loss", ["gspo", "grpo"])
def test_given_old_log_probabilities(loss: str) -> None:
    """The reference's own, as they would be sampled, give ratios of 1; others move them."""
    first = report("same: dtype=fp32", loss=loss, advantages=(1.0, -0.5))
    generator = torch.Generator().manual_seed(2)
    old = tuple(tuple(row) for row in (-3 * torch.rand(2, 47, generator=generator)).tolist())
    moved = report("same: dtype=fp32", "bf16", loss=loss, advantages=(1.0, -0.5), old_logprobs=old, clip_low=1, clip_high=1e6)
    assert first.reference.loss == pytest.approx(-0.25) and first.reference.loss != pytest.approx(moved.reference.loss)
    assert moved.variants["same"].summary.parameters_bw == 0 and moved.id != first.id
    assert moved.request.old_logprobs == old


@pytest.mark.parametrize("asked", [
    {"old_logprobs": ((-1.0,) * 46,) * 2},
    {"old_logprobs": ((-1.0,) * 47, (-1.0,) * 40)},
    {"old_logprobs": ((-9_000.0,) * 47,) * 2},
    {"old_logprobs": ((0.0,) * 47,) * 2, "advantages": (-1.0, -1.0), "clip_low": 0},
])  # fmt: skip
def test_old_log_probabilities_that_do_not_fit_are_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidData):
        report("bf16", **{"loss": "gspo", "advantages": (1.0, -1.0), **asked})


@pytest.mark.parametrize("line", ["-1, -2", "{}", "[]", "[true]", "[" * 100_000, f"[{'9' * 400}]"])
def test_what_is_no_list_of_numbers_is_refused(line: str) -> None:
    with pytest.raises(MantissaError):
        parse_old_logprobs(f"[-1]\n{line}")
