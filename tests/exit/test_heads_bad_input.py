"""Settings that do not fit a head are refused, and values that are not finite break nothing."""

import pytest
import torch

from analyzers.core.errors import InvalidRequest
from analyzers.exit.heads import HEADS, HeadSettings
from tests.exit.plain_head import CASES, D, N, V

WEIGHT = torch.zeros(V, D)


@pytest.mark.parametrize("settings", [HeadSettings(rank=4, rank_exact=4), HeadSettings(rank_exact=8, rank_tail=5), HeadSettings(k=102)])
def test_ranks_that_do_not_fit_together(settings: HeadSettings) -> None:
    with pytest.raises(InvalidRequest):
        HEADS["hybrid"](WEIGHT, None, settings)


def test_the_largest_settings_that_fit() -> None:
    for method in HEADS:
        HEADS[method](WEIGHT, None, HeadSettings(rank=D, k=V, anchors=10**9, residual=0, mass_threshold=1))
    HEADS["hybrid"](WEIGHT, None, HeadSettings(rank_exact=D - 1, rank_tail=1))


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
    g = torch.full((N, V), torch.nan)
    assert not head.signal(case.h, g, case.targets.clamp(min=0)).isfinite().any()
    head.zero_grad()
    torch.autograd.backward(head.loss(case.h, case.targets))
    assert head.weight.grad is not None and head.weight.grad.isfinite().all()
