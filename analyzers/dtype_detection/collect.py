"""The read plan, split into parts that can be counted on any machine, and the merge of their counts.

A part is a run of consecutive spans. Tensors within one part are finished there; for a tensor cut between parts the counts are handed over.
Counts merge exactly, and sums to within float64, however the plan was cut.
"""

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Self, TypeVar

import numpy as np

from analyzers.checkpoints import Checkpoint, Plan, Span, Tensor, select
from analyzers.checkpoints.quantization.description import storage_note
from analyzers.checkpoints.tensor_names.adapters import is_adapter, is_adapter_parameter
from analyzers.checkpoints.tensor_names.roles import INTEGER_DTYPES
from analyzers.core.errors import NoWeights, UnsupportedWeights
from analyzers.core.records import Interval
from analyzers.core.terminal import some_files
from analyzers.dtype_detection.count import Counted
from analyzers.dtype_detection.report import DtypeRequest, Storage
from analyzers.dtype_detection.statistics import EMPTY, SHARES, UNREAD, TensorResult, tensor_result
from analyzers.dtype_detection.trainability import Pool
from analyzers.numerics.intervals import Blocks

K = TypeVar("K")

Shares = tuple[list[int], list[int]]  # tested, positive
PoolKey = tuple[str, str, bool]

_MERGED_ENTRIES = 1 << 16


