"""Measures update sparsity: checkpoints -> pairs of tensors -> one pass -> shares, rows, trajectory -> report."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from time import perf_counter

from analyzers.checkpoints import Access, Checkpoint, Matching, canonical_names
from analyzers.comparison.counting import Task
from analyzers.comparison.reading import Pass, open_models
from analyzers.comparison.sparsity import answers
from analyzers.comparison.sparsity.adapters import AdapterMeter, first_modules, merge_of
from analyzers.comparison.sparsity.changes import Changes, turned, unmatched
from analyzers.comparison.sparsity.report import ANALYSIS_VERSION, SparsityReport, SparsityRequest
from analyzers.comparison.sparsity.spectral import Spectra
from analyzers.comparison.sparsity.words import WORDS
from analyzers.core.report import Timing, content_id, environment, first_rows
from analyzers.core.request import Progress
from analyzers.numerics.device import Device, choose_device


def analyze(request: SparsityRequest, access: Access | None = None, *, largest: int | None = None) -> Iterator[Progress | SparsityReport]:
    """Compare one base with one or several tuned checkpoints; yields progress in bytes, then the report.

    access: what may be read; by default public Hub repositories and samples. largest: refuse to read more bytes of weights, of all
    checkpoints together, than this (the page's limit). Raises MantissaError; if one side is at fault, its sentence begins with that side.
    Closing the generator cancels the reads and closes every checkpoint.
    """
    start, access, last = perf_counter(), access or Access(), len(request.tuned)
    device = device_of(request, access)
    yield Progress(done=0, total=0, unit="bytes", note="reading headers")
    with ExitStack() as stack:
        names = ["Base", *(["Tuned"] if last == 1 else [f"Tuned {number} of {last}" for number in range(1, last + 1)])]
        sides = yield from open_models([request.base, *request.tuned], names, request, access, stack, into_first=True)
        matching, by_values = Matching(request.include, request.exclude), not _of_base(sides)
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
        found = Pass(
            request, sides, names, matching, task, largest=largest, device=in_place, by_values=by_values, each=True, watch=watch
        )  # fmt: skip
        yield from found.read()
        spectra = Spectra(found, [0, last], device) if request.spectral else None
        if spectra is not None:
            yield from spectra.read(found.nbytes)
        base, *tuned = canonical_names([request.base, *request.tuned], sides)
        request = request.model_copy(update={"base": base, "tuned": tuple(tuned)})
        yield report_of(found, range(last + 1), request, start, device, spectra, meter)


def device_of(request: SparsityRequest, access: Access) -> Device:
    """Choose the device that counts the pairs of a request. Raises as `choose_device` does."""
    in_place = request.mode == "exact" and len(request.tuned) == 1
    return choose_device(request.device, access.devices([request.base, *request.tuned]) if in_place else ())


def report_of(
    found: Pass, order: Sequence[int], request: SparsityRequest, start: float, device: Device,
    spectra: Spectra | None = None, meter: AdapterMeter | None = None,
) -> SparsityReport:  # fmt: skip
    """Build the report on the sides ``order`` of a pass: the base, and the tuned ones. request: with their canonical references."""
    base, *tuned = order
    last, changes = tuned[-1], Changes(found.table, base, tuned)
    sides, names = [found.sides[side] for side in order], [found.names[side] for side in order]
    facts, nbytes = [side.facts() for side in sides], found.nbytes + (spectra.nbytes if spectra is not None else 0)
    unseen = found.alignment.unmatched[max(base, last) - 1]
    unseen = turned(unseen) if last == 0 else unseen
    commits = [{"ref": side.ref, "commit": side.commit} for side in sides]
    adapter, tensors = meter.adapter(found.table) if meter is not None else None, tuple(changes.tensors())
    report = SparsityReport(
        id=content_id("sparsity", ANALYSIS_VERSION, {"base": commits[0], "tuned": commits[1:]} | request.resolved(device)),
        analysis_version=ANALYSIS_VERSION,
        request=request,
        base=facts[0],
        tuned=tuple(facts[1:]),
        mode=request.mode,
        bytes_read=nbytes,
        requests=found.requests,
        values_compared=int(changes.read["values"]),
        total_parameters=changes.parameters,
        eta=request.eta,
        blocks=found.table.blocks,
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
        adapter=adapter,
        coverage=(found.coverage(base, [last]), *(found.coverage(side, [base]) for side in tuned)),
        timing=Timing.since(start, nbytes, found.seconds),
        environment=environment(device, ("numpy", "numba", "torch", "huggingface_hub", "pydantic")),
        answer=WORDS.note("nothing"),
        advice=WORDS.advice("read-more", "dtype", facts[-1].ref),
        **changes.since(base, last),
    )
    notes = list(answers.notes(sides, names, unseen, changes, request.eta, spectra.left_out if spectra is not None else 0))
    if adapter is not None and meter is not None:
        notes += answers.notes_on(adapter, facts[0].ref, meter.stated_bases, found.plan.exact)
    answer = answers.answer(report)
    said = {"answer": answer, "advice": answers.advice(report, answer), "notes": tuple(notes)}
    report = report.model_copy(update=said | {"adapter": adapter and first_modules(adapter)})
    if len(tensors) > len(report.tensors):
        report.keep_rows("tensors", lambda: tensors)
    if adapter != report.adapter:
        report.keep_rows("adapter", lambda: adapter)
    return report


def _of_base(sides: Sequence[Checkpoint]) -> bool:
    """Return whether all tuned sides are the base with adapters, in its layout, so that no values need to show what corresponds."""
    base, names = sides[0], [tensor.name for tensor in sides[0].tensors]
    made = [(side.parts[0][0].ref, side.parts[0][0].commit, [tensor.name for tensor in side.tensors]) for side in sides[1:]]
    return all(each == (base.ref, base.commit, names) for each in made) and all(side.parts[0][0] is not side for side in sides[1:])
