"""The evidence below the tiles, in HTML tables: bit-pattern tests, magnitudes, shares, notes."""

from analyzers.dtype_detection import DtypeReport
from components.passport.representable import representable
from components.text import numbers
from components.text.markup import notes, table
from components.text.plain_text import powers, shown

_BUFFERS_SHOWN = 20


def evidence(report: DtypeReport) -> str:
    """Every bit-pattern test with its result, then magnitudes, then notes."""
    pair = f'<div class="m-pair"><div>{_magnitudes(report)}</div><div>{representable(report)}</div></div>'
    return f'<div class="m-card">{_questions(report)}{_parts(report)}{pair}{_notes(report)}</div>'


def _questions(report: DtypeReport) -> str:
    if not report.lineage.evidence:
        return '<p class="m-say">No question could be put to these bits: nothing in the selection is a plain float.</p>'
    rows = [
        (
            powers(item.question),
            item.stored,
            numbers.plural(item.tested, item.unit.removesuffix("s")),
            numbers.count(item.exceptions),
            numbers.share(item.chance),
            powers(item.conclusion),
        )
        for item in report.lineage.evidence
    ]
    titles = ("Test", "Stored", "Tested", "Exceptions", "By chance", "Conclusion")
    if len({item.stored for item in report.lineage.evidence}) > 1:
        return table(titles, rows, frozenset({2, 3, 4}), stacked=True)
    return table((titles[0], *titles[2:]), [(row[0], *row[2:]) for row in rows], frozenset({1, 2, 3}), stacked=True)


def _parts(report: DtypeReport) -> str:
    lineage = report.lineage
    said = ""
    if lineage.fossil_rows:
        rows = numbers.plural(lineage.fossil_rows, "row")
        said = (
            f'<p class="m-say">{rows} hold only values of a narrower format, in tensors that do not: most likely never updated since.</p>'
        )
    if len(lineage.parts) < 2:
        return said
    rows_by_verdict: list[tuple[str, str, str]] = [
        (part.verdict, numbers.count(part.tensors), numbers.count(part.parameters)) for part in lineage.parts
    ]
    if (unread := report.selected_tensors - sum(part.tensors for part in lineage.parts)) > 0:
        rows_by_verdict.append(("not read", numbers.count(unread), numbers.NOTHING))
    return table(("Lineage", "Tensors", "Parameters"), rows_by_verdict, frozenset({1, 2}), "Tensors by their own lineage") + said


def _magnitudes(report: DtypeReport) -> str:
    extremes, counts = report.extremes, report.counts
    rows = [
        ("Smallest magnitude, zeros included", numbers.magnitude(extremes.abs_min)),
        ("Smallest nonzero magnitude", numbers.magnitude(extremes.abs_min_nonzero)),
        ("Largest magnitude", numbers.magnitude(extremes.abs_max)),
        ("Smallest tensor norm", numbers.magnitude(extremes.norm_min)),
        ("Largest tensor norm", numbers.magnitude(extremes.norm_max)),
        ("Zeros", numbers.count(counts.zero)),
        ("NaN", numbers.count(counts.nan)),
        ("Infinite", numbers.count(counts.inf)),
        ("Infinite in fp16", numbers.count(counts.fp16_overflow)),
        ("Zero in fp16", numbers.count(counts.fp16_underflow)),
        ("Subnormal in fp16", numbers.count(counts.fp16_subnormal)),
    ]
    seen = "" if extremes.exact else ", a sample"
    return table((f"Of the {numbers.plural(report.values_read, 'value')} read{seen}", ""), rows, frozenset({1}))


def _notes(report: DtypeReport) -> str:
    said = list(report.notes)
    if report.buffers:
        names = ", ".join(shown(buffer.name, 80) for buffer in report.buffers[:_BUFFERS_SHOWN])
        more = f" and {len(report.buffers) - _BUFFERS_SHOWN:,} more" if len(report.buffers) > _BUFFERS_SHOWN else ""
        said.append(f"Left out as buffers, which no training changes: {names}{more}.")
    return notes(said)