@dataclass(frozen=True, slots=True)
class Chosen:
    """The selected tensors: parameters that pass the filters, those with float values, scales, and buffers."""

    parameters: list[Tensor]
    floats: list[Tensor]
    scales: list[Tensor]
    buffers: list[Tensor]

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors that pass the filters."""
        return [*self.parameters, *self.scales, *self.buffers]

    @classmethod
    def of(cls, checkpoint: Checkpoint, request: DtypeRequest) -> Self:
        """Select from ``checkpoint``. Raises UnsupportedWeights for integer weights, NoWeights if there are no values."""
        tensors = select(checkpoint.tensors, request.include, request.exclude)
        parameters = [t for t in tensors if not t.buffer and not t.holds_scales]
        # The matrices of an adapter are not weights of the model beside it, unless there is nothing else or a filter includes them.
        beside = not request.include and not is_adapter([file.path for file in checkpoint.files], checkpoint.tensors)
        floats = [t for t in parameters if t.has_values and not (beside and is_adapter_parameter(t.name))]
        method = checkpoint.quantization
        if method is not None and not request.include and _of_integers(method, parameters):
            still = ", or with dtype only the tensors that are still floats (an include filter, for example: embed|norm)" if floats else ""
            raise UnsupportedWeights(
                f"{checkpoint.ref} holds {method} weights. The bits of integers say nothing about "
                f"training: inspect the original model{still}."
            )
        if not parameters:
            raise NoWeights(f"{checkpoint.ref} holds no parameters: " + ("only buffers." if tensors else "its files have no tensors."))
        if not any(t.elements for t in parameters):
            which = "its only tensor is" if len(parameters) == 1 else f"all of its {len(parameters):,} tensors are"
            unread = f" Not read: {some_files([each.path for each in checkpoint.not_read])}." if checkpoint.not_read else ""
            raise NoWeights(f"{checkpoint.ref} holds no values: {which} empty.{unread}")
        if not any(t.elements for t in floats):
            kinds = ", ".join(sorted({t.dtype for t in parameters if t.elements}))
            raise UnsupportedWeights(f"{checkpoint.ref} holds no float values to look at: its parameters are {kinds}.")
        return cls(parameters, floats, [t for t in tensors if t.holds_scales], [t for t in tensors if t.buffer])


def _of_integers(method: str, parameters: Sequence[Tensor]) -> bool:
    """Return whether a method of quantization left integers without values.

    If only a dtype suggests quantization (``method`` is "integer"), most elements must be such integers.
    """
    if method in ("fp8", "mxfp4"):
        return False
    integers = sum(t.elements for t in parameters if not t.has_values and t.dtype in INTEGER_DTYPES)
    return integers > (sum(t.elements for t in parameters) // 2 if method == "integer" else 0)


def storage_rows(chosen: Chosen, computed: Container[str]) -> tuple[Storage, ...]:
    """Build one row for each dtype, the largest first. computed: names of tensors that a merge computes, which have rows of their own."""
    by_dtype: dict[tuple[str, bool], list[Tensor]] = {}
    for tensor in (*chosen.parameters, *chosen.scales):
        by_dtype.setdefault((tensor.dtype, tensor.name in computed), []).append(tensor)
    rows = [
        Storage(
            dtype=dtype,
            tensors=len(each),
            parameters=sum(t.elements for t in each if not t.holds_scales),
            bytes=sum(t.nbytes for t in each),
            note=storage_note(each),
            computed=merged,
        )
        for (dtype, merged), each in by_dtype.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.bytes))


# Formats that hold every value of a dtype.
_ALWAYS_EXACT = {
    "BF16": ("representable.bf16", "representable.tf32"),
    "F16": ("representable.fp16", "representable.tf32"),
    "F8_E4M3": ("representable.fp16", "representable.bf16", "representable.tf32", "representable.fp8_e4m3"),
    "F8_E5M2": ("representable.fp16", "representable.bf16", "representable.tf32", "representable.fp8_e5m2"),
}


def part_of(spans: Sequence[Span], part: int, parts: int) -> list[Span]:
    """Return the spans of part number ``part`` of ``parts``, which are about equal in bytes."""
    ends = list(accumulate(span.nbytes for span in spans))
    return [span for span, end in zip(spans, ends, strict=True) if (end - 1) * parts // max(ends[-1], 1) == part]


@dataclass(slots=True)
class Partial:
    """Counts of one part.

    results: of the tensors that lie in it; pools: counts of these tensors, by `_pool`; cut: counts of the tensors that lie in it only
    partly; blocks: (stratum, elements, tested, positive) of each span in quick mode; grid_blocks: number of spans searched for grids.
    nbytes, requests, seconds: of the reads.
    """

    part: int
    parts: int
    results: dict[str, TensorResult] = field(default_factory=dict)
    pools: dict[PoolKey, list[Counted]] = field(default_factory=dict)
    cut: dict[str, list[Counted]] = field(default_factory=dict)
    blocks: list[tuple[int, int, list[int], list[int]]] = field(default_factory=list)
    grid_blocks: int = 0
    nbytes: int = 0
    requests: int = 0
    seconds: float = 0.0


def _pool(tensor: Tensor) -> PoolKey:
    """Return the pool of a tensor: dtype (separate if decoded), role, and whether it is a vector, which a sample reads more of."""
    return tensor.read_as if tensor.scale is None else f"scaled {tensor.dtype}", tensor.role, len(tensor.shape) < 2


def _add(sums: dict[K, list[Counted]], name: K, counted: Counted) -> None:
    """Add counts to those of ``name``.

    Counts are merged only once their entries together equal a table of bins in number, because a merge traverses such a table.
    """
    parts = sums.setdefault(name, [])
    parts.append(counted)
    if len(parts) * max(64, counted.histogram.index.size) > _MERGED_ENTRIES:
        sums[name] = [Counted.together(parts)]


class Collector:
    """Combines the counts of a part's spans: by tensor until the tensor is complete, then by pool."""

    def __init__(self, plan: Plan, floats: Sequence[Tensor], part: int, parts: int) -> None:
        self.spans = part_of(plan.spans, part, parts)
        self.partial = Partial(part, parts)
        self._plan, self._tensors = plan, {tensor.name: tensor for tensor in floats}
        self._spans_left = Counter(span.tensor.name for span in plan.spans)

    def add(self, span: Span, counted: Counted, shares: Shares | None) -> None:
        """Add one finished span."""
        tensor = self._tensors[span.tensor.name]
        if shares is not None:
            self.partial.blocks.append((self._plan.strata[tensor.name], span.count, *shares))
        _add(self.partial.cut, tensor.name, counted)
        self._spans_left[tensor.name] -= 1
        if self._spans_left[tensor.name] == 0:
            whole = Counted.together(self.partial.cut.pop(tensor.name))
            self.partial.results[tensor.name] = tensor_result(tensor, whole)
            _add(self.partial.pools, _pool(tensor), whole)


