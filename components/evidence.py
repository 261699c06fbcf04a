"""What stands behind the tiles, in HTML tables: the questions put to the bits, magnitudes, shares, notes."""

from collections.abc import Iterable, Sequence
from html import escape

from analyzers.dtype_detection import DtypeReport
from components import numbers

_HELD = {"fp16": "fp16", "bf16": "bf16", "tf32": "tf32", "fp8_e4m3": "fp8 e4m3", "fp8_e5m2": "fp8 e5m2"}
_SHARES = {f"representable.{key}": f"Held exactly by {name}, of the nonzero" for key, name in _HELD.items()} | {
    "zero": "Zero",
    "fp16_underflow": "Nonzero, but zero in fp16",
    "fp16_subnormal": "Subnormal in fp16",
}
_BUFFERS_SHOWN = 20


def evidence(report: DtypeReport) -> str:
    """Every question put to the bits with its answer, then what the values look like, then the notes."""
    pair = f'<div class="m-pair"><div>{_magnitudes(report)}</div><div>{_shares(report)}</div></div>'
    return f'<div class="m-card">{_questions(report)}{_parts(report)}{pair}{_notes(report)}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numeric: frozenset[int] = frozenset(), caption: str = "") -> str:
    """An HTML table of plain text; the columns in ``numeric`` are right-aligned. Everything is escaped."""
    titles = "".join(f'<th scope="col"{_class(i in numeric)}>{escape(text)}</th>' for i, text in enumerate(head))
    body = "".join(
        "<tr>" + "".join(f"<td{_class(i in numeric)}>{escape(text)}</td>" for i, text in enumerate(row)) + "</tr>" for row in rows
    )
    name = f"<caption>{escape(caption)}</caption>" if caption else ""
    scroll = '<div class="m-scroll" tabindex="0" role="group" aria-label="' + escape(caption or head[0]) + '">'
    return f'{scroll}<table class="m-table">{name}<thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>'


def _class(numeric: bool) -> str:
    return ' class="m-n"' if numeric else ""


def _questions(report: DtypeReport) -> str:
    if not report.lineage.evidence:
        return '<p class="m-say">No question could be put to these bits: nothing in the selection is a plain float.</p>'
    rows = [
        (
            item.question,
            f"{numbers.count(item.tested)} {item.unit}",
            numbers.count(item.exceptions),
            numbers.share(item.chance),
            item.conclusion,
        )
        for item in report.lineage.evidence
    ]
    return table(("Question put to the bits", "Tested", "Exceptions", "By chance", "Then"), rows, frozenset({1, 2, 3}))


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
    rows_by_verdict = [(part.verdict, numbers.count(part.tensors), numbers.count(part.parameters)) for part in lineage.parts]
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


def _shares(report: DtypeReport) -> str:
    if not report.intervals:
        rows = [
            (name, numbers.share(value)) for name, value in zip(_HELD.values(), report.representable.model_dump().values(), strict=True)
        ]
        return table(("Nonzero values held exactly by", "Share"), rows, frozenset({1}))
    spans = [
        (_SHARES.get(key, key), numbers.share(found.estimate), f"{numbers.share(found.low)} to {numbers.share(found.high)}")
        for key, found in report.intervals.items()
    ]
    return table(("Of the whole checkpoint, estimated", "Share", "95 % interval"), spans, frozenset({1, 2}))


def _notes(report: DtypeReport) -> str:
    notes = list(report.notes)
    if report.buffers:
        names = ", ".join(buffer.name for buffer in report.buffers[:_BUFFERS_SHOWN])
        more = f" and {len(report.buffers) - _BUFFERS_SHOWN:,} more" if len(report.buffers) > _BUFFERS_SHOWN else ""
        notes.append(f"Left out as buffers, which no training changes: {names}{more}.")
    if not notes:
        return ""
    unique = dict.fromkeys(notes)
    return f'<ul class="m-notes">{"".join(f"<li>{escape(note)}</li>" for note in unique)}</ul>'
