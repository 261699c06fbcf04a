"""Measures update sparsity: checkpoints -> pairs of tensors -> one pass -> shares, rows, trajectory -> report."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from time import perf_counter

from analyzers.checkpoints import Access, Checkpoint, Matching, canonical_names, check_side, open_sides
from analyzers.comparison.counting import Task
from analyzers.comparison.reading import Pass
from analyzers.comparison.sparsity import answers
from analyzers.comparison.sparsity.adapters import AdapterMeter, first_modules, merge_of
from analyzers.comparison.sparsity.changes import Changes
from analyzers.comparison.sparsity.decomposed_matrices import Matrices, decompose
from analyzers.comparison.sparsity.report import ANALYSIS_VERSION, Probe, SparsityReport, SparsityRequest, Spectrum
from analyzers.comparison.sparsity.side_names import check_alignment, side_names
from analyzers.comparison.sparsity.unmatched import turned, unmatched
from analyzers.core.report import Timing, content_id, environment, first_rows
from analyzers.core.request import Progress
from analyzers.numerics.device import Device, choose_device


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
        names = side_names(len(request.tuned))
        sides = yield from open_sides([request.base, *request.tuned], names, access, request.subfolder, into_first=True)
        for side in sides:
            stack.enter_context(side)
        for side, name in zip(sides, names, strict=True):
            check_side(side, name, bool(request.include))
        matching, last = Matching(request.include, request.exclude), len(sides) - 1
        by_values = not _of_base(sides)
        check_alignment(sides, names, matching.align(sides, names, request.mode == "exact", by_values))
        held = device != "cpu" and all(getattr(side.repository, "device", "cpu") == device for side in sides)
        in_place = device if held and request.mode == "exact" and last == 1 else ""
        merge = merge_of(sides[0], sides[-1])
        meter = AdapterMeter(merge) if merge is not None else None
        task = Task(
            sorted({(0, side) for side in range(1, last + 1)} | {(side, side + 1) for side in range(last)}),
            sized=[(0, last)],
            related=False,
            fit=False,
            overlaps=range(1, last + 1) if last > 1 else (),
            placed=last,
            eta=request.eta,
            device="cpu" if held else device,
        )
        watch = meter.watch if meter is not None else None
        found = Pass(request, sides, names, matching, task, largest=largest, device=in_place, by_values=by_values, watch=watch)
        yield from found.read()
        spectra = Spectra(found, [0, last], device) if request.spectral else None
        if spectra is not None:
            yield from spectra.read(found.nbytes)
        named = canonical_names([request.base, *request.tuned], sides)
        yield report_of(found, [*range(last + 1)], request, named, start, device, spectra, meter)


def device_of(request: SparsityRequest, access: Access) -> Device:
    """Choose the device that counts the pairs of a request. Raises as `choose_device` does."""
    in_place = request.mode == "exact" and len(request.tuned) == 1
    return choose_device(request.device, access.devices([request.base, *request.tuned]) if in_place else ())


class Spectra:
    """The matrices of two sides of a pass, decomposed on request. left_out: number of matrices that are not; nbytes: read for them."""

    def __init__(self, found: Pass, sides: Sequence[int], device: Device) -> None:
        self._found, self._sides, self._device = found, sides, device
        self._matrices = Matrices.of(found.alignment, sides)
        self.left_out, self.rows, self.nbytes = self._matrices.left_out, list[Spectrum](), 0

    def read(self, before: int) -> Iterator[Progress]:
        """Read and decompose; yields progress. before: bytes that were read."""
        sides, names = [self._found.sides[side] for side in self._sides], [self._found.names[side] for side in self._sides]
        total = before + self._matrices.nbytes
        for step in decompose(self._matrices, sides, names, self._device):
            if step.spectrum is not None:
                self.rows.append(step.spectrum)
            self.nbytes = step.bytes_read
            note = f"decomposing matrices, {step.done} of {len(self._matrices.spans)}"
            yield Progress(done=before + self.nbytes, total=max(total, before + self.nbytes), unit="bytes", note=note)


def report_of(
    found: Pass, order: Sequence[int], request: SparsityRequest, named: Sequence[str], start: float, device: Device,
    spectra: Spectra | None = None, meter: AdapterMeter | None = None,
) -> SparsityReport:  # fmt: skip
    """Build the report on the sides ``order`` of a pass: the base, and the tuned ones. named: their canonical references."""
    base, *tuned = order
    last, changes = tuned[-1], Changes(found.table, base, tuned)
    sides, facts = [found.sides[side] for side in order], [found.sides[side].facts() for side in order]
    counts, whole, estimates = changes.read, changes.whole, changes.estimates
    interval = estimates.named.get("sparsity")
    sparsity = interval.estimate if interval is not None else whole.unchanged()
    fraction = 1 - interval.estimate if interval is not None else whole.share("changed")
    swallowed, parameters = changes.swallowed(), changes.parameters
    unseen = found.alignment.unmatched[max(base, last) - 1]
    unseen = turned(unseen) if last == 0 else unseen
    coverage = (found.coverage(base, [last]), *(found.coverage(side, [base]) for side in tuned))
    commits = [{"ref": side.ref, "commit": side.commit} for side in sides]
    resolved = {"base": commits[0], "tuned": commits[1:]} | request.resolved(device)
    answer = answers.answer(changes, parameters, swallowed, interval, coverage, unseen, facts[0].commit == facts[-1].commit)
    advice = answers.advice(answer, facts[-1].ref, fraction, swallowed, interval, unseen)
    notes = list(
        answers.notes(sides, [found.names[side] for side in order], unseen, changes, request.eta, spectra.left_out if spectra else 0)
    )
    adapter = meter.adapter(found.plan) if meter is not None else None
    if adapter is not None and meter is not None:
        answer = answers.of_adapter(adapter)
        advice = answers.advice_on(adapter, answer, facts[-1].ref)
        notes += answers.notes_on(adapter, facts[0].ref, meter.stated_bases, found.plan.exact)
    tensors = list(changes.tensors())
    nbytes = found.nbytes + (spectra.nbytes if spectra is not None else 0)
    report = SparsityReport(
        id=content_id("sparsity", ANALYSIS_VERSION, resolved),
        analysis_version=ANALYSIS_VERSION,
        request=request.model_copy(update={"base": named[0], "tuned": tuple(named[1:])}),
        base=facts[0],
        tuned=tuple(facts[1:]),
        mode=request.mode,
        bytes_read=nbytes,
        requests=found.requests,
        values_compared=int(counts["values"]),
        sparsity=sparsity,
        num_changed=int(counts["changed"]),
        num_unchanged=int(counts["values"] - counts["changed"]),
        total_parameters=parameters,
        update_fraction=fraction,
        eta=request.eta,
        probe=Probe(sparsity=whole.unchanged("probe"), num_changed=int(counts["probe"])),
        swallowed=swallowed,
        interval=interval,
        intervals={path: each for path, each in estimates.named.items() if path != "sparsity"},
        blocks=estimates.blocks,
        roles=changes.roles(),
        layers=tuple(changes.layers()),
        tensors=tuple(first_rows(tensors)),
        magnitudes=changes.magnitudes(),
        ulp_histogram=changes.ulp_histogram(),
        energy=changes.energy(),
        unmatched=unmatched(unseen),
        trajectory=tuple(changes.trajectory(facts[1:])) if len(tuned) > 1 else (),
        overlap=tuple(changes.overlaps()),
        spectral=tuple(spectra.rows) if spectra is not None else (),
        answer=answer,
        advice=advice,
        notes=tuple(notes),
        adapter=adapter and first_modules(adapter),
        coverage=coverage,
        timing=Timing.since(start, nbytes, found.seconds),
        environment=environment(device, ("numpy", "numba", "torch", "huggingface_hub", "pydantic")),
    )
    if len(tensors) > len(report.tensors):
        report.keep_rows("tensors", lambda: tuple(tensors))
    if adapter != report.adapter:
        report.keep_rows("adapter", lambda: adapter)
    return report


def _of_base(sides: Sequence[Checkpoint]) -> bool:
    """Return whether all tuned sides are the base with adapters, in its layout, so that no values need to show what corresponds."""
    base, names = sides[0], [tensor.name for tensor in sides[0].tensors]
    made = [(side.parts[0][0].ref, side.parts[0][0].commit, [tensor.name for tensor in side.tensors]) for side in sides[1:]]
    return all(each == (base.ref, base.commit, names) for each in made) and all(side.parts[0][0] is not side for side in sides[1:])