def merge(floats: Sequence[Tensor], partials: Iterable[Partial]) -> Partial:
    """Merge all parts of one plan, in any order, and empty them. Raises ValueError unless every part occurs exactly once."""
    found = sorted(partials, key=lambda partial: partial.part)
    if not found or [(p.part, p.parts) for p in found] != [(k, found[0].parts) for k in range(found[0].parts)]:
        raise ValueError("the parts of a plan must be counted once each")
    whole = Partial(0, 1)
    for partial in found:
        whole.results |= partial.results
        whole.blocks += partial.blocks
        whole.grid_blocks += partial.grid_blocks
        whole.nbytes += partial.nbytes
        whole.requests += partial.requests
        whole.seconds += partial.seconds
        for key, parts in partial.pools.items():
            for counted in parts:
                _add(whole.pools, key, counted)
        for name, parts in partial.cut.items():
            for counted in parts:
                _add(whole.cut, name, counted)
    for tensor in floats:
        if tensor.name in whole.cut:
            counted = Counted.together(whole.cut.pop(tensor.name))
            whole.results[tensor.name] = tensor_result(tensor, counted)
            _add(whole.pools, _pool(tensor), counted)
    whole.pools = {key: whole.pools[key] for key in dict.fromkeys(map(_pool, floats)) if key in whole.pools}
    return whole


def by_dtype(whole: Partial) -> dict[str, Counted]:
    """Merge all counts of each dtype; decoded values have a name of their own."""
    parts: dict[str, list[Counted]] = {}
    for (name, _, _), counted in whole.pools.items():
        parts.setdefault(name, []).extend(counted)
    return {name: Counted.together(each) for name, each in parts.items()}


def pools(floats: Sequence[Tensor], whole: Partial) -> list[Pool]:
    """Return each pool with the elements of its tensors, read or not."""
    elements: Counter[PoolKey] = Counter()
    for tensor in floats:
        elements[_pool(tensor)] += tensor.elements
    return [Pool(key[0], key[1], Counted.together(parts).histogram, elements[key]) for key, parts in whole.pools.items()]


def in_order(whole: Partial, tensors: Sequence[Tensor]) -> list[TensorResult]:
    """Return the results in the order of ``tensors``, with empty ones for tensors that were not read."""
    return [whole.results.get(t.name) or TensorResult(t, EMPTY, UNREAD, None) for t in tensors]


def unseen_share(plan: Plan, whole: Partial) -> float | None:
    """Bound, with 95% confidence, the share of all values in a kind of block of which none was read; None if everything was read."""
    if plan.exact or not whole.blocks:
        return None
    stratum, elements = map(np.array, zip(*((block[0], block[1]) for block in whole.blocks), strict=True))
    return Blocks(stratum, elements, plan.population).unseen()


def intervals(plan: Plan, whole: Partial) -> dict[str, Interval]:
    """Estimate shares of all values with 95% intervals; empty if everything was read."""
    if plan.exact or not whole.blocks:
        return {}
    # Sorted, because blocks arrive as threads finish them and float sums depend on their order
    stratum, elements, tested, positive = map(np.array, zip(*sorted(whole.blocks), strict=True))
    found = Blocks(stratum, elements, plan.population).shares(tested, positive)
    return {name: interval for name, interval in zip(SHARES, Interval.each(found), strict=True) if interval is not None} | {
        name: Interval(estimate=1.0, low=1.0, high=1.0)  # true of every value because of the dtypes
        for name in SHARES
        if all(name in _ALWAYS_EXACT.get(span.tensor.counted_as, ()) for span in plan.spans)
    }
