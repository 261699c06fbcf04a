"""Precision variants: how does rounding error grow through a model, forward and backward, in each way of running it?

Loads without torch: forms read presets and published settings here.
"""

from analyzers.precision.analyze import analyze
from analyzers.precision.report import PrecisionReport
from analyzers.precision.request import PrecisionRequest
from analyzers.precision.variants import ABOUT, DEFAULT, PRESETS, described, parse_variant

__all__ = ["ABOUT", "DEFAULT", "PRESETS", "PrecisionReport", "PrecisionRequest", "analyze", "described", "parse_variant"]
