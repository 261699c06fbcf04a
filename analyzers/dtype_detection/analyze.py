"""Dtype detection: checkpoint -> stream -> counts -> statistics, lineage, training, risk -> report."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from time import perf_counter
from types import TracebackType
from typing import Self

from analyzers import limits
from analyzers.base import Progress, Timing, content_id, environment
from analyzers.checkpoints import Access, Checkpoint, Chunk, LocalRepository, Span, open_checkpoint, stream
from analyzers.dtype_detection.collect import Chosen, Collector, Partial, Plan, Shares, in_order, intervals, merge, storage_rows
from analyzers.dtype_detection.count import Counted, Counter
from analyzers.dtype_detection.lineage import Judged, conclude, judge
from analyzers.dtype_detection.report import ANALYSIS_VERSION, BufferRow, DtypeReport, DtypeRequest, Exponent, Extremes
from analyzers.dtype_detection.statistics import (
    UNREAD,
    TensorResult,
    aggregate_rows,
    extremes,
    layer_rows,
    share_counts,
    tensor_row,
    together,
)  # fmt: skip
from analyzers.dtype_detection.training import Label, infer_training, labels
from analyzers.dtype_detection.words import LEAST_EXPONENT, fp16_risk, notes, unread
from analyzers.errors import LimitExceeded
from analyzers.formatting import size
from analyzers.numerics.device import Device, choose_device

_OPTIONS = ("budget", "include", "exclude", "subfolder", "seed")


def analyze(request: DtypeRequest, access: Access | None = None, *, largest: int | None = None) -> Iterator[Progress | DtypeReport]:
    """Inspect one checkpoint; yields progress in bytes, then the report.

    access: what may be read; by default public Hub repositories and samples. largest: refuse to read more bytes of
    weights than this (the page's limit). Raises MantissaError. Closing the generator cancels the reads.
    """
    yield Progress(done=0, total=0, unit="bytes", note="reading headers")
    with Inspection(request, access, largest=largest) as inspection, closing(inspection.count()) as steps:
        for step in steps:
            yield step if isinstance(step, Progress) else inspection.report([step])


class Inspection:
    """A checkpoint, opened, and what will be read of it: counted in parts, here or by other processes, then reported on.

    Where the same request is opened on the same commit, part k of n is the same spans, so that parts counted in
    different processes make one report, bit for bit the one of a single part. Close it, or use it in a ``with`` statement.

    device: overrides what the request would choose; threads: at most so many reads and counts at once, where the
    source is a local file. The rest is as in `analyze`.
    """

    def __init__(
        self,
        request: DtypeRequest,
        access: Access | None = None,
        *,
        largest: int | None = None,
        device: Device | None = None,
        threads: int | None = None,
    ) -> None:
        self._start = perf_counter()
        self._request = request
        self._device = device or choose_device(request.device)
        access = access or Access()
        checkpoint = open_checkpoint(request.model, access, subfolder=request.subfolder)
        try:
            if threads is not None and isinstance(checkpoint.repository, LocalRepository):
                checkpoint = replace(checkpoint, parallel_reads=max(1, min(threads, checkpoint.parallel_reads)))
            self._checkpoint = checkpoint
            self._chosen = Chosen.of(checkpoint, request)
            self._plan = Plan.of(checkpoint, self._chosen.floats, request)
            if largest is not None and self._plan.nbytes > largest:
                raise LimitExceeded(
                    f"This would read {size(self._plan.nbytes)}; the limit here is {size(largest)}. Use quick mode, or the command line."
                )
        except BaseException:
            checkpoint.close()
            raise

    @property
    def ref(self) -> str:
        """Of the checkpoint, canonical, without revision."""
        return self._checkpoint.ref

    @property
    def commit(self) -> str:
        """Of the checkpoint."""
        return self._checkpoint.commit

    @property
    def nbytes(self) -> int:
        """Bytes of weights that all parts together read."""
        return self._plan.nbytes

    def parts(self, nbytes: int) -> int:
        """The number of parts of about ``nbytes``; 1 in quick mode."""
        return 1 if self._request.mode == "quick" else max(1, min(len(self._plan.spans), -(-self.nbytes // nbytes)))

    def count(self, part: int = 0, parts: int = 1) -> Generator[Progress | Partial, None, None]:
        """Count part number ``part`` of ``parts``; yields progress in bytes, then the counts. Closing it cancels the reads."""
        found = Collector(self._plan, part, parts)
        quick = self._plan.strata is not None
        count = Counter(self._device, every_run=quick)
        total = self._plan.nbytes if parts == 1 else sum(span.nbytes for span in found.spans)

        def work(span: Span, chunks: Iterator[Chunk]) -> tuple[Counted, Shares | None]:
            counted = count(span, chunks)
            return counted, share_counts(counted.histogram) if quick else None

        yield Progress(done=0, total=total, unit="bytes", note="reading weights")
        partial, reading = found.partial, perf_counter()
        with closing(stream(self._checkpoint, found.spans, work)) as steps:  # type: ignore[type-var]
            for step in steps:
                if step.span is not None and step.result is not None:
                    found.add(step.span, *step.result)
                partial.nbytes, partial.requests, partial.seconds = step.bytes_read, step.requests, perf_counter() - reading
                yield Progress(done=step.bytes_read, total=total, unit="bytes", note="reading weights")
        yield found.finish()

    def report(self, partials: Iterable[Partial]) -> DtypeReport:
        """The report from all parts, in any order; they are used up. Raises ValueError where they are not each there once."""
        whole = merge(self._chosen.floats, partials)
        return _report(self._checkpoint, self._request, self._device, self._chosen, self._plan, whole, self._start)

    def close(self) -> None:
        """Free files and connections. Idempotent; no part may be under way."""
        self._checkpoint.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _report(
    checkpoint: Checkpoint, request: DtypeRequest, device: str, chosen: Chosen, plan: Plan, found: Partial, start: float
) -> DtypeReport:
    exact = plan.population is None
    results = in_order(found, chosen.floats)
    read = [r for r in results if r.statistics.values_read]
    whole = together([r.statistics for r in read])
    parameters: dict[str, int] = {}
    for tensor in chosen.parameters:
        if tensor.has_values or not tensor.bits:  # blocks of GGUF are weights too, though their values are not looked at
            parameters[tensor.dtype] = parameters.get(tensor.dtype, 0) + tensor.elements
    pooled = {dtype: (pool.histogram, pool.runs) for dtype, pool in found.pools.items()}
    judgements = {dtype: judge(values, runs) for dtype, (values, runs) in pooled.items() if values.dtype == dtype}
    judged = [Judged(r.tensor.dtype, r.tensor.elements, r.judgement) for r in read]
    judged += [Judged(t.dtype, t.elements, UNREAD) for t in chosen.parameters if not t.has_values and not t.bits]
    lineage = conclude(judged, judgements, parameters)
    exponents: dict[int, int] = {}
    for values, _ in pooled.values():
        for found_at, count in values.exponents().items():
            exponent = max(found_at, LEAST_EXPONENT)
            exponents[exponent] = exponents.get(exponent, 0) + count
    overall = extremes(read, exact)
    estimates = intervals(plan, found)
    representable = whole.representable
    if estimates:  # they weigh strata by their size; the plain share would not
        known = {name: estimates.get(f"representable.{name}") for name in type(representable).model_fields}
        shares = {name: interval.estimate for name, interval in known.items() if interval is not None}
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
        checkpoint=checkpoint.facts(),
        mode=request.mode,
        bytes_read=found.nbytes,
        values_read=whole.values_read,
        requests=found.requests,
        selected_tensors=len(chosen.parameters),
        selected_parameters=sum(t.elements for t in chosen.parameters),
        storage=storage_rows(chosen),
        config_dtype=_config_dtype(checkpoint.config),
        quantization_config=_quantization(checkpoint.config),
        extremes=overall,
        counts=whole.counts,
        representable=representable,
        intervals=estimates,
        lineage=lineage,
        training=infer_training(_label(checkpoint.ref), lineage, _base_extremes(read, exact), parameters),
        fp16_risk=fp16_risk(whole.counts, overall, whole.nonzero, not exact, *unread(chosen)),
        exponents=tuple(Exponent(exponent=e, count=exponents[e]) for e in sorted(exponents)),
        layers=tuple(layer_rows(results)),
        tensors=tuple(rows),
        tensors_aggregated=aggregated,
        buffers=tuple(BufferRow(name=t.name, dtype=t.dtype, shape=t.shape) for t in chosen.buffers[: limits.REPORT_TENSORS]),
        notes=tuple(notes(checkpoint, chosen, exact, aggregated, exponents.get(LEAST_EXPONENT, 0), overall.abs_max)),
        timing=_timing(found, start),
        environment=environment(device, ("numpy", "numba", "torch", "huggingface_hub", "pydantic")),
    )
    if aggregated:
        report.keep_full_rows(lambda: [tensor_row(r) for r in results])
    return report


def _timing(found: Partial, start: float) -> Timing:
    speed = found.nbytes / found.seconds if found.seconds > 0 else None
    return Timing(seconds=perf_counter() - start, reading_seconds=found.seconds, bytes_per_second=speed)


def _base_extremes(read: Sequence[TensorResult], exact: bool) -> Extremes:
    """Extremes of the base model: without the LM head, as in the reference table."""
    return extremes([r for r in read if r.tensor.role != "head"] or read, exact)


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
