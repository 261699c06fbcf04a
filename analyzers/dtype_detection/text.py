"""The report as text for a terminal."""

from collections.abc import Sequence
from dataclasses import replace

from analyzers.coverage_tables import coverage_lines
from analyzers.dtype_detection.advice import WEIGHT_ONLY, ignored, readings, suggestions
from analyzers.dtype_detection.columns import EVIDENCE, GRIDS, MODELS, QUANTIZATION_ROLES, TENSORS
from analyzers.dtype_detection.report import DtypeReport
from analyzers.dtype_detection.sentences import SOURCES, claimed, fp16_answer, lineage_answer, stored_dtypes, training_answer
from analyzers.dtype_detection.trainability import step_name
from analyzers.formatting import duration, magnitude, plural, share, size
from analyzers.terminal import columns


def one(report: DtypeReport) -> list[str]:
    """Return the passport of one checkpoint: four answers with their basis, then evidence, extremes and notes."""
    checkpoint, lineage, training, risk = report.checkpoint, report.lineage, report.training, report.fp16_risk
    part = report.bytes_read / max(1, checkpoint.bytes)
    read = "all of it" if report.extremes.exact and report.whole else f"{size(report.bytes_read)} of it ({share(part)})"
    stored = ", ".join(plural(row.tensors, f"{'computed ' * row.computed}{row.dtype} tensor") for row in report.storage)
    told = training.probabilities if training.basis != "label" and claimed(report) else {}
    likely = ", ".join(f"{name} {share(p)}" for name, p in sorted(told.items(), key=lambda item: -item[1]))
    proof = "proof" if lineage.passed_through else "fact" if lineage.verdict == "native" else "-"
    source = f" ({SOURCES.get(training.basis, 'source')}: {training.source})" if training.source else ""
    rows = [
        ("Stored as", stored_dtypes(report), "fact", f"{stored}; config says {report.config_dtype or 'nothing'}"),
        ("Passed through", lineage_answer(lineage).replace("→", "->"), proof, lineage.statement),
        (
            "Trained in",
            training_answer(report),
            "label" if training.basis == "label" else "inference",
            "inferred by an older version of the analysis: run it again"
            if report.outdated and training.basis != "label"
            else f"{likely + '. ' if likely else ''}{training.explanation}{source}",
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
        f"{checkpoint.ref} @ {checkpoint.short_commit()}: {plural(checkpoint.parameters, 'parameter')}, {size(checkpoint.bytes)} in "
        f"{plural(checkpoint.files, 'file')}; read {read} in {duration(report.timing.seconds)}",
        "",
        *report.answer_lines(),
        "",
        *columns(rows),
        "",
        *EVIDENCE.lines(report),
        "",
        *_grids(report),
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


def _grids(report: DtypeReport) -> list[str]:
    rows = GRIDS.lines(report)
    return [*rows, *([f"On none of the grids proven: {', '.join(report.off_grid)}"] if report.off_grid else []), ""] if rows else []


def _movable(report: DtypeReport) -> list[str]:
    """Return a line per role with the share of its weights that training purely in bf16 can move, for every second step size."""
    if report.movable is None:
        return []
    steps = range(0, len(report.movable.steps), 2)
    rows = [("Movable in bf16", *(step_name(report.movable.steps[i]) for i in steps))]
    rows += [(role, *(share(1 - frozen[i]) for i in steps)) for role, frozen in report.movable.roles.items()]
    return columns(rows, right=tuple(range(1, len(rows[0]))))


def _quantization(report: DtypeReport) -> list[str]:
    rows = QUANTIZATION_ROLES.lines(report)
    return [*rows, *ignored(report), WEIGHT_ONLY, ""] if rows else []


def _suggestions(report: DtypeReport) -> list[str]:
    ideas = suggestions(report)
    return ["What you could do:", *columns([(f"  {each.advice}", each.command) for each in ideas]), ""] if ideas else []


def several(reports: Sequence[DtypeReport]) -> list[str]:
    """Return one row per model. The last column, coverage, is omitted if every model was read as a whole."""
    whole = all(report.whole for report in reports)
    return (replace(MODELS, columns=MODELS.shown(None, "terminal")[:-1]) if whole else MODELS).lines(None, reports)


def tensors(report: DtypeReport) -> list[str]:
    """Return one line per tensor, even if the report aggregates them."""
    return TENSORS.lines(report, report.full_rows())
