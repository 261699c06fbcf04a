"""Settings that do not fit a head are refused in one line, and values that are not finite break nothing."""

import re

import pytest
import torch

from analyzers.core.errors import InvalidRequest
from analyzers.exit_feedback.heads import HEADS, HeadSettings
from tests.exit_feedback.plain_head import CASES, D, N, V

WEIGHT = torch.zeros(V, D)
LONG = torch.zeros(N, dtype=torch.long)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (HeadSettings(rank=4, rank_exact=4), "Hybrid's rank_exact must be less than its rank, 4, not 4: the tail needs a column."),
        (HeadSettings(rank_exact=6), "Hybrid's rank_exact must be less than its rank, 6, not 6: the tail needs a column."),
        (HeadSettings(rank=1), "Hybrid needs a rank of at least 2: a column for the codes and one for the tail."),
        (HeadSettings(rank_exact=8, rank_tail=5), "rank may be at most 12, the model's width, not 13."),
        (HeadSettings(k=102), "k may be at most 101, the model's vocabulary, not 102."),
    ],
)
def test_ranks_that_do_not_fit_together(settings: HeadSettings, said: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{re.escape(said)}$"):
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
