"""The counts of spans, collected per pair of tensors and per block of a sample."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from analyzers.base import Interval
from analyzers.checkpoints import ROLES, Alignment, Plan, Span
from analyzers.numerics import ChangedPlaces, PairCounts
from analyzers.numerics.intervals import ShareBlocks, share_interval
from analyzers.update_sparsity.count import Counted
from analyzers.update_sparsity.statistics import Pair, Places
from analyzers.update_sparsity.trajectory import Trajectory

# Shares that quick mode estimates with an interval, by their path in the report; then the sparsity of each role.
_SHARES = ("sparsity", "probe.sparsity", "swallowed.share")
_PATHS = (*_SHARES, *(f"roles.{role}.sparsity" for role in ROLES))


class Collector:
    """Collects the counts of spans, which may finish in any order.

    Beside the blocks of a sample, only what a row needs is kept of each pair of tensors.
    """

    def __init__(self, alignment: Alignment, plan: Plan, tuned: int) -> None:
        self._groups = alignment.groups
        self._plan = plan
        self._spans_left = Counter(span.tensor.name for span in plan.spans)
        self._counts: dict[str, PairCounts] = {}
        self._places: dict[str, ChangedPlaces] = {}
        self._finished: dict[str, Places] = {}
        self._blocks: list[tuple[int, int, tuple[int, ...], tuple[int, ...]]] = []
        self.trajectory = Trajectory(tuned, len(plan.population)) if tuned > 1 else None

    def add(self, span: Span, counted: Counted) -> None:
        """Add one finished span."""
        name, role, stratum = span.tensor.name, span.tensor.role, self._plan.strata[span.tensor.name]
        if self.trajectory is not None:
            self.trajectory.add(role, stratum, counted)
        if not self._plan.exact:
            self._blocks.append((stratum, span.count, *_shares(role, counted.against)))
        self._counts.setdefault(name, PairCounts()).add(counted.against[-1])
        if counted.places is not None:
            if name in self._places:
                self._places[name].merge(counted.places)
            else:
                self._places[name] = counted.places
        self._spans_left[name] -= 1
        if self._spans_left[name] == 0 and name in self._places:
            self._finished[name] = Places.of(self._places.pop(name))

    def pairs(self) -> list[Pair]:
        """The base's tensors that the last tuned checkpoint has too, in order; of some nothing may have been read."""
        return [
            Pair(base, last, self._counts.get(base.name, PairCounts()), self._plan.strata[base.name], self._finished.get(base.name))
            for base, last in ((group.base, group.tuned[-1]) for group in self._groups)
            if last is not None
        ]

    def intervals(self) -> tuple[dict[str, Interval], list[Interval | None]]:
        """Shares of the whole with 95% intervals, by their path in the report, and the sparsity of each tuned checkpoint.

        None of either where everything was read.
        """
        tuned = len(self._groups[0].tuned)
        if self._plan.exact or not self._blocks:
            return {}, [None] * tuned
        # Sorted: they came as threads finished them, and float sums depend on their order.
        stratum, elements, tested, positive = map(np.array, zip(*sorted(self._blocks), strict=True))
        each = Interval.each(share_interval(ShareBlocks(stratum, elements, tested, positive, self._plan.population)))
        named = {path: interval for path, interval in zip(_PATHS, each, strict=False) if interval is not None}
        return named, each[len(_PATHS) :]


def _shares(role: str, against: Sequence[PairCounts]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(tested, positive) of one block for each of `_PATHS`, then for the sparsity of each tuned checkpoint."""
    last = against[-1]
    unchanged = [counts.values - counts.changed for counts in against]
    positive = (unchanged[-1], last.values - last.probe, last.swallowed)
    here = [each == role for each in ROLES]
    return (
        (*(last.values for _ in _SHARES), *(last.values if it else 0 for it in here), *(counts.values for counts in against)),
        (*positive, *(unchanged[-1] if it else 0 for it in here), *unchanged),
    )
