"""Names, descriptions, settings and defaults of the signals, for command line, page, API and heads. Does not import torch."""

from dataclasses import dataclass, replace
from typing import Literal, Self, get_args

from analyzers.core.errors import InvalidRequest

MethodName = Literal["dense", "hybrid", "parallel", "parallel_gold", "parallel_topmass", "span", "svd", "true_rows"]
TopkBy = Literal["value", "magnitude"]
SettingName = Literal["rank", "rank_exact", "k", "topk_by", "alpha", "residual", "mass_threshold", "anchors", "seed", "fresh"]

EXACT, NULL = "exact", "fresh_codes"
"""Baselines: backpropagation, and a null, `dense` with codes drawn anew for every batch of tokens."""
TOPMASS_TOKENS = 200
"""Maximum number of tokens that `parallel_topmass` codes at one position."""

RANK, GOLD_RANK = 128, 32
"""The default rank, and that of `parallel_gold` and `parallel_topmass`; at most half the width."""
RANK_EXACT, K, ANCHORS = 32, 8, 64
"""The other defaults; of the exact columns at most a quarter of the rank, of the anchors at most half the width."""


@dataclass(frozen=True, slots=True)
class SignalFacts:
    """Facts about a signal. about: a phrase that defines it; uses: the settings it reads; rank: the default rank; random: it draws codes;
    ceiling: its backward pass reads the head's weight, as backpropagation does.
    """

    about: str
    uses: tuple[SettingName, ...] = ()
    rank: int = RANK
    random: bool = False
    ceiling: bool = False


SIGNALS: dict[MethodName, SignalFacts] = {
    "dense": SignalFacts(
        "random codes of the whole vocabulary, e C, expanded by a random orthonormal U", ("rank", "alpha", "seed", "fresh"), random=True
    ),
    "hybrid": SignalFacts(
        "random codes of the gold token and of the k largest e, next to a CountSketch of all other tokens",
        ("rank", "rank_exact", "k", "topk_by", "alpha", "seed", "fresh"),
        random=True,
    ),
    "parallel": SignalFacts("the component along h, exact, from quantities of the forward pass"),
    "parallel_gold": SignalFacts(
        "parallel, plus a random code of the gold token, orthogonal to h",
        ("rank", "residual", "seed", "fresh"),
        rank=GOLD_RANK,
        random=True,
    ),
    "parallel_topmass": SignalFacts(
        "parallel, plus random codes of the gold and the most probable tokens, orthogonal to h",
        ("rank", "residual", "mass_threshold", "seed", "fresh"),
        rank=GOLD_RANK,
        random=True,
    ),
    "span": SignalFacts("the exact projection on the span of m hidden states, the anchors", ("anchors", "seed")),
    "svd": SignalFacts("ceiling: the exact gradient through the best rank-r approximation of the head's weight", ("rank",), ceiling=True),
    "true_rows": SignalFacts("ceiling: the true weight rows of the gold token and of the k largest |e|", ("k",), ceiling=True),
}
METHODS: tuple[MethodName, ...] = get_args(MethodName)
RANDOM: tuple[str, ...] = tuple(name for name in METHODS if SIGNALS[name].random)
"""Signals with random codes, which depend on the seed."""
CEILINGS: tuple[str, ...] = tuple(name for name in METHODS if SIGNALS[name].ceiling)
"""Signals that read the head's weight in the backward pass, as an upper bound for signals that read less of it."""


def facts_of(method: str) -> SignalFacts:
    """Return the facts about a signal or a baseline."""
    return SIGNALS["dense"] if method == NULL else next((facts for name, facts in SIGNALS.items() if name == method), SignalFacts(""))


def rank_conflict(rank: int | None, rank_exact: int | None) -> str | None:
    """Explain the contradiction between hybrid's ranks, as a sentence without its full stop; None if there is none."""
    if rank == 1:
        return "Hybrid needs a rank of at least 2: a column for the codes and one for the tail"
    if rank is not None and rank_exact is not None and rank_exact >= rank:
        return f"Hybrid's rank_exact must be less than its rank, {rank:,}, not {rank_exact:,}: the tail needs a column"
    return None


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """Settings of all methods; `SIGNALS` lists the settings of each. d: width of the hidden states, V: vocabulary.

    rank: columns of the random codes, or number of singular directions, 1 to d; by default that of the signal, at most d / 2. rank_exact:
    columns of hybrid's rank with exact codes, by default `RANK_EXACT`, at most a quarter of the rank; the others are one for each bucket of
    the CountSketch. k: tokens with the largest logit gradient, 1 to V, by
    default `K`; the gold token is always included. topk_by: rank hybrid's gradients by value, positive ones first, or by magnitude. alpha:
    scale of dense and hybrid, above 0. residual: lambda, the weight of the codes orthogonal to h, 0 or more. mass_threshold: cumulative
    probability up to which parallel_topmass codes tokens, 0 to 1. anchors: number of hidden states that span the projection; all of them if
    there are fewer. fresh: draw codes, expander and hashes anew for every call; this is the null, with which no weights can align.
    """

    rank: int | None = None
    rank_exact: int | None = None
    k: int | None = None
    topk_by: TopkBy = "value"
    alpha: float = 1.0
    residual: float = 0.1
    mass_threshold: float = 0.95
    anchors: int = ANCHORS
    seed: int = 0
    fresh: bool = False

    def resolved(self, method: str, vocabulary: int, width: int) -> Self:
        """Return the settings with the method's defaults filled in. Raises InvalidRequest for settings that do not fit such a head."""
        facts = facts_of(method)
        k = min(K, vocabulary) if self.k is None else self.k
        rank = max(1, min(facts.rank, width // 2)) if self.rank is None else self.rank
        exact = None
        if "rank_exact" in facts.uses:
            rank = max(2, rank) if self.rank is None else rank
            exact = max(1, min(RANK_EXACT, rank // 4)) if self.rank_exact is None else self.rank_exact
        for name, value, most, of in (("rank", rank, width, "the model's width"), ("k", k, vocabulary, "the model's vocabulary")):
            if name in facts.uses and value > most:
                raise InvalidRequest(f"{name} may be at most {most:,}, {of}, not {value:,}.")
        if exact is not None and (conflict := rank_conflict(rank, exact)):
            raise InvalidRequest(f"{conflict}.")
        return replace(self, rank=rank, rank_exact=exact, k=k)

    def at_rank(self, rank: int) -> Self:
        """Return resolved settings with another rank, of which rank_exact keeps its share. rank: 2 or more for hybrid."""
        if self.rank_exact is None or self.rank is None:
            return replace(self, rank=rank)
        exact = min(rank - 1, max(1, round(self.rank_exact * rank / self.rank)))
        return replace(self, rank=rank, rank_exact=exact)
