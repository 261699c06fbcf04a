"""The report as text for a terminal."""

from collections.abc import Sequence

from analyzers.dtype_detection.lineage import FORMAT_OF
from analyzers.dtype_detection.report import DtypeReport

_RISK = {"fits": "weights fit", "caution": "with losses", "overflow": "weights overflow", "unknown": "unknown"}


def one(report: DtypeReport) -> str:
    """The passport of one checkpoint: four answers with how we know, then evidence, extremes and notes."""
    checkpoint, lineage, training, risk = report.checkpoint, report.lineage, report.training, report.fp16_risk
    share = report.bytes_read / max(1, checkpoint.bytes)
    read = "all of it" if report.extremes.exact else f"{_size(report.bytes_read)} of it ({100 * share:.2g} %)"
    stored = ", ".join(f"{row.tensors:,} tensors {row.dtype}" for row in report.storage)
    path = " -> ".join((*lineage.passed_through, FORMAT_OF.get(lineage.stored, lineage.stored)))
    likely = ", ".join(f"{name} {100 * p:.0f} %" for name, p in sorted(training.probabilities.items(), key=lambda item: -item[1]))
    proof = "proof" if lineage.passed_through else "fact" if lineage.verdict == "native" else "-"
    rows = [
        ("Stored as", " ".join(row.dtype for row in report.storage), "fact", f"{stored}; config says {report.config_dtype or 'nothing'}"),
        ("Passed through", path if lineage.passed_through else lineage.verdict, proof, lineage.statement),
        (
            "Trained in",
            training.verdict,
            "label" if training.basis == "label" else "inference",
            f"{likely + '. ' if training.basis != 'label' and likely else ''}{training.explanation} {training.source or ''}".strip(),
        ),
        ("Safe in fp16", _RISK[risk.level], "fact" if report.extremes.exact else "sample", " ".join(risk.reasons)),
    ]
    evidence = [("Question put to the bits", "Tested", "Exceptions", "By chance", "Then")]
    evidence += [
        (f"{e.question}", f"{e.tested:,} {e.unit}", f"{e.exceptions:,}", f"{100 * e.chance:.2g} %", e.conclusion) for e in lineage.evidence
    ]
    extremes = report.extremes
    least = "" if extremes.exact else " (seen in the sample)"
    lines = [
        f"{checkpoint.ref} @ {checkpoint.commit[:12]}: {checkpoint.parameters:,} parameters, {_size(checkpoint.bytes)} in "
        f"{checkpoint.files:,} files; read {read} in {report.timing.seconds:.2g} s",
        "",
        *_columns(rows),
        "",
        *_columns(evidence, right=(1, 2, 3)),
        "",
        f"|w| from {_number(extremes.abs_min)} (nonzero {_number(extremes.abs_min_nonzero)}) to {_number(extremes.abs_max)}{least}; "
        f"norms from {_number(extremes.norm_min)} to {_number(extremes.norm_max)}",
        "Exact in " + ", ".join(f"{name} {_percent(value)}" for name, value in report.representable.model_dump().items()),
        *report.notes,
        f"report {report.id}",
    ]
    return _clean("\n".join(lines))


def several(reports: Sequence[DtypeReport]) -> str:
    """One row per model."""
    rows: list[tuple[str, ...]] = [
        ("Model", "Parameters", "Stored", "Passed through", "Trained in", "Basis", "fp16", "abs max", "norm max")
    ]
    rows += [
        (
            r.checkpoint.ref,
            f"{r.checkpoint.parameters:,}",
            " ".join(row.dtype for row in r.storage),
            " ".join(r.lineage.passed_through) or r.lineage.verdict,
            r.training.verdict,
            r.training.basis,
            _RISK[r.fp16_risk.level],
            _number(r.extremes.abs_max),
            _number(r.extremes.norm_max),
        )
        for r in reports
    ]
    return _clean("\n".join(_columns(rows, right=(1, 7, 8))))


def _columns(rows: Sequence[tuple[str, ...]], right: tuple[int, ...] = ()) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    cells = (
        [cell.rjust(width) if i in right else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))]
        for row in rows
    )
    return ["  ".join(line).rstrip() for line in cells]


def _number(x: float | None) -> str:
    return "-" if x is None else f"{x:.4g}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.4g} %"


def _size(size: int) -> str:
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size} B"


def _clean(text: str) -> str:
    """Without control characters, which could rewrite a terminal; names of tensors are somebody else's text."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
