"""The passport: one report as a header and four summary tiles, in HTML.

Each tile has a short answer, a tag for its kind of evidence, and a sentence or two with the numbers. All text from checkpoints and labels
is escaped here.
"""

from analyzers.dtype_detection import DtypeReport
from components.passport.trained_in import trained_in, training_answer
from components.text import numbers
from components.text.headline import about_sample, card, tiles
from components.text.markup import head, tag, tile
from components.text.plain_text import html, prose

FORMATS = {"F64": "fp64", "F32": "fp32", "F16": "fp16", "BF16": "bf16", "F8_E4M3": "fp8 e4m3", "F8_E5M2": "fp8 e5m2"}
_PROVEN_NOTHING = {"native": ("Nothing narrower", "fact"), "undecided": ("Undecided", "undecided")}
_DTYPES_LISTED = 4


def passport(report: DtypeReport, links: bool = True) -> str:
    """The header and the four tiles of a report. links: include links that work only on the app's pages."""
    questions = tiles(_stored(report), _passed_through(report), trained_in(report, links), _safe_in_fp16(report))
    return card("Passport", _head(report), about_sample(report.checkpoint.ref, shows=True), questions)


def summary(report: DtypeReport) -> str:
    """The four answers as one plain-text sentence (not HTML), for a status line or a screen reader."""
    stored, passed, trained, risk = answers(report)
    return f"{report.checkpoint.ref}: stored as {stored}; passed through: {passed}; trained in: {trained}; in fp16: {risk}."


def answers(report: DtypeReport) -> tuple[str, str, str, str]:
    """The answers of the four tiles, plain text: stored as, passed through, trained in, safe in fp16."""
    return _stored_answer(report), _lineage_answer(report)[0], training_answer(report), _RISK[report.fp16_risk.level][0]


def format_name(dtype: str) -> str:
    """The common name of a safetensors dtype: ``F32`` is fp32. Plain text."""
    return FORMATS.get(dtype, dtype)


def _head(report: DtypeReport) -> str:
    checkpoint = report.checkpoint
    commit = "" if checkpoint.ref.startswith("sample:") else f" <small>@ {html(checkpoint.commit[:7])}</small>"
    where = f" <small>in {html(report.request.subfolder)}</small>" if report.request.subfolder else ""
    of_all = f" ({numbers.share(report.bytes_read / checkpoint.bytes)})" if checkpoint.bytes else ""
    read = f"Read {numbers.size(report.bytes_read)}{of_all} in {numbers.duration(report.timing.seconds)}"
    chosen = ""
    if report.selected_tensors != checkpoint.tensors:
        chosen = f" Looked at {numbers.count(report.selected_tensors)} of {numbers.plural(checkpoint.tensors, 'tensor')}."
    noun = "parameter" if checkpoint.parameters == 1 else "parameters"
    facts = f"{numbers.parameters(checkpoint.parameters)} {noun}, {numbers.size(checkpoint.bytes)}.{chosen} {read}"
    return head(f"{html(checkpoint.ref)}{commit}{where}", facts)


def _stored_answer(report: DtypeReport) -> str:
    dtypes = [part.dtype for part in sorted(report.storage, key=lambda part: -part.bytes)]
    more = f" + {len(dtypes) - 2} more" if len(dtypes) > 2 else ""
    return " + ".join(dtypes[:2]) + more or "Nothing"


def _stored(report: DtypeReport) -> str:
    parts = sorted(report.storage, key=lambda part: -part.bytes)
    if len(parts) == 1:
        held = f"{numbers.plural(parts[0].tensors, 'tensor')}, all {parts[0].dtype}."
    else:
        listed = [f"{numbers.plural(part.tensors, 'tensor')} {part.dtype}" for part in parts[:_DTYPES_LISTED]]
        if others := parts[_DTYPES_LISTED:]:
            listed.append(f"{numbers.plural(sum(part.tensors for part in others), 'tensor')} of other dtypes")
        held = ", ".join(listed) + "."
    said = f" The config says {report.config_dtype}." if report.config_dtype else " The config names no dtype."
    quantized = f" Quantized: {report.checkpoint.quantization}." if report.checkpoint.quantization else ""
    return tile("Stored as", _stored_answer(report), tag("fact", "fact"), f"<p>{prose(held + said + quantized)}</p>")


def _lineage_answer(report: DtypeReport) -> tuple[str, str]:
    lineage = report.lineage
    if lineage.passed_through:
        path = " → ".join((*(name.replace("_", " ") for name in lineage.passed_through), format_name(lineage.stored)))
        return ("Mixed" if lineage.verdict == "mixed" else path), "proof"
    if lineage.verdict in _PROVEN_NOTHING:
        return _PROVEN_NOTHING[lineage.verdict]
    parts_proven = any(part.verdict not in _PROVEN_NOTHING for part in lineage.parts)
    return "Mixed", "proof" if parts_proven else "fact"


def _passed_through(report: DtypeReport) -> str:
    answer, kind = _lineage_answer(report)
    text = {"undecided": "not decided"}.get(kind, kind)
    return tile("Passed through", answer, tag(kind, text), f"<p>{prose(report.lineage.statement)}</p>")


_RISK = {
    "fits": ("Weights fit", "warning", "activations may not"),
    "caution": ("Weights fit, with losses", "warning", "activations may not"),
    "overflow": ("Weights overflow", "warning", "fact"),
    "unknown": ("Cannot tell", "undecided", "not decided"),
}


def _safe_in_fp16(report: DtypeReport) -> str:
    answer, kind, text = _RISK[report.fp16_risk.level]
    # the last reason is the caveat about activations
    reasons = " ".join(dict.fromkeys((*report.fp16_risk.reasons[:2], *report.fp16_risk.reasons[-1:])))
    return tile("Safe in fp16?", answer, tag(kind, text), f"<p>{prose(reasons)}</p>")
