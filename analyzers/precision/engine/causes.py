"""Causes of a difference that one fit or one more run shows, each tried as another reference: what fp32 would give if the engine did this.

A cause is named if it makes mean |e| significantly smaller. e = log p of the engine - log p of a reference, in nats. Axes: n tokens,
V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from analyzers.precision.engine.comparison import BAND, Floats, Integers, Units
from analyzers.precision.engine.measurements import Cause, CauseKind, Ratio

GAIN = 1.05
"""A cause makes mean |e| at least this many times smaller, with 99% confidence: fitting to noise gains a few per mille."""
_LEVEL = 0.99
_OUTSIDE = 0.05  # Share of tokens that rounding may move across the border of a filter.
_FITTED = 256  # Tokens to which a temperature is fitted.
_TOP_K = 512
_TOP_P = torch.tensor((*(0.01 * step for step in range(1, 100)), 0.995, 0.999))
_MIN_P = torch.tensor((0.001, 0.002, 0.005, *(0.01 * step for step in range(1, 61))))
_FITS = ("temperature", "filter")  # Numbers are fitted, so that another fault may look like them in part.
_DIGITS = 16  # Log-probabilities needed to tell that all are rounded: one in 2^16 floats looks like bf16 by chance.


Change = Callable[[Tensor], Tensor]
"""Logits (m, V) -> logits (m, V)."""


@dataclass(frozen=True, eq=False, slots=True)
class Tried:
    """A cause with its value (see `Cause`), and the differences that remain under it: e (n,), NaN where the cause says nothing. b (n,): the
    bf16 run's own deviation under the cause, None if that is the same.
    """

    cause: CauseKind
    value: int | float | str
    e: Floats
    b: Floats | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Logits:
    """Logits (m, V) of the reference and of the bf16 run at the tokens ``at`` (m,). targets: ids of these tokens; engine: their
    log-probabilities, -inf where forbidden.
    """

    logits: Tensor
    bf16: Tensor
    at: Integers
    targets: Tensor
    engine: Tensor

    def log_p(self, logits: Tensor) -> Tensor:
        """Return log p (m,) of the tokens under these logits."""
        return torch.log_softmax(logits, -1).gather(-1, self.targets[:, None]).squeeze(-1)

    def part(self) -> "Logits":
        """Return these logits at some of the tokens, spread over all: as many as it takes to fit a number."""
        rows = np.unique(np.linspace(0, len(self.at) - 1, min(len(self.at), _FITTED)).astype(np.int64))
        logits, bf16, targets, engine = (each[torch.from_numpy(rows)] for each in (self.logits, self.bf16, self.targets, self.engine))
        return Logits(logits, bf16, self.at[rows], targets, engine)

    def remaining(self, change: Change) -> Tensor:
        """Return e (m,) if the engine changed its logits so."""
        return self.engine - self.log_p(change(self.logits))

    def tried(self, cause: CauseKind, value: int | float | str, change: Change, tokens: int) -> Tried:
        """Return the cause over all tokens. tokens: n."""
        whole = np.full((2, tokens), np.nan)
        for row, values in zip(
            whole, (self.remaining(change), self.log_p(change(self.bf16)) - self.log_p(change(self.logits))), strict=True
        ):
            row[self.at] = torch.where(torch.isfinite(values), values, torch.nan).double().numpy()
        return Tried(cause, value, *whole)


def changed_logits(known: Logits, tokens: int) -> Iterator[Tried]:
    """Yield the causes that change logits before log-probabilities are taken. tokens: n."""
    scale = _temperature(known.part())
    yield known.tried("temperature", scale, _divided(scale), tokens)
    for name, value, change in _filters(known):
        yield known.tried("filter", f"{name}={value:.3g}", change, tokens)


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
        e = np.array([moved[index][position - 1] for index, position in at])
        yield Tried("offset", by, e)


def other_logarithms(engine: Floats, reference: Floats) -> Iterator[Tried]:
    """Yield the log-probabilities (n,) taken to another base than e."""
    for base in (2, 10):
        yield Tried("logarithm", base, engine * np.log(base) - reference)


def rounded(engine: Floats, reference: Floats, b: Floats, units: Units) -> Cause | None:
    """Return the rounding of all log-probabilities to a format as a cause; None if they have more digits. gain: the factor by which the
    bf16 run's own deviation grows if it is rounded so.
    """
    finite = np.isfinite(engine)
    values = engine[finite & (engine < 0)]
    if len(np.unique(values)) < _DIGITS:
        return None
    ways: list[tuple[str, Callable[[Floats], Floats]]] = [
        ("bf16", lambda each: _cast(each, torch.bfloat16)),
        ("fp16", lambda each: _cast(each, torch.float16)),
        ("1 decimal", lambda each: np.round(each, 1)),
        ("2 decimals", lambda each: np.round(each, 2)),
    ]
    for name, to in ways:
        if np.array_equal(to(values), values):
            by = to(reference + b) - reference
            gain, low, high = units.quotient(by, b, finite, _LEVEL)
            left = units.ratio(engine - reference, by, finite)
            return Cause(cause="rounded", value=name, explains=explained(left), remaining=left, gain=gain, gain_low=low, gain_high=high)
    return None


def _cast(values: Floats, dtype: torch.dtype) -> Floats:
    return torch.from_numpy(values).to(dtype).double().numpy()


def judged(tried: Sequence[Tried], e: Floats, b: Floats, units: Units) -> list[tuple[Tried, Cause]]:
    """Return each cause with what it explains, the one that leaves least first."""
    causes: list[tuple[Tried, Cause]] = []
    for each in tried:
        known = np.isfinite(each.e) & np.isfinite(e)
        gain, low, high = units.quotient(e, each.e, known, _LEVEL)
        if gain is not None:
            left = units.ratio(each.e, b if each.b is None else each.b, known)
            cause = Cause(cause=each.cause, value=each.value, explains=explained(left), remaining=left)
            causes.append((each, cause.model_copy(update={"gain": gain, "gain_low": low, "gain_high": high})))
    return sorted(causes, key=lambda pair: (pair[1].remaining and pair[1].remaining.value) or 0.0)


def explained(remaining: Ratio) -> Literal["all", "part"]:
    """Return what a cause explains that leaves this ratio."""
    return "all" if remaining.value is not None and remaining.value <= BAND else "part"


def explaining(causes: Sequence[tuple[Tried, Cause]], units: Units) -> list[Cause]:
    """Return the causes that explain the difference significantly better than rounding: the best, and those that explain as much. What is
    fitted explains all or nothing.
    """
    better = [
        (each, cause) for each, cause in causes if (cause.gain_low or 0) > GAIN and (cause.explains == "all" or cause.cause not in _FITS)
    ]
    if not better or better[0][1].explains == "part":
        return [cause for _, cause in better[:1]]
    return [cause for each, cause in better if _as_good(each, better[0][0], units)]


def _as_good(cause: Tried, best: Tried, units: Units) -> bool:
    """Whether a cause is not significantly worse than the best one."""
    _, low, _ = units.quotient(cause.e, best.e, np.isfinite(cause.e) & np.isfinite(best.e), _LEVEL)
    return cause is best or low is None or low <= 1.0


def _divided(by: float) -> Change:
    return lambda logits: logits / by


def _temperature(known: Logits) -> float:
    """Return the temperature that makes mean |e| smallest: the best of a grid, refined between its neighbours."""
    grid = np.geomspace(0.2, 5, 25)
    best = 1.0
    for _ in range(5):
        sizes = []
        for each in grid:
            e = known.remaining(_divided(float(each)))
            e = e[torch.isfinite(e)]
            sizes.append(float(e.abs().mean()) if len(e) else np.inf)
        at = int(np.argmin(sizes))
        best = float(grid[at])
        grid = np.linspace(grid[max(0, at - 1)], grid[min(len(grid) - 1, at + 1)], 9)
    return best


def _filters(known: Logits) -> Iterator[tuple[str, float, Change]]:
    """Yield top_k, top_p and min_p by name, each with the value under which e is smallest, if it passes nearly the engine's tokens, and the
    change by it.
    """
    ordered = known.logits.sort(-1, descending=True).values
    rank = (known.logits > known.logits.gather(-1, known.targets[:, None])).sum(-1, keepdim=True)
    cumulative = torch.softmax(ordered, -1).cumsum(-1)
    e, forbidden = known.engine - known.log_p(known.logits), torch.isneginf(known.engine)
    for name, (values, kept) in _FILTERS.items():
        passing = kept(ordered, values)
        agrees = ((rank >= passing) != forbidden[:, None]).float().mean(0) <= _OUTSIDE
        if bool(agrees.any()):
            under = e[:, None] + cumulative.gather(-1, passing - 1).clamp(max=1).log()
            at = int(torch.where(agrees, under[~forbidden].abs().mean(0), torch.inf).argmin())
            yield name, float(values[at]), _filtered(known, kept, values[at : at + 1])


def _top_k(ordered: Tensor, values: Tensor) -> Tensor:
    """Return how many tokens pass (m, values)."""
    return values.clamp(max=ordered.shape[1]).expand(len(ordered), -1)


def _top_p(ordered: Tensor, values: Tensor) -> Tensor:
    """Return how many tokens pass (m, values): the fewest whose probabilities sum to p."""
    cumulative = torch.softmax(ordered, -1).cumsum(-1)
    return torch.searchsorted(cumulative, values.expand(len(ordered), -1).contiguous()).clamp(max=ordered.shape[1] - 1) + 1


def _min_p(ordered: Tensor, values: Tensor) -> Tensor:
    """Return how many tokens pass (m, values): those whose probability is this share of the largest, or more."""
    return torch.searchsorted(ordered[:, :1] - ordered, (-values.log()).expand(len(ordered), -1).contiguous(), right=True)


_FILTERS: dict[str, tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]] = {
    "top_k": (torch.arange(1, _TOP_K + 1), _top_k),
    "top_p": (_TOP_P, _top_p),
    "min_p": (_MIN_P, _min_p),
}


def _filtered(known: Logits, kept: Callable[[Tensor, Tensor], Tensor], value: Tensor) -> Change:
    """Return the change by a filter, which the token itself passes in any case."""

    def change(logits: Tensor) -> Tensor:
        ordered = logits.sort(-1, descending=True).values
        least = ordered.gather(-1, kept(ordered, value) - 1)
        passes = (logits >= least).scatter(-1, known.targets[:, None], True)
        return torch.where(passes, logits, -torch.inf)

    return change
