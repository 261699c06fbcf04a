"""``head(h)``: the logits of the plain head, exact gradients for its parameters, and a backward pass for any loss."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from analyzers.core.errors import InvalidRequest
from analyzers.exit.heads import HEADS, HeadSettings
from analyzers.exit.signals import RANDOM
from tests.exit.plain_head import CASES, IGNORED, LOSSES, SETTINGS, D, V, distance, gradients, through


@pytest.mark.parametrize("method", HEADS)
@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_plain_head_bit_for_bit(method: str, name: str) -> None:
    case = CASES[name]
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        typed = case.to(dtype)
        head = typed.head(method)
        for h in (typed.h, typed.h.view(3, 11, D), typed.h[0], typed.h.mT.contiguous().mT):
            assert torch.equal(head(h), case.logits(h, typed.weight, typed.bias))


@pytest.mark.parametrize("method", HEADS)
@pytest.mark.parametrize("name", ["bias", "all"])
@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_of_weights_and_bias_are_exact(method: str, name: str, loss: str) -> None:
    case = CASES[name]
    _, weight, bias = case.exact(LOSSES[loss])
    head = case.head(method)
    through(head, case.h, lambda logits: LOSSES[loss](logits, case.targets))
    found = dict(gradients(head))
    assert distance(found["weight"], weight) < 1e-6
    assert bias is None or distance(found["bias"], bias) < 1e-6


@pytest.mark.parametrize("method", HEADS)
@pytest.mark.parametrize("name", ["plain", "all"])
def test_the_signal_alone_is_what_the_way_back_gives(method: str, name: str) -> None:
    case = CASES[name]
    head = case.head(method)
    expected = through(head, case.h, lambda logits: cross_entropy(logits, case.targets))
    logits = head(case.h).detach().requires_grad_()
    (g,) = torch.autograd.grad(cross_entropy(logits, case.targets), logits)
    assert torch.equal(head.signal(case.h, g), expected)
    # a cross-entropy's gold token is where its gradient is largest, so that to be told changes nothing
    assert torch.equal(head.signal(case.h, g, case.targets.clamp(min=0)), expected)
    for name_, parameter in head.named_parameters():
        assert parameter.grad is not None, name_  # of the way back above; signal adds none
    if method in RANDOM and method != "hybrid":  # whose tokens are the largest by value
        assert torch.equal(head.signal(case.h, -g), -expected), "a loss that is maximised: the gold token stays the same"


@pytest.mark.parametrize("method", HEADS)
def test_ignored_tokens_get_exactly_zero_whatever_stands_in_them(method: str) -> None:
    case = CASES["all"]
    kept = case.targets != IGNORED
    h = case.h.clone()
    h[~kept] = torch.tensor([torch.nan, torch.inf, -torch.inf]).repeat(D // 3)
    expected = case.head(method)
    if method == "span":  # the anchors are drawn from the tokens that have a gradient: the same, among others
        signal = through(expected, case.h, lambda logits: cross_entropy(logits, case.targets))[kept]
    else:
        signal = through(expected, case.h[kept], lambda logits: cross_entropy(logits, case.targets[kept]))
    head = case.head(method)
    found = through(head, h, lambda logits: cross_entropy(logits[kept], case.targets[kept]))
    assert torch.equal(found[~kept], torch.zeros_like(found[~kept]))
    torch.testing.assert_close(found[kept], signal, rtol=1e-5, atol=1e-6)
    by_name = dict(gradients(expected))
    for name, gradient in gradients(head):
        torch.testing.assert_close(gradient, by_name[name], rtol=1e-5, atol=1e-7)
    leaf = h.clone().requires_grad_()
    head.loss(leaf, case.targets, chunk=7).backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None and torch.equal(leaf.grad[~kept], torch.zeros_like(found[~kept]))
    for name, gradient in gradients(head):
        torch.testing.assert_close(gradient, by_name[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", HEADS)
def test_checkpointing_changes_nothing(method: str) -> None:
    case = CASES["all"]
    head = case.anchored_head(method)
    expected = through(head, case.h, lambda logits: cross_entropy(logits, case.targets))
    by_name = dict(gradients(head))
    for way in (
        lambda h: cross_entropy(head(h), case.targets),
        lambda h: head.loss(h, case.targets, chunk=9),
    ):
        leaf = case.h.clone().requires_grad_()
        checkpoint(way, leaf, use_reentrant=False).backward()
        assert distance(leaf.grad, expected) < 1e-5
        for name, gradient in gradients(head):
            assert distance(gradient, by_name[name]) < 1e-5


@pytest.mark.parametrize("method", HEADS)
def test_a_head_takes_the_place_of_a_linear_layer(method: str) -> None:
    embedding = nn.Embedding(V, D)
    head = HEADS[method](embedding.weight, None, SETTINGS)
    assert head.weight is embedding.weight
    assert set(head.state_dict()) == {"weight"}
    head.load_state_dict(nn.Linear(D, V, bias=False).state_dict())
    case = CASES["plain"]
    found = [through(each, case.h, lambda logits: cross_entropy(logits, case.targets)) for each in (head, copy.deepcopy(head))]
    assert torch.equal(*found)


def test_settings_that_fit_and_that_do_not() -> None:
    for method in HEADS:
        HEADS[method](torch.zeros(V, D), None, HeadSettings(rank=D, k=V, anchors=10**9, residual=0, mass_threshold=1))
    for settings in (HeadSettings(rank=4, rank_exact=4), HeadSettings(rank=D + 1), HeadSettings(k=V + 1)):
        with pytest.raises(InvalidRequest):
            HEADS["hybrid"](torch.zeros(V, D), None, settings)


@pytest.mark.parametrize("method", HEADS)
def test_what_is_no_number_stays_none_and_breaks_nothing(method: str) -> None:
    """An overflow under loss scaling: the step is left out, and the next one works."""
    case = CASES["all"]
    head = case.head(method)
    for bad in (torch.nan, torch.inf):
        h = case.h.clone()
        h[1] = bad
        h.requires_grad_()
        torch.autograd.backward(head.loss(h, case.targets, chunk=8))
        assert h.grad is not None and not h.grad[1].isfinite().all()
    head.zero_grad()
    torch.autograd.backward(head.loss(case.h, case.targets))
    assert head.weight.grad is not None and head.weight.grad.isfinite().all()
