"""The passport: one report as the head and the four tiles that answer at a glance, in HTML.

Each tile has one short answer, one tag for how we know it, and a sentence or two with the numbers. Whatever comes
from a checkpoint or from a label is escaped here.
"""

from urllib.parse import urlsplit

from analyzers.dtype_detection import DtypeReport
from analyzers.language_models.samples import SAMPLES
from components import numbers
from components.markup import head, tag, tile
from components.plain_text import html, prose

FORMATS = {"F64": "fp64", "F32": "fp32", "F16": "fp16", "BF16": "bf16", "F8_E4M3": "fp8 e4m3", "F8_E5M2": "fp8 e5m2"}
_PROVEN_NOTHING = {"native": ("Nothing narrower", "fact"), "undecided": ("Undecided", "undecided")}
_LIKELY = 0.75
_DTYPES_LISTED = 4


def passport(report: DtypeReport) -> str:
    """The head and the four tiles of one report."""
    tiles = _stored(report) + _passed_through(report) + _trained_in(report) + _safe_in_fp16(report)
    return (
        f'<section class="m-card" aria-label="Passport">{_head(report)}{_about_sample(report)}<div class="m-tiles">{tiles}</div></section>'
    )


def summary(report: DtypeReport) -> str:
    """The four answers as one sentence of plain text (not HTML), for a status line or a screen reader."""
    stored, passed, trained, risk = answers(report)
    return f"{report.checkpoint.ref}: stored as {stored}; passed through: {passed}; trained in: {trained}; in fp16: {risk}."


def answers(report: DtypeReport) -> tuple[str, str, str, str]:
    """The answers of the four tiles, plain text: stored as, passed through, trained in, safe in fp16."""
    return _stored_answer(report), _lineage_answer(report)[0], _training_answer(report)[0], _RISK[report.fp16_risk.level][0]


def format_name(dtype: str) -> str:
    """A storage dtype of safetensors by the name the field uses: ``F32`` is fp32. Plain text."""
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


def _about_sample(report: DtypeReport) -> str:
    """What a built-in sample is and shows: the truth about it is known."""
    sample = SAMPLES.get(report.checkpoint.ref.removeprefix("sample:")) if report.checkpoint.ref.startswith("sample:") else None
    return f'<p class="m-sample">A built-in sample: {html(f"{sample.description}. It shows {sample.shows}.", 500)}</p>' if sample else ""


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


def _training_answer(report: DtypeReport) -> tuple[str, str, str]:
    training = report.training
    if training.basis == "label":
        return training.verdict, "label", "label"
    if training.verdict == "undecided" or not training.probabilities:
        return "Cannot tell", "undecided", "not decided"
    # Magnitudes decide on 29 labelled models, and what they were surest of was wrong: no more than "perhaps".
    likely = training.basis == "lineage" and max(training.probabilities.values()) >= _LIKELY
    return f"{training.verdict}, {'likely' if likely else 'perhaps'}", "inference", "inference"


def _trained_in(report: DtypeReport) -> str:
    answer, kind, text = _training_answer(report)
    bars = "" if kind == "label" else _bars(report.training.probabilities)
    source = f"<p>{_source(report.training.source)}</p>" if report.training.source else ""
    return tile("Trained in", answer, tag(kind, text), f"{bars}<p>{prose(report.training.explanation)}</p>{source}")


def _bars(probabilities: dict[str, float]) -> str:
    rows = []
    for name, value in sorted(probabilities.items(), key=lambda item: -item[1]):
        label, percent = html(name, 20), numbers.share(round(value, 2))
        meter = f'<meter min="0" max="1" value="{value:.4f}" aria-label="Probability of {label}">{percent}</meter>'
        rows.append(f"<li>{label}{meter}<span>{percent}</span></li>")
    return f'<ul class="m-bars">{"".join(rows)}</ul>' if rows else ""


def _source(source: str) -> str:
    """A link where the source is an address; else the text itself."""
    try:
        link = urlsplit(source).scheme in ("http", "https") and urlsplit(source).hostname
    except ValueError:
        link = None
    if not link:
        return f"Source: {html(source)}"
    return f'<a href="{html(source, len(source))}" rel="noopener noreferrer nofollow" target="_blank">Source: {html(link)}</a>'


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
