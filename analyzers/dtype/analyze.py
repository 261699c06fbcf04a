"""Detects dtypes: checkpoint -> stream -> counts -> statistics, lineage, training, risk -> report."""

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from analyzers.checkpoints import (
    Access,
    Chunk,
    LocalRepository,
    MergedCheckpoint,
    Plan,
    Span,
    account_notes,
    open_checkpoint,
    read_coverage,
    repeated,
    states_ties,
    stream,
)
from analyzers.checkpoints.model_card import base_models
from analyzers.checkpoints.reading.stream import Step
from analyzers.checkpoints.stated_dtype import plain_dtype
from analyzers.core import limits
from analyzers.core.report import Timing, check_size, content_id, environment, first_rows
from analyzers.core.request import Progress
from analyzers.dtype.answers import advice, answer, codes_without_scale
from analyzers.dtype.collect import (
    Chosen,
    Collector,
    Shares,
    by_dtype,
    in_order,
    intervals,
    pools,
    storage_rows,
    unseen_share,
)  # fmt: skip
from analyzers.dtype.count import Counted, SpanCounter
from analyzers.dtype.labelled_models import Label, labels
from analyzers.dtype.lineage import conclude, judge, on_grids_together
from analyzers.dtype.quantization_headroom import Errors, Slabs, headroom, measure
from analyzers.dtype.quantization_headroom import plan as plan_slabs
from analyzers.dtype.report import ANALYSIS_VERSION, DtypeReport, DtypeRequest, Facts
from analyzers.dtype.rows import BufferRow, Exponent, Untouched
from analyzers.dtype.statistics import (
    FORMATS,
    UNREAD,
    Statistics,
    TensorResult,
    extremes,
    fp16_risk,
    grid_rows,
    layer_rows,
    share_counts,
    tensor_row,
)  # fmt: skip
from analyzers.dtype.trainability import entropy, movable
from analyzers.dtype.training_precision import infer_training
from analyzers.grids.first_blocks import first_blocks
from analyzers.grids.search import may_be_on_grid, promising
from analyzers.numerics import BitHistogram
from analyzers.numerics.device import Device, choose_device

# Below twice the least, the bins of a histogram do not tell the exponent of fp32.
_LEAST_EXPONENT = -134
# Models of a card's base_model that are looked up
_BASES = 4
# Steps of the progress
_STEPS = 500


def analyze(request: DtypeRequest, access: Access | None = None, *, largest: int | None = None) -> Iterator[Progress | DtypeReport]:
    """Inspect one checkpoint; yields progress in bytes, then the report.

    access: what may be read; by default public Hub repositories and samples. largest: refuse to read more bytes of
    weights than this (the page's limit). Raises MantissaError. Closing the generator cancels the reads.
    """
    yield Progress(done=0, total=0, unit="bytes", note="reading headers")
    with Inspection(request, access, largest=largest) as inspection:
        report = yield from inspection.run()
        yield report


