"""Measures the adapters that the tuned side of a comparison adds to its base: their modules, and what storing the merged weights keeps.

The update of a tensor W is D = merged - W, of the checkpoint with the adapters merged in, in fp32. What rounding loses of it is measured
while base and merged checkpoint are compared; its norm follows from the sums of the comparison.
"""

import threading
from math import sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import Checkpoint, Chunk, MergedCheckpoint, Span
from analyzers.checkpoints.adapters.merged_checkpoint import Merge
from analyzers.checkpoints.tensor_names.roles import role
from analyzers.comparison.sparsity.changes import relative_norm
from analyzers.comparison.sparsity.rows import Adapter, AdapterModule, Survival
from analyzers.comparison.table import Sums, Table
from analyzers.core.records import Interval
from analyzers.core.report import first_rows
from analyzers.numerics.conversions import FLOATS
from analyzers.numerics.intervals import Blocks
from analyzers.numerics.pairs import codes_of

Floats = NDArray[np.float64]
Format = Literal["bf16", "fp16"]
FORMATS: dict[Format, str] = {"bf16": "BF16", "fp16": "F16"}


def merge_of(base: Checkpoint, tuned: Checkpoint) -> Merge | None:
    """Return what is merged into the tuned side if it is ``base`` with adapters, else None."""
    merge = tuned.merge if isinstance(tuned, MergedCheckpoint) else None
    return merge if merge is not None and (merge.base.ref, merge.base.commit) == (base.ref, base.commit) else None


class AdapterMeter:
    """Measures what rounding loses of a merge. sides: of a span, the base's and the merge's. Several threads may watch."""

    def __init__(self, merge: Merge, sides: tuple[int, int] = (0, -1)) -> None:
        self._merge, self._sides = merge, sides
        saved = [name for changes in merge.changes for name in changes.saved]
        self._touched = dict.fromkeys([*merge.updates, *saved])  # in order
        # Name and first element of a span -> its elements, and the sums of `update_lost` by format
        self._found: dict[tuple[str, int], tuple[int, Floats]] = {}
        self._lock = threading.Lock()

    @property
    def stated_bases(self) -> set[str]:
        """The models on the Hub that the configurations of the adapters name as their base."""
        return {base for each in self._merge.adapters if (base := each.configuration.base) is not None}

    def watch(self, span: Span, chunk: Chunk) -> None:
        """Measure a chunk of a span."""
        with self._lock:
            _, sums = self._found.setdefault((span.tensor.name, span.start), (span.count, np.zeros((len(FORMATS), 5))))
        both = [(span.sides[side], chunk.sides[side]) for side in self._sides] if span.tensor.name in self._touched else []
        values = [codes_of(np.asarray(codes), side.counted_as, narrow=False).values() for side, codes in both if side and codes is not None]
        if len(values) == 2:
            length = min(map(len, values))
            base, merged = (each[:length] for each in values)
            for number, dtype in enumerate(FORMATS.values()):
                sums[number] += update_lost(base, merged, dtype)

    def adapter(self, table: Table) -> Adapter:
        """Describe the adapters, with all their modules. table: the sums of the comparison."""
        updates = [update for changes in self._merge.changes for update in changes.updates]
        sides = len(table.groups[0].sides)
        sums = table.tensors(*(side % sides for side in self._sides))
        numbers = {group.base.name: number for number, group in enumerate(table.groups)}
        rows = {name: Sums(sums.columns[numbers[name]]) for name in self._touched if name in numbers}
        lost: dict[str, Floats] = {}
        for name, start in sorted(self._found):  # in one order, whichever thread finished first: float sums depend on it
            lost[name] = lost.get(name, 0.0) + self._found[name, start][1][0]
        return Adapter(
            adapters=tuple(each.checkpoint.facts() for each in self._merge.adapters),
            kind=" and ".join(dict.fromkeys(each.configuration.kind for each in self._merge.adapters)),
            rank=max((module.rank for each in self._merge.adapters for module in each.modules), default=None),
            scale=max((update.scale for update in updates), key=abs, default=None),
            modules=tuple(_module(name, rows.get(name), lost.get(name), table.plan.exact) for name in self._touched),
            unmatched=tuple(each.name for changes in self._merge.changes for each in changes.unmatched),
            survival={name: self._survival(name, number, table) for number, name in enumerate(FORMATS)},
            non_finite=sum(int(row["broken_p"]) for row in rows.values()),
        )

    def _survival(self, name: Format, number: int, table: Table) -> Survival | None:
        spans = sorted(self._found)
        sums = np.array([self._found[key][1][number] for key in spans]).reshape(-1, 5)
        touched, _, overflowed, _, _ = sums.sum(axis=0).tolist()
        if not touched:
            return None
        weights = np.array([float(weight) for weight in table.plan.weights()])
        strata = np.array([table.plan.strata[tensor] for tensor, _ in spans])
        every, changed, _, error, square = (sums * weights[strata, None]).sum(axis=0).tolist()
        blocks = Blocks(strata, np.array([self._found[key][0] for key in spans]), table.plan.population)
        (ratio,) = [None] if table.plan.exact else Interval.each(blocks.ratio(sums[:, 3:4], sums[:, 4:5]))
        return Survival(
            format=name,
            touched=int(touched),
            changed_share=changed / every,
            lost_norm=sqrt(error / square) if square else None,
            low=sqrt(ratio.low) if ratio is not None else None,
            high=sqrt(ratio.high) if ratio is not None else None,
            overflowed=int(overflowed),
        )


def update_lost(base: NDArray[np.float32], merged: NDArray[np.float32], dtype: str) -> Floats:
    """Round values (n,) to a format, and compare the difference with that of the values themselves, their update.

    Returns the number of finite pairs with an update, of those whose rounded values differ, and of those that become infinite; the sum of
    (rounded merged - rounded base - update)^2, and that of update^2, over pairs that stay finite.
    """
    touched = (base != merged) & np.isfinite(base) & np.isfinite(merged)
    before, after = base[touched].astype(np.float64), merged[touched].astype(np.float64)
    with np.errstate(over="ignore"):
        old, new = (side[touched].astype(FLOATS[dtype]).astype(np.float64) for side in (base, merged))
    finite, update = np.isfinite(old) & np.isfinite(new), after - before
    error, kept = (new[finite] - old[finite]) - update[finite], update[finite]
    return np.array([update.size, np.count_nonzero(old != new), np.count_nonzero(np.isinf(new)), error @ error, kept @ kept])


def _module(name: str, row: Sums | None, lost: Floats | None, exact: bool) -> AdapterModule:
    """Describe a module. row: sums of the tensor, None if it was not compared; lost: those of `update_lost` in bf16."""
    touched = 0.0 if lost is None else float(lost[0])
    read = int(row["values"]) if row is not None else 0
    changes = bool(touched or (row is not None and row["broken_p"]))
    return AdapterModule(
        name=name,
        role=role(name),
        values_read=read,
        relative_norm=relative_norm(row) if row is not None else None,
        empty=False if changes else True if exact and read else None,
    )


def first_modules(adapter: Adapter) -> Adapter:
    """Return the adapter with as many modules as a report holds."""
    return adapter.model_copy(update={name: tuple(first_rows(getattr(adapter, name))) for name in ("modules", "unmatched")})
