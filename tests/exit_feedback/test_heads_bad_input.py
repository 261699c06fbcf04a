"""What a head cannot be, or be given, is said in one line."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from analyzers.errors import InvalidRequest
from analyzers.exit_feedback.heads import HEADS, HeadSettings, build_head
from analyzers.exit_feedback.signals import METHODS, SIGNALS, MethodName, SettingName
from tests.exit_feedback.plain_head import CASES, SETTINGS, D, N, V

WEIGHT = torch.zeros(V, D)
LONG = torch.zeros(N, dtype=torch.long)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("rank", (0, -1, D + 1, 2.0, True, "5", 10**5000), "rank "),
        ("rank_exact", (0, -1, 5, D, 2.0, True, "2", 10**5000), ".*rank_exact must"),
        ("rank_tail", (0, -2, 4, 2.0, True, "3", 10**5000), ".*rank_tail"),
        ("k", (0, -3, V + 1, 1.5, True, float("nan"), 10**5000), "k "),
        ("topk_by", ("size", None, 1, True), "topk_by must be value or magnitude"),
        ("anchors", (0, -1, 1.5, True, "6", -(10**5000)), "anchors must"),
        ("residual", (-1, float("nan"), float("inf"), None, True, "1", 10**400), "residual must"),
        ("mass_threshold", (-0.1, 1.1, float("nan"), None, True, "1", 10**400), "mass_threshold must"),
        ("alpha", (-1, 0, float("nan"), -float("inf"), None, "1", True, 10**400), "alpha must"),
        ("seed", (-1, 0.5, None, True, "0", 1 << 63, 10**5000), "seed must"),
        ("fresh", (1, None, "yes"), "fresh must"),
    ],
)
def test_settings(method: MethodName, name: SettingName, values: tuple[Any, ...], message: str) -> None:
    for value in values:
        settings = replace(SETTINGS, **{name: value})
        if name not in SIGNALS[method].uses:
            build_head(method, WEIGHT, None, settings)  # what is not read is not judged
            continue
        with pytest.raises(InvalidRequest, match=f"^{message}") as caught:
            build_head(method, WEIGHT, None, settings)
        assert len(str(caught.value)) < 160


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (HeadSettings(rank_tail=4), "Hybrid needs rank_exact with rank_tail: its rank is their sum."),
        (HeadSettings(rank=7, rank_exact=3, rank_tail=5), "Hybrid's rank is rank_exact + rank_tail, 8, not 7: leave one of them out."),
        (HeadSettings(rank=4, rank_exact=4), "Hybrid's rank_exact must be less than its rank, 4, not 4: the tail needs a column."),
        (HeadSettings(rank_exact=6), "Hybrid's rank_exact must be less than its rank, 6, not 6: the tail needs a column."),
        (HeadSettings(rank=1), "Hybrid needs a rank of at least 2: a column for the codes and one for the tail."),
        (HeadSettings(rank_exact=8, rank_tail=5), "rank may be at most 12, the model's width, not 13."),
        (HeadSettings(k=102), "k may be at most 101, the model's vocabulary, not 102."),
    ],
)
def test_ranks_that_do_not_fit_together(settings: HeadSettings, said: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{re.escape(said)}$"):
        build_head("hybrid", WEIGHT, None, settings)


def test_the_largest_settings_that_fit() -> None:
    for method in HEADS:
        build_head(method, WEIGHT, None, HeadSettings(rank=D, k=V, anchors=10**9, residual=0, mass_threshold=1))
    build_head("hybrid", WEIGHT, None, HeadSettings(rank_exact=D - 1, rank_tail=1))


@pytest.mark.parametrize(
    ("weight", "bias", "message"),
    [
        (torch.zeros(V), None, "must be a matrix"),
        (torch.zeros(0, D), None, "must be a matrix"),
        (torch.zeros(V, 0), None, "must be a matrix"),
        (torch.zeros(V, D, dtype=torch.long), None, "must be a matrix"),
        (torch.zeros(V, D).to(torch.float8_e4m3fn), None, "must be a matrix"),
        (torch.zeros(V, D, dtype=torch.complex64), None, "must be a matrix"),
        (WEIGHT, torch.zeros(V + 1), "bias must be"),
        (WEIGHT, torch.zeros(V, dtype=torch.float64), "bias must be"),
    ],
)
def test_weights(weight: torch.Tensor, bias: torch.Tensor | None, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        build_head("exact", weight, bias)


def test_other_methods_scales_and_caps() -> None:
    with pytest.raises(InvalidRequest, match="no method 'exakt': choose from exact, dense"):
        build_head("exakt", WEIGHT)
    scale: Any
    cap: Any
    for scale in (0.0, float("nan"), float("inf"), "2", True, None, 10**400):
        with pytest.raises(InvalidRequest, match="scale of the logits"):
            build_head("exact", WEIGHT, logit_scale=scale)
    for cap in (0.0, -1.0, float("nan"), float("inf"), "2", True, 10**400):
        with pytest.raises(InvalidRequest, match="softcap"):
            build_head("exact", WEIGHT, softcap=cap)


@pytest.mark.parametrize(
    ("h", "targets", "options", "message"),
    [
        (torch.zeros(N, D + 1), LONG, {}, "12 wide"),
        (torch.zeros(N, D, dtype=torch.long), LONG, {}, "must be floating"),
        (torch.tensor(1.0), LONG, {}, "12 wide"),
        (torch.zeros(N, D, dtype=torch.bfloat16), LONG, {}, "bfloat16 and the head torch.float32"),
        (torch.zeros(N, D), LONG[:-1], {}, "Targets must be whole numbers of shape (33,)"),
        (torch.zeros(N, D), LONG.float(), {}, "Targets must be whole numbers"),
        (torch.zeros(N, D), LONG.bool(), {}, "Targets must be whole numbers"),
        (torch.zeros(N, D), LONG + V, {}, "Target 101 is outside the vocabulary of 101"),
        (torch.zeros(N, D), LONG - 1, {}, "Target -1 is outside"),
        (torch.zeros(N, D), LONG - 100, {"ignore_index": -1}, "Target -100 is outside"),
        (torch.zeros(N, D), LONG, {"chunk": 0}, "chunk must be"),
        (torch.zeros(N, D), LONG, {"chunk": 2.5}, "chunk must be"),
        (torch.zeros(N, D), LONG, {"reduction": "median"}, "reduction must be"),
    ],
)
def test_losses(h: torch.Tensor, targets: torch.Tensor, options: dict[str, Any], message: str) -> None:
    for method in HEADS:
        head = CASES["bias"].head(method)
        with pytest.raises(InvalidRequest, match=re.escape(message)):
            head.loss(h, targets, **options)


def test_signals() -> None:
    head = CASES["bias"].head("parallel")
    h = torch.zeros(N, D)
    for g, targets, message in (
        (torch.zeros(N, V - 1), None, "must end in 101"),
        (torch.zeros(V), None, "must end in 101"),
        (torch.zeros(N, V, dtype=torch.long), None, "gradient of the logits"),
        (torch.zeros(N, V), LONG[1:], "Targets must have shape"),
        (torch.zeros(N, V), LONG + V, "outside the vocabulary"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            head.signal(h, g, targets)
    with pytest.raises(InvalidRequest, match="12 wide"):
        head(torch.zeros(N, D + 1))


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
    assert not head.signal(case.h, g, case.targets).isfinite().any()
    head.zero_grad()
    torch.autograd.backward(head.loss(case.h, case.targets))
    assert head.weight.grad is not None and head.weight.grad.isfinite().all()
