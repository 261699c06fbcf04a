"""Exit feedback: how close is a cheap gradient at the LM head, computed without backpropagation, to the exact one?"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analyzers.exit_feedback.analysis import analyze
    from analyzers.exit_feedback.report import TIMINGS, ExitProgress, ExitReport
    from analyzers.exit_feedback.request import ExitRequest
    from analyzers.exit_feedback.words import headline

__all__ = ["TIMINGS", "ExitProgress", "ExitReport", "ExitRequest", "analyze", "headline"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Exports are imported on first use: ``heads``, which train other models, need only torch, and ``signals`` not even that."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from analyzers.exit_feedback import report, request

        exported = vars(request) | vars(report)
        if name not in exported:
            from analyzers.exit_feedback import analysis, words

            exported = vars(analysis) | vars(words)
        return exported[name]
