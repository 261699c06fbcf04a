"""What each method gives h, against its definition written out in float64."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy, linear

from analyzers.exit_feedback.heads import (
    HEADS,
    CountSketch,
    DenseHead,
    FeedbackHead,
    HeadSettings,
    HybridHead,
    ParallelGoldHead,
    ParallelTopmassHead,
    SpanHead,
    SvdHead,
)
from analyzers.exit_feedback.heads.codes import expander, random_codes, stream
from analyzers.exit_feedback.heads.rows import largest
from tests.exit_feedback.plain_head import CASES, IGNORED, LOSSES, SETTINGS, Case, D, N, V, along, distance, through

RANDOM = [method for method, head in HEADS.items() if head.random]


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


def test_cross_entropy_minus_entropy_is_what_parallel_knows() -> None:
    case = CASES["plain"].to(torch.float64)
    logits = linear(case.h, case.weight)
    p = logits.softmax(-1)
    kept = case.targets != IGNORED
    h = case.h.clone().requires_grad_()
    case.head("parallel").loss(h, case.targets, chunk=5, reduction="sum").backward()  # type: ignore[no-untyped-call]
    assert h.grad is not None
    found = (case.h * h.grad).sum(-1)[kept]  # h . (p - y) W = (p - y) . z
    entropy = -(p * p.log()).sum(-1)[kept]
    assert float((found - (cross_entropy(logits, case.targets, reduction="none")[kept] - entropy)).abs().max()) < 1e-12


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
    head = case.head("dense")
    assert isinstance(head, DenseHead)
    _, y = at_linear(case, "mean")
    expected = float(case.weight.double().norm()) / V**0.5 * (y @ head.codes.double()) @ head.expander.double().T
    assert distance(signal_of(head, case), expected) < 1e-5
    assert distance(signal_of(case.head("dense", replace(SETTINGS, alpha=2.0)), case), 2 / head.alpha * expected) < 1e-5


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("buckets", [1, 3, 200])
@pytest.mark.parametrize("k", [1, 4, V])
def test_hybrid_counts_each_token_once_and_lets_buckets_add_up(name: str, buckets: int, k: int) -> None:
    """One bucket takes every token of the tail; three have duplicates in each row."""
    case = CASES[name]
    head = case.head("hybrid", replace(SETTINGS, buckets=buckets, k=k))
    assert isinstance(head, HybridHead)
    codes, bucket, sign = head.codes.double(), head.sketch.bucket.tolist(), head.sketch.sign.double()
    assert max(bucket) < buckets and set(sign.tolist()) == {-1.0, 1.0}
    of_bucket = torch.zeros(buckets, SETTINGS.rank, dtype=torch.float64)
    for v in range(V):
        of_bucket[bucket[v]] += sign[v] * codes[v]
    logits, y = at_linear(case, "mean")
    code = torch.zeros(N, SETTINGS.rank, dtype=torch.float64)
    for i, tokens in enumerate(chosen(case, logits, k)):
        for v in range(V):
            code[i] += y[i, v] * (codes[v] if v in tokens else sign[v] * of_bucket[bucket[v]])
    assert distance(signal_of(head, case), head.alpha * code @ head.expander.double().T) < 1e-5


@pytest.mark.parametrize("buckets", [1, 8, 64])
def test_hybrid_is_dense_in_the_mean_over_hashes(buckets: int) -> None:
    case = CASES["all"]
    dense, head = case.head("dense"), case.head("hybrid", replace(SETTINGS, buckets=buckets))
    assert isinstance(head, HybridHead) and isinstance(dense, DenseHead)
    assert torch.equal(head.codes, dense.codes) and torch.equal(head.expander, dense.expander)
    logits = head(case.h).detach().requires_grad_()
    (g,) = torch.autograd.grad(LOSSES["sum"](logits, case.targets), logits)
    drawn = []
    for seed in range(200):
        head.hash_by(CountSketch.draw(V, buckets, stream(seed, "buckets"), stream(seed, "signs")))
        drawn.append(head.signal(case.h, g, case.targets))
    _assert_mean(torch.stack(drawn), dense.signal(case.h, g))


def test_inner_products_of_sketches_are_unbiased() -> None:
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 20, V, generator=random, dtype=torch.float64)
    found = []
    for seed in range(400):
        sketch = CountSketch.draw(V, 5, stream(seed, "buckets"), stream(seed, "signs"))
        found.append((sketch(x) * sketch(y)).sum(-1))
    _assert_mean(torch.stack(found), (x * y).sum(-1))


def _assert_mean(drawn: Tensor, expected: Tensor) -> None:
    """The mean over the first axis is the expected within its standard error, in every place and in their mean square."""
    drawn, expected = drawn.double(), expected.double()
    error = drawn.std(0) / len(drawn) ** 0.5
    some = error > 0
    deviation = ((drawn.mean(0) - expected) / error)[some]
    assert some.any() and torch.equal(drawn[0][~some], expected[~some])
    assert float(deviation.abs().max()) < 4.9
    assert float(deviation.square().mean()) < 2


@pytest.mark.parametrize("method", ["parallel_gold", "parallel_topmass"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("residual", [0.0, 1.0, 0.4])
def test_what_parallel_adds_is_orthogonal_to_h(method: str, name: str, residual: float) -> None:
    case = CASES[name]
    head = case.head(method, replace(SETTINGS, residual=residual))
    assert isinstance(head, ParallelGoldHead | ParallelTopmassHead)
    exact, _, _ = case.exact(LOSSES["mean"])
    h = case.h.double()
    logits, y = at_linear(case, "mean")
    code = torch.zeros(N, SETTINGS.rank, dtype=torch.float64)
    for i, tokens in enumerate(chosen(case, logits, 1 if method == "parallel_gold" else SETTINGS.k)):
        for v in tokens:
            code[i] += y[i, v] * head.codes[v].double()
    code = head.alpha * code @ head.expander.double().T
    found = signal_of(head, case)
    assert distance(found, along(exact, h) + residual * (code - along(code, h))) < 1e-5
    assert distance(along(found.double(), h), along(exact, h)) < 1e-5


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


@pytest.mark.parametrize("spread", [1e2, 1e4])
def test_span_of_anchors_that_hardly_differ(spread: float) -> None:
    """Hidden states of a trained model lie near few directions: lengths along others are small, but known."""
    random = torch.Generator().manual_seed(1)
    lengths = torch.logspace(0, -math.log10(spread), 48)
    turn = torch.linalg.qr(torch.randn(48, 48, generator=random))[0]
    h = torch.randn(96, 48, generator=random) * lengths @ turn
    case = Case(h, torch.randn(V, 48, generator=random) / 3, None, torch.randint(V, (96,), generator=random))
    exact, _, _ = case.exact(LOSSES["mean"])
    assert distance(signal_of(case.head("span", HeadSettings(anchors=96)), case), exact) < 1e-3


@pytest.mark.parametrize("rank", [1, 5, D])
def test_svd_is_the_truncation_of_the_weights(rank: int) -> None:
    case = CASES["all"]
    _, y = at_linear(case, "mean")
    left, values, right = torch.linalg.svd(case.weight.double(), full_matrices=False)
    expected = y @ (left[:, :rank] * values[:rank]) @ right[:rank]
    head = case.head("svd", HeadSettings(rank=rank))
    assert isinstance(head, SvdHead)
    assert distance(signal_of(head, case), expected) < 1e-5
    other = case.head("svd", HeadSettings(rank=2))
    assert isinstance(other, SvdHead)
    same = other.at_rank(rank)
    assert same.weight is other.weight and same.basis() is other.basis()
    assert torch.equal(signal_of(same, case), signal_of(head, case))


def test_svd_follows_the_weights() -> None:
    case = CASES["plain"]
    head = case.head("svd", HeadSettings(rank=3))
    signal_of(head, case)
    optimizer = torch.optim.SGD(head.parameters(), lr=20.0)
    optimizer.step()
    now = replace(case, weight=head.weight.detach().clone())
    assert distance(signal_of(head, case), signal_of(now.head("svd", HeadSettings(rank=3)), now)) < 1e-5
    assert distance(head.weight.detach(), case.weight) > 0.1


def test_codes_and_expander_come_from_streams_of_their_own() -> None:
    seen = []
    for seed in (0, 1, 2**40, -5):
        for name in ("codes", "expander", "buckets", "signs", "anchors"):
            seen += [tuple(torch.randn(4, generator=stream(seed, name, draw)).tolist()) for draw in (0, 1)]
    assert len(set(seen)) == len(seen)
    columns = expander(40, 7, stream(0, "expander"))
    torch.testing.assert_close(columns.T @ columns, torch.eye(7, dtype=torch.float64), rtol=0, atol=1e-14)
    codes = random_codes(4000, 64, stream(0, "codes"))
    squared = codes.square().sum(-1)
    assert abs(float(squared.mean()) - 1) < 0.02
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


@pytest.mark.parametrize("method", RANDOM)
def test_the_null_draws_for_every_call(method: str) -> None:
    case = CASES["plain"]
    fixed, null = case.head(method), case.head(method, replace(SETTINGS, fresh=True))
    for way in (
        lambda head: signal_of(head, case),
        lambda head: head.signal(case.h, torch.ones(N, V)),
    ):
        assert torch.equal(way(fixed), way(fixed))
        assert distance(way(null), way(null)) > 0.05
    again = case.head(method, replace(SETTINGS, fresh=True))
    fresh = case.head(method, replace(SETTINGS, fresh=True))
    for _ in range(3):
        assert torch.equal(signal_of(again, case), signal_of(fresh, case)), "by the seed all the same"


@pytest.mark.parametrize("method", ["dense", "hybrid"])
def test_random_codes_agree_with_nothing_on_a_frozen_model(method: str) -> None:
    case = Case.draw(seed=11)
    exact, _, _ = case.exact(LOSSES["mean"])
    kept = case.targets != IGNORED
    means = []
    for seed in range(120):
        found = signal_of(case.head(method, replace(SETTINGS, seed=seed)), case)
        means.append(float(cosine_similarity(found.double(), exact, dim=-1)[kept].mean()))
    over_seeds = torch.tensor(means, dtype=torch.float64)
    assert abs(float(over_seeds.mean())) < 4 * float(over_seeds.std()) / len(means) ** 0.5


@pytest.mark.parametrize(("vocabulary", "k"), [(64, 3), (1_000, 1), (4_133, 5), (4_160, 16), (4_160, 17), (9_999, 2)])
def test_the_largest_of_blocks_are_the_largest_of_all(vocabulary: int, k: int) -> None:
    """Also where they stand next to one another, at the ends, or are infinite; of equal ones any."""
    values = torch.randn(7, vocabulary, generator=torch.Generator().manual_seed(k)).abs()
    values[1, : k + 3] += 10
    values[2, -k - 3 :] += 10
    values[3, 5] = torch.inf
    values[4] = 1
    values[5].mul_(8).round_()
    found = largest(values, k)
    assert torch.equal(values.gather(1, found), values.topk(k, -1).values)
    assert all(len(set(row)) == k for row in found.tolist())
