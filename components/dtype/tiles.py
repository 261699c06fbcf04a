"""The tiles of the passport with what the library knows: labels outrank what is inferred from the weights."""

from analyzers.core.notes import Tile
from analyzers.dtype_detection import DtypeReport
from components.site import addresses, stored_results
from components.text import html


def tiles(report: DtypeReport) -> list[Tile]:
    """Return the tiles of a report, with the training precision of the library's labels if there are any."""
    found = stored_results.consensus(report.checkpoint.ref)
    if found is None or not found.votes:
        return report.tiles()
    kind = "warning" if found.precision is None else "label"
    evidence = f" Evidence: {found.evidence}" if found.evidence else ""
    detail = f"{'Own label: ' * found.own}{found.sentence[:1].upper()}{found.sentence[1:]}.{evidence}"
    trained = Tile(label="Trained in", value=found.precision or "labels disagree", kind=kind, detail=detail, whole=True)
    return [trained if tile.label == trained.label else tile for tile in report.tiles()]


def labels(report: DtypeReport, links: bool) -> str:
    """Render the link to the labels of a model in the library; "" where there are none, or no links."""
    if not links or stored_results.consensus(report.checkpoint.ref) is None:
        return ""
    return f'<p class="m-say m-below"><a href="{html(addresses.labels_of(report.checkpoint.ref))}">Labels of this model, or add one</a></p>'
