"""Measures the adapters that the tuned side of a comparison adds to its base: their modules, how they overlap, and what a merge keeps."""

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import prod, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analyzers import limits
from analyzers.checkpoints import Checkpoint, MergedCheckpoint, Tensor, states_ties
from analyzers.checkpoints.adapters.merged_checkpoint import Merge
from analyzers.checkpoints.adapters.merged_file import read_values
from analyzers.checkpoints.adapters.updates import Factor, Update
from analyzers.checkpoints.reading.worker_threads import work_through
from analyzers.checkpoints.tensor_names.roles import layer, role
from analyzers.update_sparsity.adapters.factors import LowRank, effective_rank, inner, low_rank, singular_values, subspaces
from analyzers.update_sparsity.adapters.report import FIRST, SOURCES, Adapter, AdapterModule, AdapterOverlap
from analyzers.update_sparsity.adapters.survival import SurvivalMeter

# Part of the budget of a sample that the factors may take
_OF_BUDGET = 8
_TIED = ("embedding", "head")


class _Applied(NamedTuple):
    """An update of a tensor by one of the adapters. adapter: its number; files: of the adapter."""

    adapter: int
    source: Checkpoint
    update: Update


@dataclass(slots=True)
class _Module:
    """Measures of one tensor. values: singular values of the update, None unless it is s L R; empty: whether it is 0; space: of a head or
    an embedding.
    """

    values: list[float] | None = None
    empty: bool | None = None
    space: LowRank | None = None
    overlaps: dict[tuple[int, int], "_Shared"] = field(default_factory=dict)


class _Shared(NamedTuple):
    """Two updates of one tensor: inner product, squared norms, elements, shared rows and columns with those by chance, smallest angle."""

    inner: float
    squares: tuple[float, float]
    elements: int
    rows: tuple[float, float] | None
    columns: tuple[float, float] | None
    angle: float | None


def merge_of(base: Checkpoint, tuned: Checkpoint) -> Merge | None:
    """Return what is merged into the tuned side if it is ``base`` with adapters, else None.

    Adapters that are stored in one file with their base count if the base's values are equal, as far as `_equal` compares them.
    """
    merge = tuned.merge if isinstance(tuned, MergedCheckpoint) else None
    if merge is None or (merge.base.ref, merge.base.commit) == (base.ref, base.commit):
        return merge
    return merge if merge.unmerged and _equal(merge, base) else None


