"""Measures the adapters that the tuned side of a comparison adds to its base: their modules, and what storing the merged weights keeps.

The update of a tensor W is D = merged - W, of the checkpoint with the adapters merged in, in fp32; it is measured while base and merged
checkpoint are compared.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import Checkpoint, Chunk, MergedCheckpoint, Plan, Span, Tensor
from analyzers.checkpoints.adapters.merged_checkpoint import Merge
from analyzers.checkpoints.tensor_names.roles import role
from analyzers.comparison.sparsity.report import Adapter, AdapterModule, Survival
from analyzers.core.records import Interval
from analyzers.core.report import first_rows
from analyzers.numerics.intervals import Blocks
from analyzers.numerics.pairs import codes_of
from analyzers.numerics.quantize_kernels import update_lost, update_sizes

Floats = NDArray[np.float32]
Format = Literal["bf16", "fp16"]
# Mantissa bits, the least exponent and the least infinite value of each format (`update_lost`)
GRIDS: dict[Format, tuple[int, int, float]] = {"bf16": (7, -126, np.inf), "fp16": (10, -14, 65536.0)}


@dataclass(slots=True)
class _Lost:
    """The results of one span. sums: of `update_lost`, by format; squares: sums of W^2 and D^2.

    non_finite: number of merged values that are NaN or infinite where the base's are finite.
    """

    tensor: Tensor
    count: int
    sums: dict[Format, NDArray[np.float64]] = field(default_factory=lambda: {name: np.zeros(5) for name in GRIDS})
    squares: NDArray[np.float64] = field(default_factory=lambda: np.zeros(2))
    non_finite: int = 0


def merge_of(base: Checkpoint, tuned: Checkpoint) -> Merge | None:
    """Return what is merged into the tuned side if it is ``base`` with adapters, else None."""
    merge = tuned.merge if isinstance(tuned, MergedCheckpoint) else None
    return merge if merge is not None and (merge.base.ref, merge.base.commit) == (base.ref, base.commit) else None


class AdapterMeter:
    """Measures the update by the adapters of a merge. sides: of a span, the base's and the merge's. Several threads may watch."""

    def __init__(self, merge: Merge, sides: tuple[int, int] = (0, -1)) -> None:
        self._merge, self._sides = merge, sides
        saved = [name for changes in merge.changes for name in changes.saved]
        self._touched = list(dict.fromkeys([*merge.updates, *saved]))
        self._changed = frozenset(self._touched)
        self._found: dict[tuple[str, int], _Lost] = {}
        self._lock = threading.Lock()

    @property
    def stated_bases(self) -> set[str]:
        """The models on the Hub that the configurations of the adapters name as their base."""
        return {base for each in self._merge.adapters if (base := each.configuration.base) is not None}

    def watch(self, span: Span, chunk: Chunk) -> None:
        """Measure a chunk of a span."""
        name = span.tensor.name
        with self._lock:
            lost = self._found.setdefault((name, span.start), _Lost(span.tensor, span.count))
        if name in self._changed and all(span.sides[side] is not None and chunk.sides[side] is not None for side in self._sides):
            base, merged = _pair(span, chunk, self._sides)
            for each, grid in GRIDS.items():
                lost.sums[each] += np.array(update_lost(base, merged, *grid), np.float64)
            square, update, non_finite = update_sizes(base, merged)
            lost.squares += (square, update)
            lost.non_finite += non_finite

    def adapter(self, plan: Plan) -> Adapter:
        """Describe the adapters, with all their modules. plan: what was read."""
        updates = [update for changes in self._merge.changes for update in changes.updates]
        return Adapter(
            adapters=tuple(each.checkpoint.facts() for each in self._merge.adapters),
            kind=" and ".join(dict.fromkeys(each.configuration.kind for each in self._merge.adapters)),
            rank=max((module.rank for each in self._merge.adapters for module in each.modules), default=None),
            scale=max((update.scale for update in updates), key=abs, default=None),
            modules=tuple(_module(name, spans, plan.exact) for name, spans in self._spans().items()),
            unmatched=tuple(each.name for changes in self._merge.changes for each in changes.unmatched),
            survival={name: self._survival(name, plan) for name in GRIDS},
            non_finite=sum(lost.non_finite for lost in self._found.values()),
        )

    def _ordered(self) -> list[_Lost]:
        """Return the results in one order, whichever thread finished first: float sums depend on it."""
        return [self._found[key] for key in sorted(self._found)]

    def _spans(self) -> dict[str, list[_Lost]]:
        """Return the results by module."""
        spans: dict[str, list[_Lost]] = {name: [] for name in self._touched}
        for lost in self._ordered():
            if lost.tensor.name in spans:
                spans[lost.tensor.name].append(lost)
        return spans

    def _survival(self, name: Format, plan: Plan) -> Survival | None:
        spans = self._ordered()
        sums = np.array([lost.sums[name] for lost in spans]).reshape(-1, 5)
        touched, _, overflowed, _, _ = sums.sum(axis=0).tolist()
        if not touched:
            return None
        weights = np.array([float(weight) for weight in plan.weights()])
        strata = np.array([plan.strata[lost.tensor.name] for lost in spans])
        every, changed, _, error, square = (sums * weights[strata, None]).sum(axis=0).tolist()
        bounds: dict[str, Any] = {}
        if not plan.exact:
            blocks = Blocks(strata, np.array([lost.count for lost in spans]), plan.population)
            (ratio,) = Interval.each(blocks.ratio(sums[:, 3:4], sums[:, 4:5]))
            bounds = {"low": sqrt(ratio.low), "high": sqrt(ratio.high)} if ratio is not None else {}
        return Survival(
            touched=int(touched),
            changed_share=changed / every,
            lost_norm=sqrt(error / square) if square else None,
            overflowed=int(overflowed),
            **bounds,
        )


def _module(name: str, spans: Sequence[_Lost], exact: bool) -> AdapterModule:
    square, update = np.sum([lost.squares for lost in spans], axis=0).tolist() if spans else (0.0, 0.0)
    touched, _, _, error, norm = np.sum([lost.sums["bf16"] for lost in spans], axis=0).tolist() if spans else (0.0,) * 5
    read = sum(lost.count for lost in spans)
    whole = exact and read
    changes = bool(touched or any(lost.non_finite for lost in spans))
    return AdapterModule(
        name=name,
        role=role(name),
        values_read=read,
        relative_norm=sqrt(update / square) if square else None,
        lost_norm=sqrt(error / norm) if norm else None,
        empty=False if changes else True if whole else None,
    )


def first_modules(adapter: Adapter) -> Adapter:
    """Return the adapter with as many modules as a report holds."""
    return adapter.model_copy(update={name: tuple(first_rows(getattr(adapter, name))) for name in ("modules", "unmatched")})


def _pair(span: Span, chunk: Chunk, picked: tuple[int, int]) -> tuple[Floats, Floats]:
    """Return base and merged values of a chunk, (n,), as far as both have it."""
    sides = [(span.sides[i], chunk.sides[i]) for i in picked]
    values = [_fp32(np.asarray(codes), side.counted_as) for side, codes in sides if side is not None and codes is not None]
    length = min(map(len, values))
    base, merged = (each[:length] for each in values)
    return base, merged


def _fp32(codes: NDArray[Any], dtype: str) -> Floats:
    return codes_of(codes, dtype, narrow=False).values()
