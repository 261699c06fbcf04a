"""Lays out the passport: a header, four tiles, and the tabs below. Escapes all text from checkpoints and labels."""

from typing import Any

from analyzers.dtype_detection import DtypeReport
from analyzers.dtype_detection.advice import narrower_saves, suggestions
from analyzers.dtype_detection.columns import QUANTIZATION, TENSORS
from analyzers.dtype_detection.report import Training
from analyzers.dtype_detection.sentences import SOURCE, SOURCES, narrower
from components.dtype import grid_plot, plots
from components.dtype.form import permalink
from components.dtype.labelled_models_plot import among_models
from components.dtype.tables import evidence, grids, headroom, overview, still
from components.dtype.text import (
    DISPUTED,
    NOT_TESTED,
    captions,
    inferred,
    lineage_answer,
    outranks,
    risk,
    stored_answer,
    summary,
    trained_answer,
    verdicts,
)
from components.forms.form import command
from components.results.copy_offer import CopyOffer, on_hub
from components.results.coverage_tab import COVERAGE
from components.results.layout import Caption, Layout, Piece, Plot, Rows, Tab
from components.results.tables import Sortable
from components.site import addresses, stored_results
from components.text import cited, head, html, link, macros, numbers, prose, shown, tag, tile
from components.text.headline import about_sample, answered, card, short, tiles

_BODY = macros("dtype/templates/trained_in.html")
_COULD = macros("dtype/templates/suggestions.html")
_DTYPES_LISTED = 4


def passport(report: DtypeReport, links: bool = True) -> str:
    """Render the header, the answer and the four tiles of a report. links: include links that work only on the app's pages."""
    questions = tiles(
        report,
        links,
        ("questions", _stored(report)),
        ("lineage", _passed_through(report)),
        ("training", trained_in(report, links)),
        ("fp16", _safe_in_fp16(report, links)),
    )
    said, could = answered(report, summary(report), links), _COULD.suggestions(suggestions(report))
    return card("Passport", _head(report), said, questions, could, about_sample(report.checkpoint.ref, shows=True))


def _head(report: DtypeReport) -> str:
    checkpoint = report.checkpoint
    where = f" <small>in {html(report.request.subfolder)}</small>" if report.request.subfolder else ""
    of_all = f" ({numbers.share(report.bytes_read / checkpoint.bytes)})" if report.bytes_read <= checkpoint.bytes else ""
    read = f"Read {numbers.size(report.bytes_read)}{of_all} in {numbers.duration(report.timing.seconds)}"
    chosen = ""
    if report.selected_tensors != checkpoint.tensors:
        chosen = f" Looked at {numbers.count(report.selected_tensors)} of {numbers.plural(checkpoint.tensors, 'tensor')}."
    noun = "parameter" if checkpoint.parameters == 1 else "parameters"
    facts = f"{numbers.parameters(checkpoint.parameters)} {noun}, {numbers.size(checkpoint.bytes)}.{chosen} {read}"
    return head(f"{html(checkpoint.ref)}{short(checkpoint)}{where}", facts)


def _stored(report: DtypeReport) -> str:
    parts = sorted(report.storage, key=lambda part: -part.bytes)
    if len(parts) == 1 and not parts[0].computed:
        held = f"{numbers.plural(parts[0].tensors, 'tensor')}, all {parts[0].dtype}."
    else:
        shown, others = parts[:_DTYPES_LISTED], parts[_DTYPES_LISTED:]
        listed = [f"{numbers.plural(part.tensors, 'tensor')} {'computed in ' * part.computed}{part.dtype}" for part in shown]
        if others:
            listed.append(f"{numbers.plural(sum(part.tensors for part in others), 'tensor')} of other dtypes")
        held = ", ".join(listed) + "."
    said = f" The config says {report.config_dtype}." if report.config_dtype else " The config names no dtype."
    quantized = f" Quantized: {report.checkpoint.quantization}." if report.checkpoint.quantization else ""
    return tile("Stored as", stored_answer(report), tag("fact", "fact"), f"<p>{prose(held + said + quantized)}</p>")


def _passed_through(report: DtypeReport) -> str:
    answer, kind = lineage_answer(report)
    text = {"undecided": "not decided"}.get(kind, kind)
    reach = f" This is of a part: {report.short_reach()}." if not report.whole else ""
    return tile("Passed through", answer, tag(kind, text), f"<p>{prose(report.lineage.statement + reach)}</p>")


