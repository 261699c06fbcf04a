"""Measures update sparsity: checkpoints -> pairs of tensors -> stream -> counts -> shares, rows, trajectory -> report."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from functools import cached_property
from time import perf_counter

from analyzers.checkpoints import (
    Access,
    Checkpoint,
    Chunk,
    Matching,
    Plan,
    SharedPlan,
    Span,
    base_coverage,
    canonical_names,
    check_side,
    open_sides,
    stream,
    tuned_coverage,
)
from analyzers.core.coverage import Coverage
from analyzers.core.records import Interval
from analyzers.core.report import Timing, check_size, content_id, environment, first_rows
from analyzers.core.request import Progress
from analyzers.numerics.device import Device, choose_device
from analyzers.update_sparsity import answers
from analyzers.update_sparsity.adapters import AdapterMeter, first_modules, merge_of
from analyzers.update_sparsity.collect import Collector
from analyzers.update_sparsity.count import Comparer, Comparing, Counted
from analyzers.update_sparsity.decomposed_matrices import Matrices, decompose
from analyzers.update_sparsity.report import ANALYSIS_VERSION, Probe, SparsityReport, SparsityRequest, Spectrum, Swallowed, TrajectoryRow
from analyzers.update_sparsity.rows import energy, layer_rows, magnitudes, role_rows, tensor_row, ulp_histogram, unmatched
from analyzers.update_sparsity.side_names import check_alignment, side_names
from analyzers.update_sparsity.statistics import total, weigh_pairs


def analyze(request: SparsityRequest, access: Access | None = None, *, largest: int | None = None) -> Iterator[Progress | SparsityReport]:
    """Compare one base with one or several tuned checkpoints; yields progress in bytes, then the report.

    access: what may be read; by default public Hub repositories and samples. largest: refuse to read more bytes of weights, of all
    checkpoints together, than this (the page's limit). Raises MantissaError; if one side is at fault, its sentence begins with that side.
    Closing the generator cancels the reads and closes every checkpoint.
    """
    start = perf_counter()
    access = access or Access()
    device = device_of(request, access)
    yield Progress(done=0, total=0, unit="bytes", note="reading headers")
    with ExitStack() as stack:
        texts = [request.base, *request.tuned]
        sides = yield from open_sides(texts, side_names(len(request.tuned)), access, request.subfolder, into_first=True)
        for side in sides:
            stack.enter_context(side)
        comparison = Comparison(request, sides, device, largest)
        yield from comparison.count()
        yield from comparison.look_further()
        yield comparison.report(start)


def device_of(request: SparsityRequest, access: Access) -> Device:
    """Choose the device that counts the pairs of a request. Raises as `choose_device` does."""
    in_place = request.mode == "exact" and len(request.tuned) == 1
    return choose_device(request.device, access.devices([request.base, *request.tuned]) if in_place else ())


class Comparison:
    """Comparable checkpoints, the plan of reads, and the results: counts, bytes and seconds.

    largest: refuse to read more bytes than this. matching: of the sides, if others use it too; shared: what is read, if that fits, which
    ``is_shared`` says then. nbytes, requests: what was read so far, by others too where they count the same pass.
    """

    def __init__(
        self,
        request: SparsityRequest,
        sides: Sequence[Checkpoint],
        device: Device,
        largest: int | None,
        matching: Matching | None = None,
        shared: SharedPlan | None = None,
    ) -> None:
        self._request, self._sides, self._device = request, sides, device
        self._names = side_names(len(sides) - 1)
        for side, name in zip(sides, self._names, strict=True):
            check_side(side, name, bool(request.include))
        whole = request.mode == "exact"
        matching = matching or Matching(request.include, request.exclude)
        self._alignment = matching.align(sides, self._names, whole, by_values=not _of_base(sides))
        check_alignment(sides, self._names, self._alignment)
        budget = request.budget if _of_base(sides) else matching.remaining_budget(request.budget, sides)
        held = device != "cpu" and all(getattr(side.repository, "device", "cpu") == device for side in sides)
        self._left_on = device if held and whole and len(sides) == 2 else ""  # where tensors in memory are counted in place
        self._counted_on = "cpu" if held else device  # what is not
        plan = shared.of(self._alignment) if shared is not None and device == "cpu" else None
        self.is_shared = plan is not None
        self._plan = plan or Plan.of(sides, self._alignment.sides, request.mode, budget, request.seed, bool(self._left_on))
        self._matrices = Matrices.of(self._alignment) if request.spectral else None
        self._collector = Collector(self._alignment, self._plan, len(sides) - 1)
        merge = merge_of(sides[0], sides[-1])
        self._adapters = AdapterMeter(merge, self._plan) if merge is not None else None
        self._comparer = Comparer(len(sides) - 1, request.eta, self._counted_on, self._plan.exact)
        self._spectra: list[Spectrum] = []
        self.nbytes, self.requests, self._seconds = 0, 0, 0.0
        check_size(self.planned, largest)

    @cached_property
    def planned(self) -> int:
        """Bytes to read, of all checkpoints together."""
        return self._plan.nbytes + (self._matrices.nbytes if self._matrices else 0)

    def begin(self, span: Span) -> "Counting":
        """Begin to count a span of the plan; to be continued by the same thread."""
        return Counting(self._comparer.begin(span), span, self._adapters)

    def add(self, span: Span, counted: Counted) -> None:
        """Add one finished span."""
        self._collector.add(span, counted)

    def add_read(self, nbytes: int, requests: int, seconds: float) -> None:
        """Add to what was read: a pass that others counted too."""
        self.nbytes, self.requests, self._seconds = self.nbytes + nbytes, self.requests + requests, self._seconds + seconds

    def count(self) -> Iterator[Progress]:
        """Read according to the plan and count; yields progress."""
        yield self._progress(0, "reading weights")
        reading = perf_counter()

        def work(span: Span, chunks: Iterator[Chunk]) -> Counted:
            counting = self.begin(span)
            for chunk in chunks:
                counting.add(chunk)
            return counting.take()

        with closing(stream(self._sides, self._plan.spans, work, self._names, self._left_on, self._counted_on)) as steps:  # type: ignore[type-var]
            for step in steps:
                if step.span is not None and step.result is not None:
                    self.add(step.span, step.result)
                self.nbytes, self.requests, self._seconds = step.bytes_read, step.requests, perf_counter() - reading
                yield self._progress(step.bytes_read, "reading weights")

    def look_further(self) -> Iterator[Progress]:
        """Decompose matrices if that was asked for; yields progress."""
        if self._matrices is None:
            return
        nbytes, requests, reading = self.nbytes, self.requests, perf_counter() - self._seconds
        for step in decompose(self._matrices, self._sides, self._names, self._device):
            if step.spectrum is not None:
                self._spectra.append(step.spectrum)
            self.nbytes, self.requests = nbytes + step.bytes_read, requests + step.requests
            self._seconds = perf_counter() - reading
            yield self._progress(self.nbytes, f"decomposing matrices, {step.done} of {len(self._matrices.spans)}")

    def _progress(self, done: int, note: str) -> Progress:
        return Progress(done=done, total=self.planned, unit="bytes", note=note)

    def report(self, start: float) -> SparsityReport:
        """Build the report from the results."""
        request, plan, collector, weights = self._request, self._plan, self._collector, self._plan.weights()
        read = self._comparer.tables() if plan.exact else collector.tables(weighed=False)  # over the pairs read
        tables = read if plan.exact else collector.tables(weighed=True)
        pairs = collector.pairs()
        whole, counts = weigh_pairs(pairs, weights), total(pair.counts for pair in pairs)
        estimates = collector.estimates(tables)
        interval = estimates.named.get("sparsity")
        sparsity = interval.estimate if interval is not None else whole.sparsity
        same_dtypes = all(pair.base.dtype == pair.tuned.dtype for pair in pairs)
        swallowed = Swallowed(count=counts.swallowed, share=whole.swallowed, meaningful=same_dtypes)
        parameters = sum(pair.parameters for pair in pairs)
        fraction = 1 - interval.estimate if interval is not None else whole.update_fraction
        tensors, found, coverage = list(map(tensor_row, pairs)), self._alignment.unmatched[-1], self._coverage()
        facts = [side.facts() for side in self._sides]
        named = [{"ref": side.ref, "commit": side.commit} for side in self._sides]
        canonical = canonical_names([request.base, *request.tuned], self._sides)
        resolved = {"base": named[0], "tuned": named[1:]} | request.resolved(self._device)
        same_files = facts[0].commit == facts[-1].commit
        answer = answers.answer(counts, parameters, sparsity, swallowed, interval, estimates.blocks, coverage, found, same_files)
        advice = answers.advice(answer, facts[-1].ref, fraction, swallowed, interval, found)
        left_out = self._matrices.left_out if self._matrices else 0
        notes = list(answers.notes(self._sides, self._names, self._alignment, pairs, request.eta, not plan.exact, left_out))
        adapter = self._adapters.adapter() if self._adapters else None
        if adapter is not None and self._adapters is not None:
            answer = answers.of_adapter(adapter)
            advice = answers.advice_on(adapter, answer, facts[-1].ref)
            notes += answers.notes_on(adapter, facts[0].ref, self._adapters.stated_bases, plan.exact)
        report = SparsityReport(
            id=content_id("sparsity", ANALYSIS_VERSION, resolved),
            analysis_version=ANALYSIS_VERSION,
            request=request.model_copy(update={"base": canonical[0], "tuned": tuple(canonical[1:])}),
            base=facts[0],
            tuned=tuple(facts[1:]),
            mode=request.mode,
            bytes_read=self.nbytes,
            requests=self.requests,
            values_compared=counts.values,
            sparsity=sparsity,
            num_changed=counts.changed,
            num_unchanged=counts.values - counts.changed,
            total_parameters=parameters,
            update_fraction=fraction,
            eta=request.eta,
            probe=Probe(sparsity=whole.probe_sparsity, num_changed=counts.probe),
            swallowed=swallowed,
            interval=interval,
            intervals={path: each for path, each in estimates.named.items() if path != "sparsity"},
            blocks=estimates.blocks,
            roles=role_rows(pairs, weights),
            layers=tuple(layer_rows(pairs, weights, estimates.layers)),
            tensors=tuple(first_rows(tensors)),
            magnitudes=magnitudes(read, tables),
            ulp_histogram=ulp_histogram(read, tables),
            energy=energy(tables),
            unmatched=unmatched(found),
            trajectory=tuple(self._trajectory(collector, estimates.trajectory)),
            overlap=tuple(collector.trajectory.overlaps(weights)) if collector.trajectory else (),
            spectral=tuple(self._spectra),
            answer=answer,
            advice=advice,
            notes=tuple(notes),
            adapter=adapter and first_modules(adapter),
            coverage=coverage,
            timing=Timing.since(start, self.nbytes, self._seconds),
            environment=environment(self._device, ("numpy", "numba", "torch", "huggingface_hub", "pydantic")),
        )
        if len(tensors) > len(report.tensors):
            report.keep_rows("tensors", lambda: tuple(tensors))
        if adapter != report.adapter:
            report.keep_rows("adapter", lambda: adapter)
        return report

    def _trajectory(self, collector: Collector, intervals: Sequence[Interval | None]) -> list[TrajectoryRow]:
        if collector.trajectory is None:
            return []
        tuned = self._sides[1:]
        columns = [[(group.base, group.tuned[i]) for group in self._alignment.groups] for i in range(len(tuned))]
        return collector.trajectory.rows(
            [side.facts() for side in tuned],
            [sum(after.elements for _, after in column if after is not None) for column in columns],
            [all(after is None or before.dtype == after.dtype for before, after in column) for column in columns],
            intervals,
            self._plan.weights(),
        )

    def _coverage(self) -> tuple[Coverage, ...]:
        """Report the coverage of the base, as compared with the last tuned checkpoint, followed by that of each tuned checkpoint."""
        filters = self._request.include, self._request.exclude
        tuned = [tuned_coverage(side, self._alignment, column, *filters) for column, side in enumerate(self._sides[1:])]
        return base_coverage(self._sides[0], self._alignment, [len(tuned) - 1], *filters), *tuned


class Counting:
    """The counts of one span in progress, with what ``adapters`` change in it, if there are any."""

    def __init__(self, comparing: Comparing, span: Span, adapters: AdapterMeter | None) -> None:
        self._comparing, self._span, self._adapters = comparing, span, adapters

    def add(self, chunk: Chunk) -> None:
        """Count a chunk."""
        if self._adapters is not None:
            self._adapters.watch(self._span, chunk)
        self._comparing.add(chunk)

    def take(self) -> Counted:
        """Return the counts, once all chunks were added."""
        return self._comparing.take()


def _of_base(sides: Sequence[Checkpoint]) -> bool:
    """Return whether all tuned sides are the base with adapters, in its layout, so that no values need to show what corresponds."""
    base, names = sides[0], [tensor.name for tensor in sides[0].tensors]
    made = [(side.parts[0][0].ref, side.parts[0][0].commit, [tensor.name for tensor in side.tensors]) for side in sides[1:]]
    return all(each == (base.ref, base.commit, names) for each in made) and all(side.parts[0][0] is not side for side in sides[1:])
