"""``head.loss``: torch's cross-entropy, without its logits."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from analyzers.exit.cost import metered
from analyzers.exit.heads import HEADS, HeadSettings
from tests.exit.plain_head import CASES, Case, N, distance, gradients


def both(method: str, case: Case, chunk: int, upstream: Tensor | None = None) -> list[list[Tensor]]:
    """Loss and gradients of h and the parameters, of head.loss and of cross_entropy(head(h)); upstream: of the loss."""
    found = []
    for fused in (True, False):
        head = case.anchored_head(method)
        h = case.h.clone().requires_grad_()
        loss = head.loss(h, case.targets, chunk=chunk) if fused else cross_entropy(head(h), case.targets)
        loss.backward(upstream)  # type: ignore[no-untyped-call]
        assert h.grad is not None
        found.append([loss.detach(), h.grad, *(each for _, each in gradients(head))])
    return found


@pytest.mark.parametrize("method", HEADS)
@pytest.mark.parametrize("name", ["plain", "all"])
def test_loss_and_gradients_are_those_of_the_logits(method: str, name: str) -> None:
    case = CASES[name]
    random = torch.Generator().manual_seed(1)
    upstream = torch.randn((), generator=random) * 1024
    for chunk in (1, 7, 1000):
        for fused, plain in zip(*both(method, case, chunk, upstream), strict=True):
            torch.testing.assert_close(fused, plain, rtol=2e-5, atol=2e-6 * float(plain.abs().max()))


@pytest.mark.parametrize("method", HEADS)
def test_bfloat16_sums_over_chunks_in_float32(method: str) -> None:
    """One hundred parts of a sum in bfloat16 would each lose up to half of the last of its 8 bits."""
    case = CASES["bias"]
    many = Case(case.h.repeat(20, 1), case.weight, case.bias, case.targets.repeat(20))
    head, h = many.to(torch.bfloat16).head(method), many.h.bfloat16().requires_grad_()
    loss = head.loss(h, many.targets, chunk=6)
    assert loss.dtype == torch.float32
    torch.autograd.backward(loss)
    exact = many.to(torch.bfloat16).to(torch.float64).exact(cross_entropy)
    by_name = dict(gradients(head))
    assert distance(by_name["weight"], exact[1]) < 4e-3 and by_name["weight"].dtype == torch.bfloat16
    assert distance(by_name["bias"], exact[2]) < 4e-3


@pytest.mark.parametrize("method", HEADS)
def test_hidden_states_of_a_narrower_dtype_under_autocast(method: str) -> None:
    """A training loop in mixed precision gives bfloat16 states to a head with float32 weights."""
    case = CASES["bias"]
    found = []
    for fused in (True, False):
        head, h = case.anchored_head(method), case.h.bfloat16().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            loss = head.loss(h, case.targets, chunk=6) if fused else cross_entropy(head(h), case.targets)
        torch.autograd.backward(loss)
        assert h.grad is not None and h.grad.dtype == torch.bfloat16
        found.append([loss.detach(), *(each for _, each in gradients(head))])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-6)


def test_the_loss_knows_nothing_of_targets_that_are_not_there() -> None:
    """Logits that a bias rules out, and a target among them."""
    case = CASES["bias"]
    assert case.bias is not None
    bias = case.bias.clone()
    bias[50:] = -torch.inf
    targets = case.targets.clamp(max=49)
    for method in HEADS:
        head = HEADS[method](case.weight.clone(), bias, HeadSettings(rank=3, k=5))
        h = case.h.clone().requires_grad_()
        loss = head.loss(h, targets)
        torch.autograd.backward(loss)
        assert h.grad is not None and bool(h.grad.isfinite().all()) and bool(loss.isfinite()), method
    assert head.loss(case.h, torch.full((N,), 60)) == torch.inf


@pytest.mark.parametrize("method", HEADS)
def test_never_the_logits_of_all_tokens(method: str) -> None:
    """Peak memory, without h, W and codes: a few times the logits of a chunk, and the gradients."""
    tokens, width, vocabulary, chunk = 640, 32, 20_000, 32
    random = torch.Generator().manual_seed(0)
    h = torch.randn(tokens, width, generator=random).requires_grad_()
    settings = HeadSettings(rank=16, anchors=100, k=16)
    head = HEADS[method](torch.randn(vocabulary, width, generator=random), None, settings)
    targets = torch.randint(vocabulary, (tokens,), generator=random)
    with metered(h.device) as peak:
        torch.autograd.backward(head.loss(h, targets, chunk=chunk))
        most = peak()
    logits, inputs, for_weight = 4 * chunk * vocabulary, 4 * tokens * width, 4 * vocabulary * width
    assert logits < most < 7 * logits + 3 * inputs + 2 * for_weight