def _safe_in_fp16(report: DtypeReport, links: bool) -> str:
    answer, kind, text = risk(report)
    # the last reason is the caveat about activations
    reasons = " ".join(dict.fromkeys((*report.fp16_risk.reasons[:2], *report.fp16_risk.reasons[-1:])))
    test = ""
    if links and text == NOT_TESTED and not report.request.subfolder:
        test = _BODY.link(addresses.fp16_run(report.checkpoint.ref), "Test them on texts")
    return tile("Safe in fp16?", answer, tag(kind, text), f"<p>{prose(reasons)}</p>{test}")


def trained_in(report: DtypeReport, links: bool = True) -> str:
    """Render the tile of the training precision. links: include a link to the library, which works only on the app's pages."""
    consensus = stored_results.consensus(report.checkpoint.ref)
    answer, kind, text = trained_answer(report, consensus)
    if consensus is None or not consensus.votes:
        bars = report.training.probabilities if kind == "inference" else {}
        known = links and consensus is not None and kind != "label"
        source = _source(report.training)
        body = _BODY.inferred(_bars(bars), report.training.explanation, source, _library(report) if known else "")
        return tile("Trained in", answer, tag(kind, text), body)
    said = f"{consensus.sentence[:1].upper()}{consensus.sentence[1:]}."
    disputed = f" {tag('warning', DISPUTED.lower())}" if consensus.disputed and consensus.precision else ""
    source = cited(consensus.evidence, "Evidence: ") if consensus.evidence else ""
    bits, by_bits, _ = inferred(report)
    wins = outranks(answer, report.training.verdict) if kind == "label" and by_bits == "inference" else ""
    body = _BODY.labelled(said, source, bits if by_bits != "label" else "", wins, _library(report) if links else "")
    return tile("Trained in", answer, tag(kind, text) + disputed, body)


def _source(training: Training) -> str:
    """Render where an answer comes from: a label's evidence, or the repository of the labels and the rule that an inference rests on."""
    if training.source == SOURCE:
        return link(f"https://github.com/{SOURCE}", f"({SOURCES.get(training.basis, 'source')}: {SOURCE})")
    return cited(training.source) if training.source else ""


def _library(report: DtypeReport) -> str:
    """Return the address of the model's labels."""
    return addresses.labels_of(report.checkpoint.ref)


def _bars(probabilities: dict[str, float]) -> list[dict[str, Any]]:
    ranked = sorted(probabilities.items(), key=lambda item: -item[1])
    return [{"name": name, "value": value, "percent": numbers.share(round(value, 2))} for name, value in ranked]


def _drawable(report: DtypeReport) -> bool:
    return not plots.why_empty(report)


def copy_offer(report: DtypeReport) -> CopyOffer | None:
    """Offer to store the model in the format that holds every value read of all its tensors, if there is one."""
    held, request = narrower(report), report.request
    if not held or request.include or request.exclude or request.subfolder or not on_hub(report.checkpoint):
        return None
    after = report.checkpoint.bytes - narrower_saves(report, held)
    known = f"Every value was read, and {held} holds all of them bit for bit."
    if not (report.whole and report.extremes.exact):
        known = f"{held} holds every value read so far bit for bit; the others are read first, and if one does not fit, nothing is opened."
    return CopyOffer(report.checkpoint, after, known, held)


_TABS: tuple[Tab[DtypeReport], ...] = (
    Tab("Evidence", [Piece(evidence)]),
    Tab(
        "Grid",
        [
            Caption(grid_plot.caption),
            Plot("One group on its grid", grid_plot.group_on_grid, lambda report: bool(grid_plot.example_of(report))),
            Piece(grids),
        ],
        lambda report: bool(report.grids),
    ),
    Tab("Spectrum", [Caption(captions.spectrum), Plot("Weight magnitudes", plots.spectrum, _drawable)]),
    Tab(
        "Movable",
        [Caption(captions.movable), Plot("Weights that a step can move", plots.movable), Piece(still)],
        lambda report: bool(report.movable),
    ),
    Tab(
        "Quantization",
        [Caption(captions.quantization), Piece(headroom), Rows(Sortable(QUANTIZATION, "m-quantization"))],
        lambda report: bool(report.quantization_roles),
    ),
    Tab("Layers", [Caption(captions.layers), Plot("Largest magnitude by layer", plots.layers, _drawable)]),
    Tab("Among models", [Caption(captions.among), Plot("Among models of known training precision", lambda report: among_models([report]))]),
    Tab("Tensors", [Caption(captions.tensors), Rows(Sortable(TENSORS, "m-tensors"))]),
    COVERAGE,
)
RESULT = Layout(
    title="Precision passport",
    name=lambda report: shown(report.checkpoint.ref, 60),
    headline=passport,
    summary=summary,
    permalink=permalink,
    command=command,
    tabs=_TABS,
    overview=overview,
    verdicts=verdicts,
    copy=copy_offer,
)
