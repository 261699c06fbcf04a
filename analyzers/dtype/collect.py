"""The tensors that are inspected, and the counts of their spans, combined by tensor and by kind of tensor."""

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Self, TypeVar

import numpy as np

from analyzers.checkpoints import Checkpoint, Plan, Span, Tensor, not_decoded, quoted, select
from analyzers.checkpoints.quantization.description import storage_note
from analyzers.checkpoints.tensor_names.adapters import is_adapter, is_adapter_parameter
from analyzers.checkpoints.tensor_names.roles import INTEGER_DTYPES
from analyzers.core.errors import NoWeights, UnsupportedWeights
from analyzers.core.records import Interval
from analyzers.core.terminal import some_files
from analyzers.dtype.count import Counted
from analyzers.dtype.report import DtypeRequest
from analyzers.dtype.rows import Storage
from analyzers.dtype.statistics import FORMATS, SHARES, UNREAD, Statistics, TensorResult, tensor_result
from analyzers.dtype.trainability import Pool
from analyzers.numerics import bins
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

    @property
    def undecoded(self) -> float:
        """Share of the elements whose values are not decoded."""
        return sum(t.elements for t in self.parameters if not t.has_values) / max(1, sum(t.elements for t in self.parameters))

    @classmethod
    def of(cls, checkpoint: Checkpoint, request: DtypeRequest) -> Self:
        """Select from ``checkpoint``. Raises UnsupportedWeights for integer weights, NoWeights if there are no values."""
        tensors = select(checkpoint.tensors, request.include, request.exclude)
        parameters = [t for t in tensors if not t.buffer and not t.holds_scales]
        # The matrices of an adapter are not weights of the model beside it, unless there is nothing else or a filter includes them.
        beside = not request.include and not is_adapter([file.path for file in checkpoint.files], checkpoint.tensors)
        floats = [t for t in parameters if t.has_values and not (beside and is_adapter_parameter(t.name))]
        method = checkpoint.quantization
        integers = _integers(method, parameters) if method is not None and not request.include else []
        if integers:
            still = ", or with dtype only the tensors that are still floats (an include filter, for example: embed|norm)" if floats else ""
            raise UnsupportedWeights(
                f"{checkpoint.ref} holds {method} weights that are not decoded, such as {quoted(integers[0].name)}. The bits of "
                f"integers say nothing about training: inspect the original model{still}."
            )
        if not any(t.elements for t in parameters):
            unread = f" Not read: {some_files([each.path for each in checkpoint.not_read])}." if checkpoint.not_read else ""
            raise NoWeights(f"{checkpoint.ref} holds no values of parameters: only buffers, or empty tensors.{unread}")
        if not any(t.elements for t in floats):
            kinds = ", ".join(sorted({t.dtype for t in parameters if t.elements}))
            raise UnsupportedWeights(f"{checkpoint.ref} holds no float values to look at: its parameters are {kinds}.")
        return cls(parameters, floats, [t for t in tensors if t.holds_scales], [t for t in tensors if t.buffer])


