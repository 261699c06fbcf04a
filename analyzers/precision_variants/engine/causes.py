"""Causes of a difference, each tried as another reference: what fp32 would give if the engine did this.

A cause is named if it makes mean |e| significantly smaller than rounding alone leaves it. e = log p of the engine - log p of a reference, in
nats. Axes: n tokens, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from analyzers.precision_variants.engine.comparison import BAND, Floats, Integers, quotient, ratio
from analyzers.precision_variants.engine.measurements import Cause, CauseKind
from analyzers.terminal import plural

GAIN = 1.05
"""A cause makes mean |e| at least this many times smaller, with 99% confidence: fitting to noise gains a few per mille."""
_LEVEL = 0.99
_OUTSIDE = 0.02  # Share of tokens that rounding may move across the border of a filter.
_TOP_K = 512
_TOP_P = torch.tensor((*(0.05 * step for step in range(1, 20)), 0.98, 0.99, 0.999))
_DIGITS = 16  # Log-probabilities needed to tell that all are rounded: one in 2^16 floats looks like bf16 by chance.


@dataclass(frozen=True, eq=False, slots=True)
class Tried:
    """A cause, and the differences that remain under it: e (n,), NaN where the cause says nothing."""

    kind: CauseKind
    what: str
    e: Floats


@dataclass(frozen=True, eq=False, slots=True)
class Logits:
    """The reference's logits (m, V) at the tokens ``at`` (m,). targets: ids of these tokens; engine: their log-probabilities, -inf where
    forbidden; before: the ids before each, and those among them that were generated.
    """

    logits: Tensor
    at: Integers
    targets: Tensor
    engine: Tensor
    before: Sequence[tuple[Sequence[int], Sequence[int]]]

    def remaining(self, logits: Tensor) -> Tensor:
        """Return e (m,) if the engine's logits were these."""
        return self.engine - torch.log_softmax(logits, -1).gather(-1, self.targets[:, None]).squeeze(-1)


def changed_logits(known: Logits, tokens: int) -> Iterator[Tried]:
    """Yield the causes that change logits before log-probabilities are taken. tokens: n."""
    scale = _fit(lambda by: known.remaining(known.logits / by), np.geomspace(0.2, 5, 25))
    yield _tried("temperature", _temperature(scale), known, known.remaining(known.logits / scale), tokens)
    for what, remaining in _filters(known, 1.0):
        yield _tried("filter", what, known, remaining, tokens)
    for name, penalized, grid in _penalties(known):
        by = _fit(lambda by, penalized=penalized: known.remaining(penalized(by)), grid)
        yield _tried("penalty", f"a {name} penalty of {by:.3g}", known, known.remaining(penalized(by)), tokens)


def tempered_filters(known: Logits, tokens: int) -> Iterator[Tried]:
    """Yield top-k and top-p after a temperature, which a single one of them does not explain."""
    for kind in (0, 1):

        def remaining(scale: float, kind: int = kind) -> Tensor:
            found = _filters(known, scale)
            return found[kind][1] if len(found) > kind else torch.full_like(known.engine, torch.inf)

        scale = _fit(remaining, np.geomspace(0.3, 2, 15))
        found = _filters(known, scale)
        if len(found) > kind:
            yield _tried("filter", f"{_temperature(scale)}, then {found[kind][0]}", known, found[kind][1], tokens)


def shifted(engine: Sequence[Floats], reference: Sequence[Floats], at: Sequence[tuple[int, int]]) -> Iterator[Tried]:
    """Yield the log-probabilities moved by one to three tokens. engine, reference: by sequence, of every token but the first; at: sequence
    and position of the n tokens.
    """
    for by in (1, -1, 2, -2, 3, -3):
        moved = []
        for theirs, ours in zip(engine, reference, strict=True):
            e = np.full(len(ours), np.nan)
            first, last = max(0, -by), max(0, len(ours) - max(0, by))
            if last > first:
                e[first:last] = theirs[first + by : last + by] - ours[first:last]
            moved.append(e)
        where = "later" if by > 0 else "earlier"
        e = np.array([moved[index][position - 1] for index, position in at])
        yield Tried("offset", f"log-probabilities that stand {plural(abs(by), 'token')} {where} than they belong", e)


def rounded(engine: Floats) -> tuple[str, Callable[[Floats], Floats]] | None:
    """Return the format to which all log-probabilities are rounded, in words and as a function; None if they have more digits."""
    values = engine[np.isfinite(engine) & (engine < 0)]
    if len(values) < _DIGITS:
        return None
    ways: list[tuple[str, Callable[[Floats], Floats]]] = [
        ("log-probabilities rounded to bf16: head and softmax ran in it", lambda each: _cast(each, torch.bfloat16)),
        ("log-probabilities rounded to fp16: head and softmax ran in it", lambda each: _cast(each, torch.float16)),
        ("log-probabilities written with 1 decimal", lambda each: np.round(each, 1)),
        ("log-probabilities written with 2 decimals", lambda each: np.round(each, 2)),
    ]
    return next((way for way in ways if np.array_equal(way[1](values), values)), None)


def _cast(values: Floats, dtype: torch.dtype) -> Floats:
    return torch.from_numpy(values).to(dtype).double().numpy()


def forbidden(tokens: int) -> Cause:
    """Return the cause of tokens at minus infinity that no filter explains."""
    what = f"{plural(tokens, 'token')} at minus infinity, which rounding never gives: masked by a grammar, a logit bias or another filter"
    return Cause(kind="forbidden", what=what, explains="part")


