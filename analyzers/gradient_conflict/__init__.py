"""Gradient conflict: do samples pull the same neuron in opposite directions, and does one of them dominate?"""

from typing import TYPE_CHECKING, Any

from analyzers.gradient_conflict.report import ConflictReport
from analyzers.gradient_conflict.request import TOPK_OPTIONS, ConflictRequest, TextPair

if TYPE_CHECKING:
    from analyzers.gradient_conflict.analyze import analyze

__all__ = ["TOPK_OPTIONS", "ConflictReport", "ConflictRequest", "TextPair", "analyze"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import ``analyze``, and with it torch, on first use: forms and endpoints need the request alone."""
        if name != "analyze":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from analyzers.gradient_conflict.analyze import analyze

        globals()[name] = analyze  # the import has put the module there
        return analyze
