"""The third tile of the passport, "Trained in": what the library's labels say, which beats inference, or else what the weights suggest."""

from analyzers.dtype_detection import DtypeReport
from components.library import Consensus
from components.site import addresses, archive
from components.text import numbers
from components.text.markup import cited, tag, tile
from components.text.plain_text import html, prose

_LIKELY = 0.75
_DISPUTED = "Labels disagree"


def trained_in(report: DtypeReport, links: bool = True) -> str:
    """The tile. links: with a link to the library, which holds on the pages of the app only."""
    found = archive.consensus(report.checkpoint.ref)
    answer, kind, text = _answer(report, found)
    if found is None or not found.labels:
        bars = "" if kind == "label" else _bars(report.training.probabilities)
        source = f"<p>{cited(report.training.source)}</p>" if report.training.source else ""
        known = links and found is not None and kind != "label"
        more = f"<p>{_library_link(report, 'Known better? Add a label')}</p>" if known else ""
        return tile("Trained in", answer, tag(kind, text), f"{bars}<p>{prose(report.training.explanation)}</p>{source}{more}")
    said = f"{found.sentence[:1].upper()}{found.sentence[1:]}."
    disputed = f" {tag('warning', _DISPUTED.lower())}" if found.disputed and found.precision else ""
    source = f"<p>{cited(found.evidence, 'Evidence: ')}</p>" if found.evidence else ""
    bits, by_bits, _ = _inferred(report)
    inferred = f"<p>Inferred from the weights: {html(bits)}.</p>" if by_bits != "label" else ""
    more = f"<p>{_library_link(report, 'All labels')}</p>" if links else ""
    return tile("Trained in", answer, tag(kind, text) + disputed, f"<p>{html(said, 300)}</p>{source}{inferred}{more}")


def training_answer(report: DtypeReport) -> str:
    """The short answer, plain text."""
    return _answer(report, archive.consensus(report.checkpoint.ref))[0]


def _answer(report: DtypeReport, found: Consensus | None) -> tuple[str, str, str]:
    """The answer, the style of its tag, and the tag."""
    if found is None or not found.labels:
        return _inferred(report)
    if found.precision is None:
        return _DISPUTED, "warning", "label"
    unverified = all(row.label.provenance == "local" for row in found.labels)
    return found.precision, "label", "label, no login" if unverified else "label"


def _inferred(report: DtypeReport) -> tuple[str, str, str]:
    """The same as the report has it."""
    training = report.training
    if training.basis == "label":
        return training.verdict, "label", "label"
    if training.verdict == "undecided" or not training.probabilities:
        return "Cannot tell", "undecided", "not decided"
    # Magnitudes decide on 29 labelled models, and what they were surest of was wrong: no more than "perhaps".
    likely = training.basis == "lineage" and max(training.probabilities.values()) >= _LIKELY
    return f"{training.verdict}, {'likely' if likely else 'perhaps'}", "inference", "inference"


def _library_link(report: DtypeReport, text: str) -> str:
    return f'<a href="{html(addresses.labels_of(report.checkpoint.ref), 500)}">{text}</a>'


def _bars(probabilities: dict[str, float]) -> str:
    rows = []
    for name, value in sorted(probabilities.items(), key=lambda item: -item[1]):
        label, percent = html(name, 20), numbers.share(round(value, 2))
        meter = f'<meter min="0" max="1" value="{value:.4f}" aria-label="Probability of {label}">{percent}</meter>'
        rows.append(f"<li>{label}{meter}<span>{percent}</span></li>")
    return f'<ul class="m-bars">{"".join(rows)}</ul>' if rows else ""
