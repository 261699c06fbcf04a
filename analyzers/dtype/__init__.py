"""Dtype detection: finds the formats that a checkpoint's weights are stored in, have passed through, and fit into."""

from analyzers.dtype.analyze import Inspection, analyze
from analyzers.dtype.report import DtypeReport, DtypeRequest

__all__ = ["DtypeReport", "DtypeRequest", "Inspection", "analyze"]
