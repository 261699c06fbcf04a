"""Renders the table of published conflict rates by layer, with their source."""

from analyzers.gradient_conflict.columns import PUBLISHED
from analyzers.gradient_conflict.published import SOURCE
from analyzers.gradient_conflict.report import ConflictReport
from components.results.tables import listed


def published(report: ConflictReport) -> str:
    """Render the published layers, next to those of this run if it has the published setting."""
    link = f'<a href="{SOURCE}" rel="noopener noreferrer" target="_blank">ZeroYuHuang/DynamicK-Tuning</a>'
    return f'{listed(PUBLISHED, report)}<p class="m-say m-below">Source: {link}, analysis_grads.ipynb.</p>'