def _equal(merge: Merge, base: Checkpoint) -> bool:
    """Return whether ``base`` holds the first values of some of the weights that are changed."""
    stored, changed = {tensor.name: tensor for tensor in base.tensors}, list(merge.updates.values())
    sources = [each[0][1].source for each in changed[:: -(-len(changed) // SOURCES)]] if changed else []
    pairs = [(source, stored.get(source.name)) for source in sources]
    return all(
        other is not None and one.shape == other.shape and np.array_equal(_first(merge.base, one), _first(base, other), equal_nan=True)
        for one, other in pairs
    )


def _first(checkpoint: Checkpoint, tensor: Tensor) -> NDArray[np.float32]:
    return read_values(checkpoint.files, tensor, 0, min(tensor.elements, FIRST))


class AdapterMeter:
    """Measures the adapters of several tuned sides, of which the last is described. survival: of its update, measured elsewhere."""

    def __init__(self, merges: Sequence[Merge | None], budget: int | None) -> None:
        last = merges[-1]
        assert last is not None
        self._last, self._budget = last, budget
        self._adapters = [adapter for merge in merges if merge is not None for adapter in merge.adapters]
        first = len(self._adapters) - len(last.adapters)
        self._own = range(first, len(self._adapters))
        self._applied: dict[str, list[_Applied]] = defaultdict(list)
        at = 0
        for merge in merges:
            for adapter, changes in zip(*((merge.adapters, merge.changes) if merge is not None else ((), ())), strict=True):
                for update in changes.updates:
                    self._applied[update.target].append(_Applied(at, adapter.checkpoint, update))
                at += 1
        saved = [name for changes in last.changes for name in changes.saved]
        self.touched = list(dict.fromkeys([*(name for name, each in self._applied.items() if self._ours(each)), *saved]))
        self._modules: dict[str, _Module] = {}

    @property
    def unmerged(self) -> bool:
        """Whether the last side's adapters are stored in one file with their base."""
        return self._last.unmerged

    @property
    def stated_bases(self) -> set[str]:
        """The models on the Hub that the configurations of the last side's adapters name."""
        return {base for number in self._own if (base := self._adapters[number].configuration.base) is not None}

    def _ours(self, applied: Sequence[_Applied]) -> list[_Applied]:
        return [each for each in applied if each.adapter in self._own]

    def read(self) -> Iterator[int]:
        """Read the factors, all or as many modules as fit the budget, and measure them; yields the number of modules done."""
        names = list(self._applied)
        sizes = [sum(_nbytes(each.update) for each in self._applied[name]) for name in names]
        if self._budget is not None and sum(sizes) > (most := self._budget // _OF_BUDGET):
            step = -(-sum(sizes) // most)
            names = names[::step]
        threads = min(8, *(adapter.checkpoint.parallel_reads for adapter in self._adapters)) if self._adapters else 1
        work = work_through(names, max(1, threads), lambda: lambda name: self._measure(self._applied[name]), threading.Event())
        try:
            for item in work:
                if item is not None:
                    self._modules[item[0]] = item[1]
                yield len(self._modules)
        finally:
            work.close()

    def _measure(self, applied: Sequence[_Applied]) -> _Module:
        """Measure the updates of one tensor."""
        found, ours = _Module(), self._ours(applied)
        plain = {each.adapter: each for each in applied if _is_plain(each.update) and sum(e.adapter == each.adapter for e in applied) == 1}
        spaces: dict[int, LowRank] = {}
        for each in applied:
            left, right = (_vectors(each.source, part) if part is not None else None for part in (each.update.left, each.update.right))
            assert left is not None
            zero = not left.any() or (right is not None and not right.any()) or not each.update.scale
            if each.adapter in self._own and each.update.magnitude is None:
                found.empty = zero and found.empty is not False
            if right is None or each.adapter not in plain or not (np.isfinite(left).all() and np.isfinite(right).all()):
                continue
            if len(plain) > 1 or role(each.update.target) in _TIED:
                spaces[each.adapter] = low_rank(left, right.T, each.update.scale)
            if len(ours) == 1 and ours[0] is each:
                found.space = spaces.get(each.adapter) if role(each.update.target) in _TIED else None
                values = spaces[each.adapter].values if each.adapter in spaces else singular_values(left, right.T, each.update.scale)
                found.values = values.tolist()
        for one, other in combinations(sorted(spaces), 2):
            if _part(plain[one].update) == _part(plain[other].update):
                found.overlaps[one, other] = _shared(spaces[one], spaces[other])
        return found

    def adapter(self, meter: SurvivalMeter, base: Checkpoint) -> Adapter:
        """Describe the adapters of the last side."""
        own = [self._adapters[number] for number in self._own]
        ranks = [module.rank for each in own for module in each.modules]
        scales = [each.update.scale for applied in self._applied.values() for each in self._ours(applied)]
        norms = meter.relative_norms()
        rows = [self._row(name, *norms[name]) for name in self.touched]
        unmatched = [each.name for changes in self._last.changes for each in changes.unmatched]
        return Adapter(
            adapters=tuple(each.checkpoint.facts() for each in own),
            kind=" and ".join(dict.fromkeys(each.configuration.kind for each in own)),
            rank=max(ranks, default=None),
            scale=max(scales, key=abs, default=None),
            modules=tuple(rows[: limits.REPORT_TENSORS]),
            modules_total=len(rows),
            unmatched=tuple(unmatched[: limits.REPORT_TENSORS]),
            unmatched_total=len(unmatched),
            tied_drift=self._drift(meter, base),
            overlap=tuple(self._overlaps()),
            survival=meter.survival(),
            non_finite=meter.non_finite(),
        )

    def _row(self, name: str, values_read: int, relative_norm: float | None) -> AdapterModule:
        applied = self._ours(self._applied.get(name, ()))
        found = self._modules.get(name, _Module())
        single = applied[0].update if len(applied) == 1 else None
        return AdapterModule(
            name=name,
            role=role(name),
            layer=layer(name),
            rank=_rank(single) if single is not None and single.right is not None else None,
            scale=single.scale if single is not None else None,
            values_read=values_read,
            relative_norm=relative_norm,
            rank_used=len(found.values) if found.values is not None else None,
            effective_rank=effective_rank(np.array(found.values)) if found.values else None,
            empty=found.empty,
        )

    def _drift(self, meter: SurvivalMeter, base: Checkpoint) -> float | None:
        """Return |head - embedding| / |embedding| after the merge, if the base ties them and the adapter changes one of them or both."""
        embeddings = [tensor.name for tensor in base.tensors if tensor.role == "embedding" and len(tensor.shape) == 2]
        changed = [name for name in self.touched if role(name) == "head" or name in embeddings]
        spaces = [module.space for name in changed if (module := self._modules.get(name)) is not None and module.space is not None]
        norm = meter.norm(embeddings[0]) if len(embeddings) == 1 else None
        if not states_ties(base.config) or not norm or not changed or len(spaces) < len(changed) or len(spaces) > 2:
            return None
        squares = sum(_square(space) for space in spaces)
        return sqrt(max(squares - (2 * inner(*spaces) if len(spaces) == 2 else 0.0), 0.0)) / norm

    def _overlaps(self) -> Iterator[AdapterOverlap]:
        """Compare each pair of adapters over the modules that both change by a low-rank update."""
        for one, other in combinations(range(len(self._adapters)), 2):
            shared = {name: each for name, module in self._modules.items() if (each := module.overlaps.get((one, other))) is not None}
            both = prod(sqrt(sum(each.squares[side] for each in shared.values())) for side in (0, 1))
            # The variance of an inner product with a randomly turned matrix of m x n is the product of the squared norms / (m n)
            chance = sqrt(sum(prod(each.squares) / each.elements for each in shared.values()))
            cosines = {name: each.inner / sqrt(prod(each.squares)) for name, each in shared.items() if prod(each.squares)}
            worst = min(cosines, key=cosines.__getitem__, default=None)
            yield AdapterOverlap(
                first=self._adapters[one].ref,
                second=self._adapters[other].ref,
                modules=len(shared),
                cosine=sum(each.inner for each in shared.values()) / both if both else None,
                cosine_by_chance=chance / both if both else None,
                **_means("rows", [each.rows for each in shared.values()]),
                **_means("columns", [each.columns for each in shared.values()]),
                smallest_angle=min((each.angle for each in shared.values() if each.angle is not None), default=None),
                worst=worst,
                worst_cosine=cosines[worst] if worst is not None else None,
            )


def _vectors(adapter: Checkpoint, factor: Factor) -> NDArray[np.float32]:
    """Read the vectors of a factor, (n, r)."""
    tensor = factor.tensor
    whole = read_values(adapter.files, tensor, 0, tensor.elements).reshape(tensor.shape[0], -1)
    return whole[factor.ranks][:, factor.chosen].T if factor.of_a else whole[factor.chosen][:, factor.ranks]


def _is_plain(update: Update) -> bool:
    """Return whether an update is s L R, nothing else."""
    return update.magnitude is None and update.right is not None


def _part(update: Update) -> tuple[object, ...]:
    """Return the part of its tensor that an update changes, so that parts can be compared."""
    return tuple(part.tobytes() if isinstance(part, np.ndarray) else repr(part) for part in (update.rows, update.columns))


def _nbytes(update: Update) -> int:
    return sum(factor.tensor.nbytes for factor in (update.left, update.right) if factor is not None)


def _rank(update: Update) -> int:
    """Return the length of the axis that the factors share."""
    shape = update.left.tensor.shape
    length = shape[0] if update.left.of_a else shape[1]
    return len(range(length)[update.left.ranks])


def _square(space: LowRank) -> float:
    return float(space.values @ space.values)


def _shared(one: LowRank, other: LowRank) -> _Shared:
    rows, columns = subspaces(one.right, other.right), subspaces(one.left, other.left)
    angles = [each.angle for each in (rows, columns) if each is not None]
    return _Shared(
        inner(one, other),
        (_square(one), _square(other)),
        len(one.left) * len(one.right),
        (rows.shared, rows.by_chance) if rows is not None else None,
        (columns.shared, columns.by_chance) if columns is not None else None,
        min(angles, default=None),
    )


def _means(name: str, pairs: Sequence[tuple[float, float] | None]) -> Mapping[str, float | None]:
    """Return the means of the shares and of those by chance."""
    known = np.array([pair for pair in pairs if pair is not None]).reshape(-1, 2)
    means = known.mean(axis=0).tolist() if len(known) else (None, None)
    return {name: means[0], f"{name}_by_chance": means[1]}
