"""Gradient conflict: do samples pull the same neuron in opposite directions, and does one of them dominate?

Importing this package does not import torch: forms and endpoints need only the request.
"""

from analyzers.conflict.analyze import analyze
from analyzers.conflict.report import ConflictReport
from analyzers.conflict.request import TOPK_OPTIONS, ConflictRequest

__all__ = ["TOPK_OPTIONS", "ConflictReport", "ConflictRequest", "analyze"]
