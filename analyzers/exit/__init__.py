"""Exit feedback: how close is a cheap gradient at the LM head, computed without backpropagation, to the exact one?

Importing this package does not import torch, so that forms can read the names of signals. The subpackage ``heads``, which can train
other models, needs nothing but torch.
"""

from analyzers.exit.analyze import analyze
from analyzers.exit.report import ExitReport
from analyzers.exit.request import ExitRequest

__all__ = ["ExitReport", "ExitRequest", "analyze"]
