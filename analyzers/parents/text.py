"""The report as text for a terminal."""

from analyzers.coverage_tables import coverage_lines
from analyzers.formatting import duration, magnitude, plural, share, size
from analyzers.parents.columns import CANDIDATES, CONVERSION, PARENTS
from analyzers.parents.conversion_text import damage_first, faithful_sentence, layer_runs
from analyzers.parents.report import FAITHFUL, ParentsReport

# Number of candidates, layers and tensors shown.
_SHOWN = 20


def one(report: ParentsReport) -> list[str]:
    """Return the lines of a report: answer, evidence, candidates, weights, moved layers, the conversion of each tensor, and notes."""
    side = report.checkpoint
    lines = [
        f"{side.ref} @ {side.short_commit()}; read {size(report.bytes_read)} in {duration(report.timing.seconds)}",
        "",
        f"Verdict: {report.verdict}",
        *report.answer_lines(),
        "",
        *(f"{each.kind_of.capitalize()}: {each.text}" for each in report.evidence),
        "",
        *CANDIDATES.lines(report, report.candidates[:_SHOWN]),
    ]
    for part in (_fit(report), _moved(report), _conversion(report), report.notes):
        lines += ["", *part] if part else []
    lines += coverage_lines(report)
    return [*lines, f"report {report.id}"]


def _fit(report: ParentsReport) -> list[str]:
    fit = report.fit
    if fit is None:
        return []
    exact = (
        f"{share(fit.exact_share)} exact (by chance {share(fit.exact_by_chance)})" if fit.exact_share is not None else "exactness unknown"
    )
    return [
        *PARENTS.lines(report),
        f"Residual {magnitude(fit.residual)} of the norm, rounding alone {magnitude(fit.rounding)}; {exact}; "
        f"condition {magnitude(fit.condition)}",
    ]


def _conversion(report: ParentsReport) -> list[str]:
    """Return how many tensors equal their source, then the tensors that do not."""
    broken = [row for row in damage_first(report.conversion) if row.relation not in FAITHFUL]
    lines = [f"How each tensor got here: {faithful_sentence(report.conversion)}"] if report.conversion else []
    lines += CONVERSION.lines(report, broken[:_SHOWN])
    return [*lines, *([f"and {plural(len(broken) - _SHOWN, 'more tensor')}"] if len(broken) > _SHOWN else [])]


def _moved(report: ParentsReport) -> list[str]:
    if report.verdict == "stack":
        return [f"{run.text[:1].upper()}{run.text[1:]}" for run in layer_runs(report.layer_map)]
    moved = [f"{each.layer} <- {each.source} of {each.ref}" for each in report.layer_map]
    return [f"Layers matched by content: {', '.join(moved[:_SHOWN])}{', ...' if len(moved) > _SHOWN else ''}"] if moved else []
