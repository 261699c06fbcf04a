"""Several tuned checkpoints of one base: changes against the base and against the checkpoint before, and the overlap of changes.

Only sums by role and stratum are kept of every checkpoint, and three numbers of every two, so that memory does not depend on the size of
the model and little on the number of checkpoints.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import ROLES
from analyzers.core.records import Interval
from analyzers.core.report import CheckpointFacts
from analyzers.numerics import PairCounts
from analyzers.update_sparsity.count import Counted
from analyzers.update_sparsity.report import Overlap, Probe, Step, Swallowed, TrajectoryRow
from analyzers.update_sparsity.statistics import Number, Weighed, total, weigh

Sums = dict[tuple[str, int], PairCounts]  # (role, stratum) -> counts


class Trajectory:
    """Sums over all groups; ``add`` accepts the counts of spans in any order."""

    def __init__(self, tuned: int, strata: int) -> None:
        self._against: list[Sums] = [{} for _ in range(tuned)]
        self._steps: list[Sums] = [{} for _ in range(tuned - 1)]
        self._overlap = np.zeros((strata, 3, tuned, tuned), np.int64)

    def add(self, role: str, stratum: int, counted: Counted) -> None:
        """Add the counts of elements of one role and stratum."""
        for sums, counts in zip((*self._against, *self._steps), (*counted.against, *counted.steps), strict=True):
            sums.setdefault((role, stratum), PairCounts()).add(counts)
        if counted.overlap is not None:
            self._overlap[stratum] += counted.overlap

    def rows(
        self,
        tuned: Sequence[CheckpointFacts],
        parameters: Sequence[int],
        same_dtypes: Sequence[bool],
        intervals: Sequence[Interval | None],
        weights: Sequence[Number],
    ) -> list[TrajectoryRow]:
        """Build one row per tuned checkpoint.

        parameters: elements of each that the base has too; same_dtypes: whether each is stored in the base's dtypes; intervals: of the
        sparsity of each; weights: as in `weigh`.
        """
        rows = []
        for i, facts in enumerate(tuned):
            sums = self._against[i]
            whole, counts = _weigh(sums, weights), total(sums.values())
            interval = intervals[i]
            step = self._steps[i - 1] if i else sums
            from_before, step_counts = _weigh(step, weights), total(step.values())
            row = TrajectoryRow(
                ref=facts.ref,
                commit=facts.commit,
                sparsity=interval.estimate if interval is not None else whole.sparsity,
                num_changed=counts.changed,
                num_unchanged=counts.values - counts.changed,
                total_parameters=parameters[i],
                update_fraction=1 - interval.estimate if interval is not None else whole.update_fraction,
                interval=interval,
                probe=Probe(sparsity=whole.probe_sparsity, num_changed=counts.probe),
                swallowed=Swallowed(count=counts.swallowed, share=whole.swallowed, meaningful=same_dtypes[i]),
                relative_norm=whole.relative_norm,
                roles={role: share for role in ROLES if (share := _weigh(sums, weights, role).sparsity) is not None},
                step=Step(
                    sparsity=from_before.sparsity,
                    num_changed=step_counts.changed,
                    probe=Probe(sparsity=from_before.probe_sparsity, num_changed=step_counts.probe),
                ),
            )
            rows.append(row)
        return rows

    def overlaps(self, weights: Sequence[Number]) -> list[Overlap]:
        """Compute the overlap of every two tuned checkpoints, over the elements that both have; shares are weighted like all others."""
        seen = self._overlap.sum(axis=0)
        weighed = np.tensordot(np.array([float(w) for w in weights]), self._overlap, axes=1)
        tuned = seen.shape[-1]
        return [_overlap(i, j, seen, weighed) for i in range(tuned) for j in range(i + 1, tuned)]


def _overlap(i: int, j: int, seen: NDArray[np.int64], weighed: NDArray[np.float64]) -> Overlap:
    compared, first, second = float(weighed[0, i, j]), float(weighed[1, i, j]), float(weighed[1, j, i])
    shared = float(weighed[2, i, j])
    either = first + second - shared
    independent = None
    if compared and either:
        p, q = first / compared, second / compared
        independent = p * q / (p + q - p * q)
    return Overlap(
        first=i,
        second=j,
        shared=int(seen[2, i, j]),
        either=int(seen[1, i, j] + seen[1, j, i] - seen[2, i, j]),
        jaccard=shared / either if either else None,
        independent=independent,
    )


def _weigh(sums: Sums, weights: Sequence[Number], role: str | None = None) -> Weighed:
    return weigh(((stratum, counts) for (name, stratum), counts in sums.items() if role in (None, name)), weights)
