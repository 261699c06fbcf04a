"""The report as text for a terminal."""

from collections.abc import Sequence

from analyzers.account import coverage_lines
from analyzers.dtype_detection.advice import WEIGHT_ONLY, between, ignored, readings, suggestions
from analyzers.dtype_detection.lineage import FORMAT_OF
from analyzers.dtype_detection.readings import step_name
from analyzers.dtype_detection.report import DtypeReport, Evidence
from analyzers.dtype_detection.sentences import claimed, fp16_answer
from analyzers.formatting import NOTHING, magnitude, plural, shape, share, size
from analyzers.terminal import columns


def one(report: DtypeReport) -> list[str]:
    """The passport of one checkpoint: four answers with how we know, then evidence, extremes and notes."""
    checkpoint, lineage, training, risk = report.checkpoint, report.lineage, report.training, report.fp16_risk
    part = report.bytes_read / max(1, checkpoint.bytes)
    read = "all of it" if report.extremes.exact and report.whole else f"{size(report.bytes_read)} of it ({share(part)})"
    stored = ", ".join(plural(row.tensors, f"{row.dtype} tensor") for row in report.storage)
    path = " -> ".join((*lineage.passed_through, FORMAT_OF.get(lineage.stored, lineage.stored)))
    told = training.probabilities if training.basis != "label" and claimed(report) else {}
    likely = ", ".join(f"{name} {share(p)}" for name, p in sorted(told.items(), key=lambda item: -item[1]))
    proof = "proof" if lineage.passed_through else "fact" if lineage.verdict == "native" else "-"
    rows = [
        ("Stored as", " ".join(row.dtype for row in report.storage), "fact", f"{stored}; config says {report.config_dtype or 'nothing'}"),
        ("Passed through", path if lineage.passed_through and lineage.verdict != "mixed" else lineage.verdict, proof, lineage.statement),
        (
            "Trained in",
            training.verdict if training.basis == "label" or claimed(report) else "undecided",
            "label" if training.basis == "label" else "inference",
            "inferred by an older version of the analysis: run it again"
            if report.outdated and training.basis != "label"
            else f"{likely + '. ' if likely else ''}{training.explanation} {training.source or ''}".strip(),
        ),
        (
            "Safe in fp16",
            fp16_answer(risk.level, report.whole and report.extremes.exact),
            "fact" if report.extremes.exact else "sample",
            " ".join(risk.reasons),
        ),
    ]
    extremes = report.extremes
    least = "" if extremes.exact else " (seen in the sample)"
    lines = [
        f"{checkpoint.ref} @ {checkpoint.commit[:12]}: {plural(checkpoint.parameters, 'parameter')}, {size(checkpoint.bytes)} in "
        f"{plural(checkpoint.files, 'file')}; read {read} in {report.timing.seconds:.2g} s",
        "",
        *report.answer_lines(),
        "",
        *columns(rows),
        "",
        *_evidence(lineage.evidence),
        "",
        f"|w| from {magnitude(extremes.abs_min)} (nonzero {magnitude(extremes.abs_min_nonzero)}) to {magnitude(extremes.abs_max)}{least}; "
        f"norms from {magnitude(extremes.norm_min)} to {magnitude(extremes.norm_max)}",
        "Exact in " + ", ".join(f"{name} {share(value)}" for name, value in report.representable.model_dump().items()),
        "",
        *_movable(report),
        *readings(report),
        "",
        *_quantization(report),
        *_suggestions(report),
        *report.notes,
        *coverage_lines(report),
        f"report {report.id}",
    ]
    return lines


def _movable(report: DtypeReport) -> list[str]:
    """A line per role: the share of its weights that training in bf16 alone can move, for every other step."""
    if report.movable is None:
        return []
    steps = range(0, len(report.movable.steps), 2)
    rows = [("Movable in bf16", *(step_name(report.movable.steps[i]) for i in steps))]
    rows += [(role, *(share(1 - frozen[i]) for i in steps)) for role, frozen in report.movable.roles.items()]
    return columns(rows, right=tuple(range(1, len(rows[0]))))


def _quantization(report: DtypeReport) -> list[str]:
    if not report.quantization_roles:
        return []
    rows: list[tuple[str, ...]] = [("Rounded to", "Role", "Error", "95% interval", "SQNR, dB", "Exact")]
    rows += [
        (row.format, row.role, share(row.rms_rel), between(row), magnitude(row.sqnr_db), share(row.exact))
        for row in report.quantization_roles
    ]
    return [*columns(rows, right=(2, 3, 4, 5)), *ignored(report), WEIGHT_ONLY, ""]


def _suggestions(report: DtypeReport) -> list[str]:
    found = suggestions(report)
    return ["What you could do:", *columns([(f"  {each.advice}", each.command) for each in found]), ""] if found else []


def _evidence(found: Sequence[Evidence]) -> list[str]:
    """A line for each test, with the stored dtype if there are several."""
    rows = [("Test", "Stored", "Tested", "Exceptions", "By chance", "Conclusion")]
    rows += [(e.question, e.stored, plural(e.tested, e.unit[:-1]), f"{e.exceptions:,}", share(e.chance), e.conclusion) for e in found]
    if len({e.stored for e in found}) > 1:
        return columns(rows, right=(2, 3, 4))
    return columns([(question, *rest) for question, _, *rest in rows], right=(1, 2, 3))


def several(reports: Sequence[DtypeReport]) -> list[str]:
    """One row per model. A column says how much was read where that is not all of each."""
    rows: list[tuple[str, ...]] = [
        ("Model", "Parameters", "Stored", "Passed through", "Trained in", "Basis", "fp16", "abs min", "abs max", "norm min", "norm max")
    ]
    rows += [
        (
            r.checkpoint.ref,
            f"{r.checkpoint.parameters:,}",
            " ".join(row.dtype for row in r.storage),
            " ".join(r.lineage.passed_through) or r.lineage.verdict,
            r.training.verdict,
            r.training.basis,
            fp16_answer(r.fp16_risk.level, r.whole and r.extremes.exact),
            *map(magnitude, (r.extremes.abs_min, r.extremes.abs_max, r.extremes.norm_min, r.extremes.norm_max)),
        )
        for r in reports
    ]
    if not all(r.whole for r in reports):
        rows = [(*row, reach) for row, reach in zip(rows, ("Coverage", *(r.short_reach() or "all" for r in reports)), strict=True)]
    return columns(rows, right=(1, 7, 8, 9, 10))


def tensors(report: DtypeReport) -> list[str]:
    """One line per tensor, also where the report aggregates them."""
    rows: list[tuple[str, ...]] = [
        ("Tensor", "Dtype", "Shape", "Lineage", "abs min", "nonzero min", "abs max", "Norm", "Zeros", "NaN", "Inf")
    ]
    rows += [
        (
            row.name,
            row.dtype,
            shape(row.shape),
            row.lineage.verdict if row.values_read else "not read",
            *map(magnitude, (row.abs_min, row.abs_min_nonzero, row.abs_max, row.norm)),
            *(f"{count:,}" if row.values_read else NOTHING for count in (row.zero, row.nan, row.inf)),
        )
        for row in report.full_rows()
    ]
    return columns(rows, right=tuple(range(4, 11)))
