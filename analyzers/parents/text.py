"""The report as text for a terminal."""

from analyzers.account import coverage_lines
from analyzers.formatting import NOTHING, magnitude, plural, share, size
from analyzers.parents.conversion_text import damage_first, faithful_sentence, layer_runs, relation
from analyzers.parents.report import FAITHFUL, ParentsReport
from analyzers.terminal import columns

# Candidates and layers that are shown.
_SHOWN = 20


def one(report: ParentsReport) -> list[str]:
    """The statement, the evidence, the candidates, the weights, the layers that moved, how each tensor got here, and notes."""
    side = report.checkpoint
    lines = [
        f"{side.ref} @ {side.commit[:12]}; read {size(report.bytes_read)} in {report.timing.seconds:.2g} s",
        "",
        f"Verdict: {report.verdict}",
        *report.answer_lines(),
        "",
        *(f"{'Proof' if each.proof else 'Inference'}: {each.text}" for each in report.evidence),
        "",
        *_candidates(report),
    ]
    for part in (_fit(report), _moved(report), _conversion(report), report.notes):
        lines += ["", *part] if part else []
    lines += coverage_lines(report)
    return [*lines, f"report {report.id}"]


def _candidates(report: ParentsReport) -> list[str]:
    rows: list[tuple[str, ...]] = [("Candidate", "Compared", "Equal", "By chance", "|X-P|/|P|", "Cosine", "By chance")]
    rows += [
        (
            row.ref,
            f"{row.compared:,}",
            share(row.equal_share),
            share(row.equal_by_chance),
            magnitude(row.distance),
            magnitude(row.cosine),
            f"0 +- {magnitude(row.cosine_null)}" if row.cosine_null else NOTHING,
        )
        for row in report.candidates[:_SHOWN]
    ]
    return columns(rows, right=(1, 2, 3, 4, 5, 6))


def _fit(report: ParentsReport) -> list[str]:
    fit = report.fit
    if fit is None:
        return []
    rows: list[tuple[str, ...]] = [("Weight", "Exact between" if fit.weights_by == "exact-values" else "95% interval", "Of")]
    rows += [
        (_weight(each.weight), f"{_weight(each.low)} to {_weight(each.high)}", " or ".join((each.ref, *each.alike))) for each in fit.parents
    ]
    exact = (
        f"{share(fit.exact_share)} exact (by chance {share(fit.exact_by_chance)})" if fit.exact_share is not None else "exactness unknown"
    )
    return [
        *columns(rows, right=(0,)),
        f"Residual {magnitude(fit.residual)} of the norm, rounding alone {magnitude(fit.rounding)}; {exact}; "
        f"condition {magnitude(fit.condition)}",
    ]


def _weight(value: float) -> str:
    """To four decimals, never -0."""
    return f"{round(value, 4) + 0.0:.4f}" if abs(value) < 1e6 else "unknown"


def _conversion(report: ParentsReport) -> list[str]:
    """How many tensors are the source's, then those that are not."""
    broken = [row for row in damage_first(report.conversion) if row.relation not in FAITHFUL]
    rows: list[tuple[str, ...]] = [("Tensor", "Source", "Relation", "Exceptions", "Note")]
    rows += [
        (
            row.name,
            ", ".join(row.sources) or NOTHING,
            relation(row),
            f"{row.exceptions:,} of {row.values:,}",
            row.note,
        )
        for row in broken[:_SHOWN]
    ]
    lines = [f"How each tensor got here: {faithful_sentence(report.conversion)}"] if report.conversion else []
    lines += columns(rows, right=(3,)) if broken else []
    return [*lines, *([f"and {plural(len(broken) - _SHOWN, 'more tensor')}"] if len(broken) > _SHOWN else [])]


def _moved(report: ParentsReport) -> list[str]:
    if report.verdict == "stack":
        return [f"{run.text[:1].upper()}{run.text[1:]}" for run in layer_runs(report.layer_map)]
    moved = [f"{each.layer} <- {each.source} of {each.ref}" for each in report.layer_map]
    return [f"Layers matched by content: {', '.join(moved[:_SHOWN])}{', ...' if len(moved) > _SHOWN else ''}"] if moved else []
