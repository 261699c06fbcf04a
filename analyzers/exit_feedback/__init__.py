"""Exit feedback: how close does a cheap gradient at the LM head, made without backpropagation, come to the exact one?"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analyzers.exit_feedback.analysis import analyze
    from analyzers.exit_feedback.report import NULL, TIMINGS, ExitProgress, ExitReport
    from analyzers.exit_feedback.request import CEILINGS, METHODS, RANDOM, ExitRequest
    from analyzers.exit_feedback.words import headline

__all__ = ["CEILINGS", "METHODS", "NULL", "RANDOM", "TIMINGS", "ExitProgress", "ExitReport", "ExitRequest", "analyze", "headline"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """What is exported, imported when it is asked for: ``heads``, which train other models, need torch and nothing else."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from analyzers.exit_feedback import report, request

        found = vars(request) | vars(report)
        if name not in found:
            from analyzers.exit_feedback import analysis, words

            found = vars(analysis) | vars(words)
        return found[name]