def _integers(method: str, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the integers without values that a method of quantization left, if hardly any others were decoded.

    If only a dtype suggests quantization (``method`` is "integer"), most elements must be such integers.
    """
    if method in ("fp8", "mxfp4"):
        return []
    found = [tensor for tensor in not_decoded(parameters) if tensor.dtype in INTEGER_DTYPES]
    most = method != "integer" or 2 * sum(each.elements for each in found) > sum(each.elements for each in parameters)
    return found if most else []


def storage_rows(chosen: Chosen, computed: Container[str]) -> tuple[Storage, ...]:
    """Build one row for each dtype, the largest first. computed: names of tensors that a merge computes, which have rows of their own."""
    by_dtype: dict[tuple[str, bool], list[Tensor]] = {}
    for tensor in (*chosen.parameters, *chosen.scales):
        by_dtype.setdefault((tensor.stored_dtype, tensor.name in computed), []).append(tensor)
    rows = [
        Storage(
            dtype=dtype,
            tensors=len(each),
            parameters=sum(t.elements for t in each if not t.holds_scales),
            bytes=sum(t.on_disk.nbytes for t in each),
            note=storage_note(each),
            computed=merged,
        )
        for (dtype, merged), each in by_dtype.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.bytes))


def _pool(tensor: Tensor) -> PoolKey:
    """Return the pool of a tensor: dtype (separate if decoded), role, and whether it is a vector, which a sample reads more of."""
    return tensor.read_as if tensor.stored is None else f"decoded {tensor.stored_dtype}", tensor.role, len(tensor.shape) < 2


def _add(sums: dict[K, list[Counted]], name: K, counted: Counted) -> None:
    """Add counts to those of ``name``.

    Counts are merged only once their entries together equal a table of bins in number, because a merge traverses such a table.
    """
    parts = sums.setdefault(name, [])
    parts.append(counted)
    if len(parts) * max(64, counted.histogram.index.size) > _MERGED_ENTRIES:
        sums[name] = [Counted.together(parts)]


class Collector:
    """Combines the counts of spans: by tensor until the tensor is complete, then by pool.

    results: of the tensors; pools: their counts, by `_pool`; blocks: (stratum, elements, tested, positive) of each span in quick mode;
    grid_blocks: number of spans searched for grids. nbytes, requests, seconds: of the reads.
    """

    def __init__(self, plan: Plan) -> None:
        self.results: dict[str, TensorResult] = {}
        self.pools: dict[PoolKey, list[Counted]] = {}
        self.blocks: list[tuple[int, int, list[int], list[int]]] = []
        self.grid_blocks = self.nbytes = self.requests = 0
        self.seconds = 0.0
        self._strata, self._cut = plan.strata, dict[str, list[Counted]]()
        self._spans_left = Counter(span.tensor.name for span in plan.spans)

    def add(self, tensor: Tensor, span: Span, counted: Counted, shares: Shares | None) -> None:
        """Add a finished span of ``tensor``."""
        name = tensor.name
        if shares is not None:
            self.blocks.append((self._strata[name], span.count, *shares))
        self._spans_left[name] -= 1
        if self._spans_left[name] or name in self._cut:
            _add(self._cut, name, counted)
        if self._spans_left[name] == 0:
            whole = Counted.together(self._cut.pop(name)) if name in self._cut else counted
            self.results[name] = tensor_result(tensor, whole)
            _add(self.pools, _pool(tensor), whole)


def by_dtype(whole: Collector) -> dict[str, Counted]:
    """Merge all counts of each dtype; decoded values have a name of their own."""
    parts: dict[str, list[Counted]] = {}
    for (name, _, _), counted in whole.pools.items():
        parts.setdefault(name, []).extend(counted)
    return {name: Counted.together(each) for name, each in parts.items()}


def pools(floats: Sequence[Tensor], whole: Collector) -> list[Pool]:
    """Return each pool with the elements of its tensors, read or not."""
    elements: Counter[PoolKey] = Counter()
    for tensor in floats:
        elements[_pool(tensor)] += tensor.elements
    return [Pool(key[0], key[1], Counted.together(whole.pools[key]).histogram, elements[key]) for key in elements if key in whole.pools]


def in_order(whole: Collector, tensors: Sequence[Tensor]) -> list[TensorResult]:
    """Return the results in the order of ``tensors``, with empty ones for tensors that were not read."""
    return [whole.results.get(t.name) or TensorResult(t, Statistics(), UNREAD, None) for t in tensors]


def unseen_share(plan: Plan, whole: Collector) -> float | None:
    """Bound, with 95% confidence, the share of all values in a kind of block of which none was read; None if everything was read."""
    if plan.exact or not whole.blocks:
        return None
    stratum, elements = map(np.array, zip(*((block[0], block[1]) for block in whole.blocks), strict=True))
    return Blocks(stratum, elements, plan.population).unseen()


def intervals(plan: Plan, whole: Collector) -> dict[str, Interval]:
    """Estimate shares of all values with 95% intervals; empty if everything was read."""
    if plan.exact or not whole.blocks:
        return {}
    # Sorted, because blocks arrive as threads finish them and float sums depend on their order
    stratum, elements, tested, positive = map(np.array, zip(*sorted(whole.blocks), strict=True))
    found = Blocks(stratum, elements, plan.population).shares(tested, positive)
    return {name: interval for name, interval in zip(SHARES, Interval.each(found), strict=True) if interval is not None} | {
        name: Interval(estimate=1.0, low=1.0, high=1.0)  # true of every value because of the dtypes
        for name in SHARES
        if all(name in _always_exact(dtype) for dtype in {span.tensor.counted_as for span in plan.spans})
    }


@cache
def _always_exact(dtype: str) -> set[str]:
    """Return the `SHARES` of the formats that hold every value of a dtype."""
    table = bins(dtype)
    return {f"representable.{name}" for name in FORMATS if (table.exact[name] | ~table.finite_nonzero).all()}
