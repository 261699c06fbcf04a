"""What each method gives h, against its definition written out in float64."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy, linear

from analyzers.exit.heads import FeedbackHead, HeadSettings, SpanHead, SvdHead
from analyzers.exit.heads.random_codes import expander, hashes, normal_codes, stream, unit_codes
from analyzers.exit.signals import RANDOM, TopkBy
from tests.exit import published
from tests.exit.plain_head import CASES, IGNORED, LOSSES, SETTINGS, Case, D, N, V, along, distance, through


def at_linear(case: Case, loss: str) -> tuple[Tensor, Tensor]:
    """Gradients (N, V) in float64 with respect to the logits, and to h W^T + b, by autograd."""
    wide = case.to(torch.float64)
    y = linear(wide.h, wide.weight, wide.bias).requires_grad_()
    scaled = y * case.scale
    logits = scaled if case.cap is None else case.cap * torch.tanh(scaled / case.cap)
    return torch.autograd.grad(LOSSES[loss](logits, case.targets), (logits, y))  # type: ignore[return-value]


def chosen(case: Case, g: Tensor, k: int) -> list[list[int]]:
    """Per token the gold one and the others with the largest |g|, k in all; none where the token is ignored."""
    found = []
    for row, gold in zip(g.abs().tolist(), case.targets.tolist(), strict=True):
        others = sorted((v for v in range(V) if v != gold), key=lambda v: -row[v])
        found.append([gold, *others[: k - 1]] if gold != IGNORED else [])
    return found


def signal_of(head: FeedbackHead, case: Case, loss: str = "mean") -> Tensor:
    return through(head, case.h, lambda logits: LOSSES[loss](logits, case.targets))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("loss", LOSSES)
def test_parallel_is_the_projection_of_the_gradient_on_h(name: str, loss: str) -> None:
    case = CASES[name]
    exact, _, _ = case.exact(LOSSES[loss])
    found = signal_of(case.head("parallel"), case, loss)
    expected = along(exact, case.h.double())
    assert distance(found, expected) < 1e-6
    assert float((found - expected).abs().max()) < 1e-6 * float(exact.norm(dim=-1).max())


@pytest.mark.parametrize("method", ["exact", "span", "svd", "true_rows"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("loss", LOSSES)
def test_at_full_size_the_ceilings_are_the_gradient(method: str, name: str, loss: str) -> None:
    case = CASES[name]
    head = case.head(method, HeadSettings(rank=D, k=V, anchors=D + 3))
    exact, _, _ = case.exact(LOSSES[loss])
    assert distance(signal_of(head, case, loss), exact) < (1e-3 if method == "span" else 1e-5)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("loss", ["mean", "sum", "weighted"])
@pytest.mark.parametrize("k", [1, 4, V])
def test_true_rows_are_those_of_the_gold_token_and_of_the_largest_gradients(name: str, loss: str, k: int) -> None:
    case = CASES[name]
    logits, y = at_linear(case, loss)
    expected = torch.zeros(N, D, dtype=torch.float64)
    for i, tokens in enumerate(chosen(case, logits, k)):
        for v in tokens:
            expected[i] += y[i, v] * case.weight[v].double()
    assert distance(signal_of(case.head("true_rows", replace(SETTINGS, k=k)), case, loss), expected) < 2e-6


@pytest.mark.parametrize("name", CASES)
def test_dense_is_the_codes_of_all_tokens(name: str) -> None:
    case = CASES[name]
    head: Any = case.head("dense")
    _, y = at_linear(case, "mean")
    expected = (y @ head.codes.double()) @ head.expander.double().T
    assert distance(signal_of(head, case), expected) < 1e-5
    assert distance(signal_of(case.head("dense", replace(SETTINGS, alpha=2.0)), case), 2 * expected) < 1e-5


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("rank_exact", "buckets"), [(2, 1), (1, 3)])
@pytest.mark.parametrize("k", [1, 4, V])
@pytest.mark.parametrize("topk_by", ["value", "magnitude"])
def test_hybrid_is_the_published_construction(name: str, rank_exact: int, buckets: int, k: int, topk_by: TopkBy) -> None:
    """One bucket holds every token of the tail; three have duplicates in every row; with k = V there is no tail."""
    case = CASES[name]
    head: Any = case.head("hybrid", HeadSettings(rank=rank_exact + buckets, rank_exact=rank_exact, k=k, topk_by=topk_by, alpha=1.5, seed=3))
    assert head.codes.shape == (V, rank_exact) and head.expander.shape == (D, rank_exact + buckets)
    assert {*head.bucket.tolist()} == {*range(buckets)} and {*head.sign.tolist()} == {-1.0, 1.0}
    rows = [published.hybrid(case, token, head, k, 1.5, topk_by == "magnitude") for token in range(N)]
    expected = torch.from_numpy(np.stack(rows))
    assert distance(signal_of(head, case), expected) < 1e-5
    assert distance(fused_signal(head, case), expected) < 1e-5


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("method", ["parallel_gold", "parallel_topmass"])
@pytest.mark.parametrize(("residual", "mass_threshold"), [(0.0, 0.95), (1.0, 0.3), (0.4, 0.0), (0.1, 1.0)])
def test_parallel_codes_are_the_published_construction(name: str, method: str, residual: float, mass_threshold: float) -> None:
    case = CASES[name]
    head: Any = case.head(method, replace(SETTINGS, residual=residual, mass_threshold=mass_threshold))
    threshold = mass_threshold if method == "parallel_topmass" else None
    rows = [published.parallel(case, token, head, residual, threshold) for token in range(N)]
    expected = torch.from_numpy(np.stack(rows))
    assert distance(signal_of(head, case), expected) < 1e-5
    assert distance(fused_signal(head, case), expected) < 1e-5
    exact, _, _ = case.exact(LOSSES["mean"])
    assert distance(along(signal_of(head, case).double(), case.h.double()), along(exact, case.h.double())) < 1e-5


def fused_signal(head: FeedbackHead, case: Case) -> Tensor:
    """What `head.loss` gives h."""
    h = case.h.clone().requires_grad_()
    torch.autograd.backward(head.loss(h, case.targets, chunk=7))
    assert h.grad is not None
    return h.grad


def test_topmass_codes_tokens_by_probability_and_at_most_200() -> None:
    """Of 600 nearly equally probable tokens 200 are coded, not 570; of one that has all the mass, that one."""
    random = torch.Generator().manual_seed(2)
    weight, h = torch.randn(600, D, generator=random) / 100, torch.randn(4, D, generator=random)
    case = Case(h, weight, None, torch.tensor([5, 99, 7, 400]))
    assert [len(published.coded_tokens(case, token, 0.95)) in (200, 201) for token in range(4)] == [True] * 4
    sure = replace(case, weight=weight * 20_000)
    assert {len(published.coded_tokens(sure, token, 0.95)) for token in range(4)} <= {1, 2}
    for each in (case.to(torch.float64), sure.to(torch.float64)):
        head: Any = each.head("parallel_topmass", replace(SETTINGS, residual=1.0))
        expected = np.stack([published.parallel(each, token, head, 1.0, 0.95) for token in range(4)])
        assert distance(signal_of(head, each), torch.from_numpy(expected)) < 1e-9


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("loss", ["mean", "z-loss"])
def test_span_is_the_projection_on_the_anchors(name: str, loss: str) -> None:
    case = CASES[name]
    exact, _, _ = case.exact(LOSSES[loss])
    head = case.head("span")
    assert isinstance(head, SpanHead)
    twice = torch.cat([case.h[:5], case.h[:5], 3 * case.h[:2], torch.zeros(2, D)])  # dependent, and zero ones
    for anchors in (case.h[:1], case.h[:5], twice, torch.zeros(3, D), case.h):
        head.anchor_states = anchors
        solution = torch.linalg.pinv(anchors.double(), rtol=1e-6)
        expected = exact @ (solution @ anchors.double()).T
        found = signal_of(head, case, loss)
        assert float((found - expected).norm()) < 1e-5 * float(exact.norm())
    head.anchor_states = None
    found, kept = signal_of(head, case, loss), case.targets != IGNORED
    rank = int(torch.linalg.matrix_rank(found.double(), rtol=1e-4))
    assert rank == SETTINGS.anchors
    # the anchors are among the kept tokens, drawn by the seed
    among = [i for i in range(N) if kept[i] and distance(found[i], exact[i]) < 2]
    assert len(among) >= SETTINGS.anchors
    other = signal_of(case.head("span", replace(SETTINGS, seed=SETTINGS.seed + 1)), case, loss)
    assert distance(other, found) > 0.1


def test_svd_is_the_truncation_of_the_weights() -> None:
    case = CASES["all"]
    _, y = at_linear(case, "mean")
    left, values, right = torch.linalg.svd(case.weight.double(), full_matrices=False)
    other = case.head("svd", HeadSettings(rank=2))
    assert isinstance(other, SvdHead)
    for rank in (1, 5, D):
        expected = y @ (left[:, :rank] * values[:rank]) @ right[:rank]
        for head in (case.head("svd", HeadSettings(rank=rank)), other.at_rank(rank)):
            assert distance(signal_of(head, case), expected) < 1e-5


def test_codes_and_expander_come_from_streams_of_their_own() -> None:
    seen = []
    for seed in (0, 1, 2**40, -5):
        for name in ("codes", "expander", "buckets", "signs", "anchors"):
            seen += [tuple(torch.randn(4, generator=stream(seed, name, draw)).tolist()) for draw in (0, 1)]
    assert len(set(seen)) == len(seen)
    columns = expander(40, 7, stream(0, "expander"))
    torch.testing.assert_close(columns.T @ columns, torch.eye(7, dtype=torch.float64), rtol=0, atol=1e-14)
    codes = normal_codes(4000, 64, stream(0, "codes"))
    squared = codes.square().sum(-1)
    assert abs(float(squared.mean()) - 1) < 0.02
    units = unit_codes(4000, 64, stream(0, "codes"))
    torch.testing.assert_close(units.norm(dim=1), torch.ones(4000))
    assert float(units.mean(0).norm()) < 3 / 4000**0.5  # spread over the sphere: the mean of n of them is about 1 / sqrt(n) long
    bucket, sign = hashes(40_000, 8, stream(0, "buckets"), stream(0, "signs"))
    # Eight buckets of 5,000 expected, signs of mean 0, and no relation between the two: each within five standard deviations.
    assert (bucket.bincount(minlength=8) - 5_000).abs().max() < 5 * 5_000**0.5 and abs(float(sign.sum())) < 5 * 40_000**0.5
    assert max(abs(float(sign[bucket == each].sum())) for each in range(8)) < 5 * 5_200**0.5
    # rows of U and codes of the first tokens have nothing in common
    wide = expander(4000, 64, stream(0, "expander"))
    assert abs(float(cosine_similarity(codes.double().flatten(), wide.flatten(), dim=0))) < 4.5 / codes.numel() ** 0.5


@pytest.mark.parametrize("method", [*RANDOM, "span"])
def test_seeds_and_the_global_generator(method: str) -> None:
    case = CASES["all"]
    state = torch.get_rng_state()
    found = signal_of(case.head(method), case)
    assert torch.equal(torch.get_rng_state(), state), "it was moved on"
    torch.manual_seed(5)
    assert torch.equal(signal_of(case.head(method), case), found), "it was read"
    torch.set_rng_state(state)
    assert distance(signal_of(case.head(method, replace(SETTINGS, seed=4)), case), found) > 0.1
    lower = case.to(torch.bfloat16)
    in_bf16 = through(lower.head(method), lower.h, lambda logits: cross_entropy(logits.float(), case.targets))
    assert float(cosine_similarity(in_bf16.double().flatten(), found.double().flatten(), dim=0)) > 0.97, "the same codes in another type"
