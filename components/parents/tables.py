"""Renders the map of layers, and declares the table of conversions as shown on a page."""

from dataclasses import replace

from analyzers import limits
from analyzers.parents.columns import CONVERSION, LAYER_MAP
from analyzers.parents.conversion_text import layer_runs
from analyzers.parents.report import ParentsReport
from components.results.tables import Sortable, listed
from components.text import table


def layer_map(report: ParentsReport) -> str:
    """Render a summary by runs of consecutive layers, then a row for each layer."""
    together = [(f"{run.text[:1].upper()}{run.text[1:]}",) for run in layer_runs(report.layer_map)]
    return (table(("In short",), together) if len(together) < len(report.layer_map) else "") + listed(LAYER_MAP, report)


CONVERSIONS = Sortable(replace(CONVERSION, rows=lambda report: list(CONVERSION.rows(report))[: limits.REPORT_TENSORS]), "m-conversion")
