"""Collects the counts of spans by pair of tensors and, in a sample, by block."""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from analyzers.checkpoints import ROLES, Alignment, Plan, Span
from analyzers.core.records import Interval
from analyzers.numerics import ChangedPositions, PairCounts, PairTables
from analyzers.numerics.intervals import Blocks
from analyzers.update_sparsity.count import Counted
from analyzers.update_sparsity.estimates import Magnitudes, energy_intervals, size_intervals
from analyzers.update_sparsity.rows import TOPS
from analyzers.update_sparsity.statistics import Pair, Places
from analyzers.update_sparsity.trajectory import Trajectory

_SHARES = ("sparsity", "probe.sparsity", "swallowed.share")


@dataclass(frozen=True, slots=True)
class Estimates:
    """95% intervals of a sample; empty if everything was read.

    named: by their path in the report; trajectory: sparsity of each tuned checkpoint; layers: sparsity of each layer; blocks: number of
    blocks read.
    """

    named: dict[str, Interval]
    trajectory: list[Interval | None]
    layers: dict[int | None, Interval | None]
    blocks: int | None = None


class _Block(NamedTuple):
    """Counts of one block. against: (values, unchanged) for each tuned checkpoint; probe: values unchanged by the probe."""

    stratum: int
    elements: int
    role: str
    layer: int | None
    against: list[tuple[int, int]]
    probe: int
    swallowed: int
    absolute: Magnitudes | None
    relative: Magnitudes | None


class Collector:
    """Collects the counts of spans, which may finish in any order.

    Apart from the blocks of a sample, it keeps only what a row needs of each pair of tensors.
    """

    def __init__(self, alignment: Alignment, plan: Plan, tuned: int) -> None:
        self._groups = alignment.groups
        self._plan = plan
        self._spans_left = Counter(span.tensor.name for span in plan.spans)
        self._counts: dict[str, PairCounts] = {}
        self._places: dict[str, ChangedPositions] = {}
        self._finished: dict[str, Places] = {}
        self._blocks: dict[tuple[str, int], _Block] = {}
        self._tables: dict[int, PairTables] = {}
        self.trajectory = Trajectory(tuned, len(plan.population)) if tuned > 1 else None

    def add(self, span: Span, counted: Counted) -> None:
        """Add one finished span."""
        name, role, stratum = span.tensor.name, span.tensor.role, self._plan.strata[span.tensor.name]
        if self.trajectory is not None:
            self.trajectory.add(role, stratum, counted)
        if not self._plan.exact:
            self._add_block(span, stratum, counted)
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
        """Return the base's tensors that the last tuned checkpoint has too, in order, with their counts, which may be zero."""
        return [
            Pair(base, last, self._counts.get(base.name, PairCounts()), self._plan.strata[base.name], self._finished.get(base.name))
            for base, last in ((group.base, group.tuned[-1]) for group in self._groups)
            if last is not None
        ]

    def _add_block(self, span: Span, stratum: int, counted: Counted) -> None:
        last, tables = counted.against[-1], counted.tables
        against = [(counts.values, counts.values - counts.changed) for counts in counted.against]
        sizes = (Magnitudes.of(tables.absolute), Magnitudes.of(tables.relative)) if tables else (None, None)
        self._blocks[span.tensor.name, span.start] = _Block(
            stratum, span.count, span.tensor.role, span.tensor.layer, against, last.values - last.probe, last.swallowed, *sizes
        )
        if tables:
            if stratum not in self._tables:
                self._tables[stratum] = PairTables()
            self._tables[stratum].add(tables)

    def tables(self, weighed: bool) -> PairTables:
        """Merge the distributions of all updates of a sample. weighed: estimate them for all elements compared, else count those read."""
        weights, whole = self._plan.weights(), PairTables()
        for stratum, tables in sorted(self._tables.items()):
            whole.merge(tables.weighed(weights[stratum]) if weighed else tables)
        return whole

    def estimates(self, tables: PairTables) -> Estimates:
        """Compute the intervals. tables: weighed."""
        tuned = len(self._groups[0].tuned)
        if self._plan.exact or not self._blocks:
            return Estimates({}, [None] * tuned, {})
        # Sorted, because blocks arrive as threads finish them and float sums depend on their order
        found = [self._blocks[place] for place in sorted(self._blocks)]
        blocks = Blocks(np.array([each.stratum for each in found]), np.array([each.elements for each in found]), self._plan.population)
        against = np.array([each.against for each in found])  # (blocks, tuned, 2)
        values, unchanged = against[:, -1, :1], against[:, -1, 1:]
        trajectory = Interval.each(blocks.shares(against[..., 0], against[..., 1]))
        others = np.array([(each.probe, each.swallowed) for each in found])
        named = dict(zip(_SHARES, [trajectory[-1], *Interval.each(blocks.shares(values, others))], strict=True))
        in_role = np.array([[each.role == role for role in ROLES] for each in found])
        roles = Interval.each(blocks.shares(values * in_role, unchanged * in_role))
        named |= {f"roles.{role}.sparsity": interval for role, interval in zip(ROLES, roles, strict=True)}
        layers = list(dict.fromkeys(each.layer for each in found))
        in_layer = np.array([[each.layer == layer for layer in layers] for each in found])
        by_layer = dict(zip(layers, Interval.each(blocks.shares(values * in_layer, unchanged * in_layer)), strict=True))
        intervals = {path: interval for path, interval in named.items() if interval is not None}
        absolute = [each.absolute for each in found if each.absolute is not None]
        relative = [each.relative for each in found if each.relative is not None]
        if absolute:
            intervals |= size_intervals(absolute, blocks, tables.absolute, "magnitudes.absolute")
            intervals |= size_intervals(relative, blocks, tables.relative, "magnitudes.relative")
            intervals |= energy_intervals(absolute, blocks, tables.absolute, TOPS)
        return Estimates(intervals, trajectory, by_layer, len(found))
