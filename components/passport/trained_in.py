"""The third tile of the passport, "Trained in": the consensus of the library's labels if there is one, else the inference."""

from typing import Any

from analyzers.dtype_detection import DtypeReport
from components.library import Consensus
from components.site import addresses, archive
from components.text import numbers
from components.text.markup import cited, tag, tile
from components.text.render import macros

_BODY = macros("passport/templates/trained_in.html")
_LIKELY = 0.75
_DISPUTED = "Labels disagree"


def trained_in(report: DtypeReport, links: bool = True) -> str:
    """The tile. links: include a link to the library, which works only on the app's pages."""
    found = archive.consensus(report.checkpoint.ref)
    answer, kind, text = _answer(report, found)
    if found is None or not found.labels:
        bars = {} if kind == "label" else report.training.probabilities
        known = links and found is not None and kind != "label"
        source = cited(report.training.source) if report.training.source else ""
        body = _BODY.inferred(_bars(bars), report.training.explanation, source, _library(report) if known else "")
        return tile("Trained in", answer, tag(kind, text), str(body))
    said = f"{found.sentence[:1].upper()}{found.sentence[1:]}."
    disputed = f" {tag('warning', _DISPUTED.lower())}" if found.disputed and found.precision else ""
    source = cited(found.evidence, "Evidence: ") if found.evidence else ""
    bits, by_bits, _ = _inferred(report)
    body = _BODY.labelled(said, source, bits if by_bits != "label" else "", _library(report) if links else "")
    return tile("Trained in", answer, tag(kind, text) + disputed, str(body))


def training_answer(report: DtypeReport) -> str:
    """The short answer, plain text."""
    return _answer(report, archive.consensus(report.checkpoint.ref))[0]


def _answer(report: DtypeReport, found: Consensus | None) -> tuple[str, str, str]:
    """The answer, the style of its tag, and the tag's text."""
    if found is None or not found.labels:
        return _inferred(report)
    if found.precision is None:
        return _DISPUTED, "warning", "label"
    unverified = all(row.label.provenance == "local" for row in found.labels)
    return found.precision, "label", "label, no login" if unverified else "label"


def _inferred(report: DtypeReport) -> tuple[str, str, str]:
    """The same, from the report's inference alone."""
    training = report.training
    if training.basis == "label":
        return training.verdict, "label", "label"
    if training.verdict == "undecided" or not training.probabilities:
        return "Cannot tell", "undecided", "not decided"
    # Magnitudes rest on 29 labelled models, and the most confident predictions were wrong: never say more than "perhaps".
    likely = training.basis == "lineage" and max(training.probabilities.values()) >= _LIKELY
    return f"{training.verdict}, {'likely' if likely else 'perhaps'}", "inference", "inference"


def _library(report: DtypeReport) -> str:
    """The address of the model's labels."""
    return addresses.labels_of(report.checkpoint.ref)


def _bars(probabilities: dict[str, float]) -> list[dict[str, Any]]:
    ranked = sorted(probabilities.items(), key=lambda item: -item[1])
    return [{"name": name, "value": value, "percent": numbers.share(round(value, 2))} for name, value in ranked]
