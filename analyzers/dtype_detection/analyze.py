"""Dtype detection: checkpoint -> stream -> counts -> statistics, lineage, training, risk -> report."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from analyzers import limits
from analyzers.base import Progress, Timing, content_id, environment
from analyzers.checkpoints import Access, Checkpoint, Span, Tensor, open_checkpoint, plan_sample, select, stream, whole_spans
from analyzers.checkpoints.tensor import FLOAT_DTYPES
from analyzers.dtype_detection.count import Counted, Counter
from analyzers.dtype_detection.lineage import Judged, conclude, judge
from analyzers.dtype_detection.report import (
    BufferRow,
    CheckpointFacts,
    DtypeReport,
    DtypeRequest,
    Exponent,
    Extremes,
    Interval,
    Storage,
)
from analyzers.dtype_detection.risk import fp16_risk
from analyzers.dtype_detection.statistics import (
    EMPTY,
    SHARES,
    UNREAD,
    TensorResult,
    aggregate_rows,
    extremes,
    layer_rows,
    share_counts,
    tensor_result,
    tensor_row,
    together,
)
from analyzers.dtype_detection.training import Label, infer_training, labels
from analyzers.errors import InvalidRequest, LimitExceeded, NoWeights, UnsupportedWeights
from analyzers.numerics import loops_for
from analyzers.numerics.device import choose_device
from analyzers.numerics.intervals import ShareBlocks, share_interval

# Raised whenever the same request would give another result.
ANALYSIS_VERSION = 1

_OPTIONS = ("budget", "include", "exclude", "subfolder", "seed")

Shares = tuple[list[int], list[int]]

# Formats that hold every value of a dtype.
_ALWAYS_EXACT = {
    "BF16": ("representable.bf16", "representable.tf32"),
    "F16": ("representable.fp16", "representable.tf32"),
    "F8_E4M3": ("representable.fp16", "representable.bf16", "representable.tf32", "representable.fp8_e4m3"),
    "F8_E5M2": ("representable.fp16", "representable.bf16", "representable.tf32", "representable.fp8_e5m2"),
}


def analyze(request: DtypeRequest, access: Access | None = None, *, largest: int | None = None) -> Iterator[Progress | DtypeReport]:
    """Inspect one checkpoint; yields progress in bytes, then the report.

    access: what may be read; by default public Hub repositories and samples. largest: refuse to read more bytes of
    weights than this (the page's limit). Raises MantissaError. Closing the generator cancels the reads.
    """
    start = perf_counter()
    device = choose_device(request.device)
    yield Progress(done=0, total=0, unit="bytes", note="reading headers")
    with closing(open_checkpoint(request.model, access or Access(), subfolder=request.subfolder)) as checkpoint:
        chosen = _Chosen.of(checkpoint, request)
        plan = _plan(checkpoint, chosen.floats, request)
        if largest is not None and plan.nbytes > largest:
            raise LimitExceeded(
                f"This would read {plan.nbytes / 1e9:,.1f} GB; the limit here is {largest / 1e9:,.0f} GB. "
                "Use quick mode, or the command line."
            )
        count = Counter(device, every_run=plan.strata is not None, loops=loops_for(plan.nbytes))

        def work(span: Span, chunks: Iterator[object]) -> tuple[Counted, Shares | None]:
            counted = count(span, chunks)  # type: ignore[arg-type]
            return counted, None if plan.strata is None else share_counts(counted.histogram)

        reading = perf_counter()
        found = _Collector(chosen.floats, plan)
        yield Progress(done=0, total=plan.nbytes, unit="bytes", note="reading weights")
        done = _Done(start)
        for step in stream(checkpoint, plan.spans, work):
            if step.span is not None and step.result is not None:
                found.add(step.span, *step.result)
            done = _Done(start, perf_counter() - reading, step.bytes_read, step.requests)
            yield Progress(done=done.nbytes, total=plan.nbytes, unit="bytes", note="reading weights")
        yield _report(checkpoint, request, device, chosen, plan, found, done)


@dataclass(frozen=True, slots=True)
class _Done:
    """How much was read in how many seconds; ``start`` is when everything began."""

    start: float
    seconds: float = 0.0
    nbytes: int = 0
    requests: int = 0

    def timing(self) -> Timing:
        """As of now."""
        speed = self.nbytes / self.seconds if self.seconds > 0 else None
        return Timing(seconds=perf_counter() - self.start, reading_seconds=self.seconds, bytes_per_second=speed)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The tensors looked at: parameters that pass the filters, those of them that are plain floats, and the buffers."""

    parameters: list[Tensor]
    floats: list[Tensor]
    buffers: list[Tensor]

    @classmethod
    def of(cls, checkpoint: Checkpoint, request: DtypeRequest) -> "_Chosen":
        tensors = select(checkpoint.tensors, request.include, request.exclude)
        parameters = [t for t in tensors if not t.buffer]
        floats = [t for t in parameters if t.dtype in FLOAT_DTYPES]
        packed = [t for t in parameters if t.dtype not in FLOAT_DTYPES]
        if checkpoint.quantization not in (None, "fp8", "mxfp4") and packed and not request.include:
            raise UnsupportedWeights(
                f"{checkpoint.ref} holds {checkpoint.quantization}: integers whose bits say nothing about training. "
                "Inspect the original model, or choose the tensors that are still floats with an include filter (for example: embed|norm)."
            )
        if not parameters:
            raise NoWeights(f"{checkpoint.ref} holds no parameters: " + ("only buffers." if tensors else "its files have no tensors."))
        if not any(t.elements for t in floats):
            kinds = ", ".join(sorted({t.dtype for t in parameters}))
            raise UnsupportedWeights(f"{checkpoint.ref} holds no float values to look at: its parameters are {kinds}, or empty.")
        return cls(parameters, floats, [t for t in tensors if t.buffer])


@dataclass(frozen=True, slots=True)
class _Plan:
    """What will be read. strata, population: see `sample.Sample`; None where everything is read."""

    spans: list[Span]
    nbytes: int
    strata: dict[str, int] | None
    population: NDArray[np.int64] | None


def _plan(checkpoint: Checkpoint, floats: Sequence[Tensor], request: DtypeRequest) -> _Plan:
    everything = sum(t.nbytes for t in floats)
    if request.mode == "exact":
        return _Plan(whole_spans(floats, checkpoint.parallel_reads), everything, None, None)
    requests = max(1, checkpoint.repository.range_requests - 2 * len(checkpoint.files))  # headers take one or two each
    sample = plan_sample(floats, request.budget, requests, request.seed)
    spans = [Span(floats[b.tensor], b.start, b.count) for b in sample.blocks]
    nbytes = sum(span.count * span.tensor.itemsize for span in spans)
    if not spans:
        raise InvalidRequest("The budget is too small for a single value; raise it.")
    spans.sort(key=lambda span: (span.tensor.file, span.tensor.offset, span.start))
    if nbytes == everything:
        return _Plan(spans, nbytes, None, None)
    strata = {tensor.name: int(stratum) for tensor, stratum in zip(floats, sample.strata, strict=True)}
    return _Plan(spans, nbytes, strata, sample.population)


@dataclass(slots=True)
class _Pool:
    """All values of one dtype together."""

    counted: Counted
    parameters: int = 0


class _Collector:
    """Puts the counts of spans together: per tensor until it is complete, then per dtype."""

    def __init__(self, floats: Sequence[Tensor], plan: _Plan) -> None:
        self._plan = plan
        self._spans_left: dict[str, int] = {}
        for span in plan.spans:
            self._spans_left[span.tensor.name] = self._spans_left.get(span.tensor.name, 0) + 1
        self._partial: dict[str, Counted] = {}
        self.results: dict[str, TensorResult] = {}
        self.pools: dict[str, _Pool] = {}
        self.blocks: list[tuple[int, int, Shares]] = []

    def add(self, span: Span, counted: Counted, shares: Shares | None) -> None:
        """Take in one finished span."""
        tensor = span.tensor
        if shares is not None and self._plan.strata is not None:
            self.blocks.append((self._plan.strata[tensor.name], span.count, shares))
        if tensor.name in self._partial:
            self._partial[tensor.name].add(counted)
        else:
            self._partial[tensor.name] = counted
        self._spans_left[tensor.name] -= 1
        if self._spans_left[tensor.name] == 0:
            whole = self._partial.pop(tensor.name)
            self.results[tensor.name] = tensor_result(tensor, whole)
            if tensor.dtype in self.pools:
                self.pools[tensor.dtype].counted.add(whole)
            else:
                self.pools[tensor.dtype] = _Pool(whole)

    def in_order(self, tensors: Sequence[Tensor]) -> list[TensorResult]:
        """Results in the order of ``tensors``, with an empty one for what was not read."""
        return [self.results.get(t.name) or TensorResult(t, EMPTY, UNREAD) for t in tensors]

    def intervals(self) -> dict[str, Interval]:
        """Shares of the whole with 95 % intervals; nothing when everything was read."""
        if self._plan.population is None or not self.blocks:
            return {}
        blocks = sorted(self.blocks)  # they came as threads finished them, and float sums depend on their order
        found = share_interval(
            ShareBlocks(
                stratum=np.array([b[0] for b in blocks]),
                elements=np.array([b[1] for b in blocks]),
                tested=np.array([b[2][0] for b in blocks]),
                positive=np.array([b[2][1] for b in blocks]),
                population=self._plan.population,
            )
        )
        return {
            name: Interval(estimate=float(found.estimate[i]), low=float(found.low[i]), high=float(found.high[i]))
            for i, name in enumerate(SHARES)
            if np.isfinite(found.estimate[i])
        } | {
            name: Interval(estimate=1.0, low=1.0, high=1.0)  # true of every value by the dtypes alone
            for name in SHARES
            if all(name in _ALWAYS_EXACT.get(span.tensor.dtype, ()) for span in self._plan.spans)
        }


def _report(
    checkpoint: Checkpoint, request: DtypeRequest, device: str, chosen: _Chosen, plan: _Plan, found: _Collector,
    done: _Done,
) -> DtypeReport:  # fmt: skip
    exact = plan.population is None
    results = found.in_order(chosen.floats)
    read = [r for r in results if r.statistics.values_read]
    whole = together([r.statistics for r in read])
    parameters: dict[str, int] = {}
    for tensor in chosen.floats:
        parameters[tensor.dtype] = parameters.get(tensor.dtype, 0) + tensor.elements
    pooled = {dtype: (pool.counted.histogram, pool.counted.runs) for dtype, pool in found.pools.items()}
    judgements = {dtype: judge(values, runs) for dtype, (values, runs) in pooled.items()}
    lineage = conclude([Judged(r.tensor.dtype, r.tensor.elements, r.judgement) for r in read], judgements, parameters)
    exponents: dict[int, int] = {}
    for values, _ in pooled.values():
        for exponent, count in values.exponents().items():
            exponents[exponent] = exponents.get(exponent, 0) + count
    overall = extremes(read, exact)
    intervals = found.intervals()
    representable = whole.representable
    if intervals:  # the estimate weighs strata by their size; the plain share would not
        shares = {name: intervals[f"representable.{name}"].estimate for name in type(representable).model_fields if _has(intervals, name)}
        representable = representable.model_copy(update=shares)
    aggregated = len(results) > limits.REPORT_TENSORS
    rows = aggregate_rows(results) if aggregated else [tensor_row(r) for r in results]
    resolved = {"model": checkpoint.ref, "commit": checkpoint.commit, "mode": request.mode}
    resolved |= request.model_dump(include=set(_OPTIONS), exclude_defaults=True)
    if device != "cpu":
        resolved["device"] = device
    report = DtypeReport(
        id=content_id("dtype", ANALYSIS_VERSION, resolved),
        analysis_version=ANALYSIS_VERSION,
        request=request.model_copy(update={"model": checkpoint.ref}),
        checkpoint=_facts(checkpoint),
        mode=request.mode,
        bytes_read=done.nbytes,
        values_read=whole.values_read,
        requests=done.requests,
        selected_tensors=len(chosen.parameters),
        selected_parameters=sum(t.elements for t in chosen.parameters),
        storage=_storage(chosen.parameters),
        config_dtype=_config_dtype(checkpoint.config),
        quantization_config=_quantization(checkpoint.config),
        extremes=overall,
        counts=whole.counts,
        representable=representable,
        intervals=intervals,
        lineage=lineage,
        training=infer_training(_label(checkpoint.ref), lineage, _base_extremes(read, exact), parameters),
        fp16_risk=fp16_risk(whole.counts, overall, whole.nonzero, not exact),
        exponents=tuple(Exponent(exponent=e, count=exponents[e]) for e in sorted(exponents)),
        layers=tuple(layer_rows(results)),
        tensors=tuple(rows),
        tensors_aggregated=aggregated,
        buffers=tuple(BufferRow(name=t.name, dtype=t.dtype, shape=t.shape) for t in chosen.buffers[: limits.REPORT_TENSORS]),
        notes=tuple(_notes(checkpoint, chosen, exact, aggregated)),
        timing=done.timing(),
        environment=environment(device, ("numpy", "numba", "torch", "huggingface_hub", "pydantic")),
    )
    if aggregated:
        report.keep_full_rows(lambda: [tensor_row(r) for r in results])
    return report


def _has(intervals: dict[str, Interval], name: str) -> bool:
    return f"representable.{name}" in intervals


def _base_extremes(read: Sequence[TensorResult], exact: bool) -> Extremes:
    """Extremes of the base model: without the LM head, as in the reference table."""
    return extremes([r for r in read if r.tensor.role != "head"] or read, exact)


def _facts(checkpoint: Checkpoint) -> CheckpointFacts:
    return CheckpointFacts(
        ref=checkpoint.ref,
        commit=checkpoint.commit,
        parameters=checkpoint.parameters,
        bytes=checkpoint.nbytes,
        files=len(checkpoint.files),
        tensors=len(checkpoint.tensors),
        public=checkpoint.public,
        quantization=checkpoint.quantization,
    )


def _storage(parameters: Sequence[Tensor]) -> tuple[Storage, ...]:
    by_dtype: dict[str, list[Tensor]] = {}
    for tensor in parameters:
        by_dtype.setdefault(tensor.dtype, []).append(tensor)
    rows = [
        Storage(dtype=dtype, tensors=len(each), parameters=sum(t.elements for t in each), bytes=sum(t.nbytes for t in each))
        for dtype, each in by_dtype.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.bytes))