OTHER_WEIGHTS = Cause(
    kind="other_weights", what="nothing that was tried: other weights, as after a stale sync, or what was not tried", explains="elimination"
)


def explaining(tried: Sequence[Tried], e: Floats, b: Floats, unit: Integers, over: str) -> list[Cause]:
    """Return the causes that explain the difference significantly better than rounding: the best, and those that explain as much."""
    causes: list[tuple[Tried, Cause]] = []
    for each in tried:
        known = np.isfinite(each.e) & np.isfinite(e)
        gain, low, high = quotient(np.abs(e[known]), np.abs(each.e[known]), unit[known], _LEVEL)
        if gain is None or low is None or low <= GAIN:
            continue
        remaining = ratio(each.e[known], b[known], unit[known], over)
        explains = "all" if remaining.value is not None and remaining.value <= BAND else "part"
        cause = Cause(
            kind=each.kind, what=each.what, explains=explains, remaining=remaining, gain=gain, gain_low=low, gain_high=high
        )  # fmt: skip
        causes.append((each, cause))
    causes.sort(key=lambda pair: (pair[1].remaining and pair[1].remaining.value) or 0.0)
    equal = [cause for each, cause in causes if _as_good(each, causes[0][0], unit)]
    return [cause.model_copy(update={"told_apart": len(equal) == 1}) for cause in equal]


def _as_good(cause: Tried, best: Tried, unit: Integers) -> bool:
    """Whether a cause is not significantly worse than the best one."""
    known = np.isfinite(cause.e) & np.isfinite(best.e)
    _, low, _ = quotient(np.abs(cause.e[known]), np.abs(best.e[known]), unit[known], _LEVEL)
    return cause is best or low is None or low <= 1.0


def _tried(kind: CauseKind, what: str, known: Logits, remaining: Tensor, tokens: int) -> Tried:
    e = np.full(tokens, np.nan)
    e[known.at] = torch.where(torch.isfinite(remaining), remaining, torch.nan).cpu().double().numpy()
    return Tried(kind, what, e)


def _temperature(scale: float) -> str:
    return f"a temperature of {scale:.3g} (or logits divided by it)"


def _fit(remaining: Callable[[float], Tensor], grid: NDArray[np.float64]) -> float:
    """Return the number that makes mean |e| smallest: the best of the grid, refined between its neighbours."""
    best = float(grid[0])
    for _ in range(5):
        sizes = []
        for each in grid:
            e = remaining(float(each))
            e = e[torch.isfinite(e)]
            sizes.append(float(e.abs().mean()) if len(e) else np.inf)
        at = int(np.argmin(sizes))
        best = float(grid[at])
        grid = np.linspace(grid[max(0, at - 1)], grid[min(len(grid) - 1, at + 1)], 9)
    return best


def _filters(known: Logits, scale: float) -> list[tuple[str, Tensor]]:
    """Return the top-k and the top-p under which e is smallest, each if nearly all tokens pass it that the engine let pass."""
    logits = known.logits / scale
    ordered = torch.softmax(logits.sort(-1, descending=True).values, -1)
    cumulative = ordered.cumsum(-1)
    rank = (logits > logits.gather(-1, known.targets[:, None])).sum(-1)
    e = known.remaining(logits)
    most = min(_TOP_K, logits.shape[1])
    kept_p = torch.stack([(cumulative - ordered < p).sum(-1).clamp(min=1) for p in _TOP_P.tolist()], -1)
    found = []
    for name, values, kept, mass in (
        ("top-k {:.0f}", torch.arange(1, most + 1), torch.arange(1, most + 1, device=rank.device).expand(len(rank), -1), cumulative[:, :most]),
        ("top-p {:.3g}", _TOP_P, kept_p, cumulative.gather(-1, kept_p - 1)),
    ):
        outside, forbidden = rank[:, None] >= kept, torch.isneginf(known.engine)
        agrees = (outside[~forbidden].float().mean(0) <= _OUTSIDE) & (1 - outside[forbidden].float().mean(0).nan_to_num(1) <= 5 * _OUTSIDE)
        if bool(agrees.any()):
            under = e[:, None] + mass.clamp(max=1).log()
            sizes = torch.where(agrees, under[~forbidden].abs().mean(0), torch.inf)
            at = int(sizes.argmin())
            found.append((name.format(float(values[at])), under[:, at]))
    return found


def _penalties(known: Logits) -> Iterator[tuple[str, Callable[[float], Tensor], NDArray[np.float64]]]:
    """Yield each penalty, the logits under it, and the values to try: of the tokens before, or of those that were generated."""
    logits = known.logits
    seen, generated = torch.zeros_like(logits), torch.zeros_like(logits)
    for row, histories in enumerate(known.before):
        for counts, ids in zip((seen, generated), histories, strict=True):
            counts[row] += torch.bincount(torch.tensor(ids, dtype=torch.int64), minlength=logits.shape[1]).to(counts)
    yield (
        "repetition",
        lambda by: torch.where(seen > 0, torch.where(logits > 0, logits / by, logits * by), logits),
        np.geomspace(0.5, 2, 15),
    )
    yield "presence", lambda by: logits - by * (generated > 0), np.linspace(-2, 2, 17)
    yield "frequency", lambda by: logits - by * generated, np.linspace(-2, 2, 17)
