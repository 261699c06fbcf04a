"""Precision variants: how does rounding error grow through a model, forward and backward, in each way of running it?"""

from typing import TYPE_CHECKING, Any

from analyzers.precision_variants.report import PrecisionReport, PrecisionRequest, VariantProgress
from analyzers.precision_variants.variants import DEFAULT, PRESETS, described, parse_variant

if TYPE_CHECKING:
    from analyzers.precision_variants.analyze import analyze

__all__ = ["DEFAULT", "PRESETS", "PrecisionReport", "PrecisionRequest", "VariantProgress", "analyze", "described", "parse_variant"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import ``analyze``, and with it torch, on first use: forms and endpoints need the request alone."""
        if name != "analyze":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from analyzers.precision_variants.analyze import analyze

        globals()[name] = analyze  # the import has put the module there
        return analyze