def _config_dtype(config: dict[str, object] | None) -> str | None:
    """What config.json says, at its top or in its text part; short, for it is somebody else's text."""
    for part in (config or {}, (config or {}).get("text_config")):
        for key in ("dtype", "torch_dtype"):
            value = part.get(key) if isinstance(part, dict) else None
            if isinstance(value, str):
                return value[:40]
    return None


def _quantization(config: dict[str, object] | None) -> dict[str, str] | None:
    """The plain entries of config.json's quantization_config, as short strings."""
    stated = (config or {}).get("quantization_config")
    if not isinstance(stated, dict):
        return None
    plain = {str(k)[:40]: str(v)[:80] for k, v in stated.items() if isinstance(v, str | int | float | bool)}
    return dict(list(plain.items())[:20])


def _label(ref: str) -> Label | None:
    if ref.startswith("sample:"):
        from analyzers.language_models.samples import SAMPLES

        sample = SAMPLES.get(ref.removeprefix("sample:"))
        return Label(sample.precision, "trained for this project: see the sample's description") if sample else None
    return labels().get(ref.lower())


def _notes(checkpoint: Checkpoint, chosen: _Chosen, exact: bool, aggregated: bool) -> Iterator[str]:
    yield from checkpoint.notes
    if not exact:
        yield (
            "Quick mode read a sample: extremes and counts are what was seen in it, norms of tensors read in part are scaled up, "
            "shares are estimates with 95 % intervals."
        )
    others = [t for t in chosen.parameters if t.dtype not in FLOAT_DTYPES]
    if others:
        kinds = ", ".join(sorted({t.dtype for t in others}))
        yield f"{len(others):,} tensors ({kinds}) hold no plain floats and are left out of all statistics."
    scaled = [t for t in chosen.floats if t.dtype.startswith("F8_")]
    if scaled:
        yield f"{len(scaled):,} fp8 tensors are described by their stored values, before any scale is applied."
    if chosen.buffers:
        yield f"{len(chosen.buffers):,} stored tensors are buffers, not parameters: listed by name and left out of everything else."
    if aggregated:
        yield f"More than {limits.REPORT_TENSORS:,} tensors: rows are aggregated by layer, role and dtype."
