"""Gradient conflict: do samples pull the same neuron in opposite directions, and does one of them dominate?

Importing this package does not import torch: forms and endpoints need only the request.
"""

from analyzers.gradient_conflict.analyze import analyze
from analyzers.gradient_conflict.report import ConflictReport
from analyzers.gradient_conflict.request import TOPK_OPTIONS, ConflictRequest, TextPair

__all__ = ["TOPK_OPTIONS", "ConflictReport", "ConflictRequest", "TextPair", "analyze"]