class Inspection:
    """An open checkpoint and the plan of its reads. Close it, or use it in a ``with`` statement.

    device: overrides that of the request; threads: at most so many reads and counts at once, if the source is a local file; the other
    arguments as in `analyze`. results: of every tensor, once there is a report.
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
        self.results: list[TensorResult] = []
        self._start = perf_counter()
        self._request = request
        access = access or Access()
        self._device: Device = device or choose_device(request.device, access.devices([request.model]) if request.mode == "exact" else ())
        checkpoint = open_checkpoint(request.model, access, subfolder=request.subfolder)
        try:
            if threads is not None and isinstance(checkpoint.repository, LocalRepository):
                checkpoint = replace(checkpoint, parallel_reads=max(1, min(threads, checkpoint.parallel_reads)))
            self._checkpoint = checkpoint
            self._chosen = Chosen.of(checkpoint, request)
            held = self._device != "cpu" and getattr(checkpoint.repository, "device", "cpu") == self._device
            in_place = held and request.mode == "exact"
            self._device = "cpu" if held and not in_place else self._device
            self._left_on = self._device if in_place else ""  # where tensors in memory are counted in place
            self._tensors = {tensor.name: tensor for tensor in self._chosen.floats}
            groups = [(each,) for each in self._chosen.floats]
            self._plan = Plan.of([checkpoint], groups, request.mode, request.budget, request.seed, in_place)
            budget = None if self._plan.exact else request.budget
            self._slabs = plan_slabs(self._chosen.floats, request.quantize, budget, request.seed) if request.quantize else Slabs([])
            self._headroom: dict[str, Any] = {}
            check_size(self.nbytes, largest)
        except BaseException:
            checkpoint.close()
            raise

    @property
    def nbytes(self) -> int:
        """Bytes of weights to read."""
        return self._plan.nbytes + self._slabs.nbytes

    def run(self) -> Generator[Progress, None, DtypeReport]:
        """Read everything; yields progress in bytes and returns the report. Closing it cancels the reads."""
        yield Progress(done=0, total=self.nbytes, unit="bytes", note="reading weights")
        found, spans = Collector(self._plan), self._plan.spans
        for dtype in {span.tensor.counted_as for span in spans}:
            share_counts(BitHistogram(dtype))  # makes its tables once, which all threads would make at the same time, with 40 MB each
        first, others = first_blocks(spans, self._request.seed)
        on_grids = yield from self._count(found, first, grids=True)
        yield from self._count(found, others, grids=on_grids)
        if self._request.quantize:
            yield from self._quantize(found)
        return self._report(found)

    def _count(self, found: Collector, spans: Sequence[Span], grids: bool) -> Generator[Progress, None, bool]:
        """Count spans; yields progress. grids: whether to search them for grids. Returns whether any of them may be on one."""
        counted_on = "cpu" if self._left_on else self._device
        count, quick = SpanCounter(counted_on, grids), not self._plan.exact

        def work(span: Span, chunks: Iterator[Chunk]) -> tuple[Counted, Shares | None]:
            counted = count(span, chunks)
            return counted, share_counts(counted.histogram) if quick else None

        on_grids = False

        def take(span: Span, result: tuple[Counted, Shares | None]) -> None:
            nonlocal on_grids
            on_grids |= promising(result[0].grids)
            found.grid_blocks += grids and may_be_on_grid(span.tensor)
            found.add(self._tensors[span.tensor.name], span, *result)

        steps = stream([self._checkpoint], spans, work, (), self._left_on, counted_on)
        yield from self._read(found, steps, take, "reading weights")
        return on_grids

    def _quantize(self, found: Collector) -> Generator[Progress, None, None]:
        """Read the matrices again and round them to the requested formats, after everything was counted."""
        largest = {name: result.statistics.abs_max for name, result in found.results.items()}
        errors: list[tuple[Span, Errors]] = []
        steps = measure(self._checkpoint, self._slabs, self._request.quantize, largest)
        yield from self._read(found, steps, lambda *each: errors.append(each), "rounding to other formats")
        self._headroom = headroom(errors, self._slabs, self._request.quantize)

    def _read(
        self, found: Collector, steps: Iterator[Step[Any]], take: Callable[[Span, Any], None], note: str
    ) -> Generator[Progress, None, None]:
        """Pass the result of each span to ``take``, and add up what was read; yields progress."""
        reading = perf_counter() - found.seconds
        nbytes, requests, shown = found.nbytes, found.requests, found.nbytes
        with closing(steps):  # type: ignore[type-var]
            for step in steps:
                if step.span is not None and step.result is not None:
                    take(step.span, step.result)
                found.nbytes, found.requests = nbytes + step.bytes_read, requests + step.requests
                if step.span is None or (found.nbytes - shown) * _STEPS >= self.nbytes:
                    shown = found.nbytes
                    yield Progress(done=found.nbytes, total=self.nbytes, unit="bytes", note=note)
        found.seconds = perf_counter() - reading
        yield Progress(done=found.nbytes, total=self.nbytes, unit="bytes", note=note)

    def _report(self, found: Collector) -> DtypeReport:
        checkpoint, request, chosen, exact = self._checkpoint, self._request, self._chosen, self._plan.exact
        self.results = results = in_order(found, chosen.floats)
        read = [r for r in results if r.statistics.values_read]
        whole = Statistics.together([r.statistics for r in read])
        parameters: dict[str, int] = {}
        for tensor in chosen.parameters:
            if tensor.has_values or not tensor.bits:  # blocks of GGUF are weights too, though their values are not decoded
                parameters[tensor.read_as] = parameters.get(tensor.read_as, 0) + tensor.elements
        judged = [replace(r.judgement, dtype=r.tensor.read_as, parameters=r.tensor.elements) for r in read]
        judged += [replace(UNREAD, dtype=t.dtype, parameters=t.elements) for t in chosen.parameters if not t.has_values and not t.bits]
        whole_dtypes = by_dtype(found)
        pooled = {
            dtype: judge(each.histogram, on_grids_together([one for one in judged if one.dtype == dtype]), each.exact_rows)
            for dtype, each in whole_dtypes.items()
            if each.histogram.dtype == dtype
        }
        unseen = unseen_share(self._plan, found)
        on_grids = [(r.tensor, r.judgement.grid) for r in read]
        lineage = conclude(judged, pooled, parameters)
        exponents: Counter[int] = Counter()
        for each in whole_dtypes.values():
            for exponent, count in each.histogram.exponents().items():
                exponents[max(exponent, _LEAST_EXPONENT)] += count
        by_role = pools(chosen.floats, found)
        still = [(r.tensor, *r.untouched) for r in results if r.untouched]
        overall = extremes(read, exact)
        base = extremes([r for r in read if r.tensor.role != "head"] or read, exact)  # without the LM head, as in the reference table
        estimates = intervals(self._plan, found)
        shares = {  # estimates weigh strata by their size; the plain shares do not
            name: estimates[f"representable.{name}"].estimate for name in FORMATS if f"representable.{name}" in estimates
        }
        blocks = None if exact else len(found.blocks)
        facts = Facts(
            mode=request.mode,
            bytes_read=found.nbytes,
            values_read=whole.values_read,
            requests=found.requests,
            blocks=blocks,
            grid_blocks=found.grid_blocks,
            unseen=unseen,
            selected_tensors=len(chosen.parameters),
            selected_parameters=sum(t.elements for t in chosen.parameters),
            storage=storage_rows(chosen, checkpoint.sources if isinstance(checkpoint, MergedCheckpoint) else ()),
            config_dtype=_config_dtype(checkpoint.config or {}),
            quantization_config=_quantization(checkpoint.config or {}),
            extremes=overall,
            counts=whole.counts,
            representable=whole.representable.model_copy(update=shares),
            intervals=estimates,
            lineage=lineage,
            training=infer_training(
                _label(checkpoint.ref),
                base,
                (checkpoint.config or {}).get("model_type"),
                [t.name for t in chosen.floats],
                lineage,
                self._base_label(),
            ),
            fp16_risk=fp16_risk(whole.counts, whole.nonzero, chosen.undecoded),
            exponents=tuple(Exponent(exponent=e, count=exponents[e]) for e in sorted(exponents)),
            movable=movable(by_role, "bf16"),
            movable_fp16=movable([pool for pool in by_role if pool.dtype == "F16"], "fp16"),
            untouched=tuple(
                Untouched(name=tensor.name, role=tensor.role, value=value, share=share)
                for tensor, value, share in sorted(still, key=lambda each: -each[2])[: limits.REPORT_TENSORS]
            ),
            entropy=entropy(by_role),
            grids=grid_rows(on_grids),
            **self._headroom,
            layers=tuple(layer_rows(results)),
            tensors=tuple(map(tensor_row, first_rows(results))),
            buffers=tuple(BufferRow(name=t.name, dtype=t.dtype, shape=t.shape) for t in first_rows(chosen.buffers)),
        )
        coverage = (read_coverage(checkpoint, chosen.tensors, chosen.floats, self._copies()),)
        resolved = {"model": checkpoint.ref, "commit": checkpoint.commit} | request.resolved(self._device)
        report = DtypeReport(
            id=content_id("dtype", ANALYSIS_VERSION, resolved),
            analysis_version=ANALYSIS_VERSION,
            request=request.model_copy(update={"model": checkpoint.ref}),
            checkpoint=checkpoint.facts(),
            **dict(facts),
            answer=answer(facts),
            advice=advice(facts, checkpoint.ref, coverage),
            notes=(*account_notes(checkpoint, chosen.tensors), *codes_without_scale(results)),
            coverage=coverage,
            timing=Timing.since(self._start, found.nbytes, found.seconds),
            environment=environment(self._device, ("numpy", "numba", "torch", "huggingface_hub", "pydantic")),
        )
        if len(results) > limits.REPORT_TENSORS:
            report.keep_rows("tensors", lambda: [tensor_row(each) for each in results])
        return report

    def _base_label(self) -> tuple[str, Label] | None:
        """Return the labelled model that an adapter is merged into, or that the model card names as base_model, with its label."""
        checkpoint = self._checkpoint
        if _label(checkpoint.ref):
            return None
        bases = [checkpoint.merge.base.ref] if isinstance(checkpoint, MergedCheckpoint) else base_models(checkpoint, _BASES)
        return next(((name, label) for name in bases if (label := _label(name))), None)

    def _copies(self) -> set[str]:
        """Return the names of copies of tensors in other shards and, in exact mode or if the configuration ties it, of the embedding."""
        if not (self._plan.exact or states_ties(self._checkpoint.config) or self._checkpoint.replaced):
            return set()
        return {name for name, copy in repeated(self._checkpoint, self._plan.exact).items() if copy}

    def close(self) -> None:
        """Free files and connections. Idempotent."""
        self._checkpoint.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _config_dtype(config: dict[str, object]) -> str | None:
    """Return torch's name of the dtype that config.json states, at its top level or in its text part; cut, because it is untrusted text."""
    for part in (config, config.get("text_config")):
        for key in ("dtype", "torch_dtype"):
            value = part.get(key) if isinstance(part, dict) else None
            if isinstance(value, str):
                return plain_dtype(value)[:40]
    return None


def _quantization(config: dict[str, object]) -> dict[str, str] | None:
    """Return the scalar entries of config.json's quantization_config, as short strings."""
    stated = config.get("quantization_config")
    if not isinstance(stated, dict):
        return None
    plain = {str(k)[:40]: str(v)[:80] for k, v in stated.items() if isinstance(v, str | int | float | bool)}
    return dict(list(plain.items())[:20])


def _label(ref: str) -> Label | None:
    if ref.startswith("sample:"):
        from analyzers.language_models.samples import SAMPLES

        sample = SAMPLES.get(ref.removeprefix("sample:"))
        return Label(sample.precision, "built-in sample") if sample else None
    return labels().get(ref.lower())
