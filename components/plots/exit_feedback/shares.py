"""Rows of signals: the share of their energy along the hidden state, and their cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import plotly.graph_objects as go

from analyzers.exit_feedback.report import ExitReport
from analyzers.exit_feedback.signals import EXACT
from components.plots.marks import mark_rows
from components.plots.style import exactly
from components.text import numbers

SIDES = ("at the head", "before the norm")
# Label -> form in the report.
FORMS = {"all logits at once": "whole", "in chunks": "chunked"}


def energy(report: ExitReport) -> go.Figure:
    """Percent of energy along the hidden state, of the exact gradient and each signal, at the head and before the norm."""
    exact = report.exact
    head = {EXACT: exact.parallel_energy} | {name: method.parallel_energy for name, method in report.methods.items()}
    before = {EXACT: exact.parallel_energy_before_norm}
    before |= {name: method.before_norm.parallel_energy for name, method in report.methods.items()}
    found = dict(zip(SIDES, map(_percent, (head, before)), strict=True))
    return mark_rows(found, list(head), "energy along h, %", lambda value: exactly(value / 100), zero="0")


def seconds(report: ExitReport) -> go.Figure:
    """Milliseconds for loss and gradients, whole and chunked."""
    return mark_rows(_cost(report, "seconds", 1e3), _rows(report), "milliseconds", lambda value: f"{value:.3g} ms")


def memory(report: ExitReport) -> go.Figure:
    """Megabytes allocated in addition to weights and inputs."""
    return mark_rows(_cost(report, "peak_bytes", 1e-6), _rows(report), "MB", lambda value: numbers.size(round(value * 1e6)))


def _percent(found: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if share is None else 100 * share for name, share in found.items()}


def _cost(report: ExitReport, of: Literal["seconds", "peak_bytes"], scale: float) -> dict[str, dict[str, float | None]]:
    """Label of a form -> method -> number."""
    rows = report.cost.rows
    return {name: {row.method: scale * getattr(row, of) for row in rows if row.form == form} for name, form in FORMS.items()}


def _rows(report: ExitReport) -> list[str]:
    return list(dict.fromkeys(row.method for row in report.cost.rows))
