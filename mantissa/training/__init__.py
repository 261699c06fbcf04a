"""Monitors a training run: which weights its updates reach at bf16 resolution."""

from typing import TYPE_CHECKING, Any

from analyzers.core.errors import MissingExtra
from analyzers.core.extras import extras_explained

try:
    with extras_explained():
        from mantissa.training.measurement import Look, RoleLook
        from mantissa.training.monitor import UpdateMonitor
except MissingExtra as missing:
    raise ImportError(str(missing)) from None

if TYPE_CHECKING:
    from mantissa.training.callback import MantissaCallback

__all__ = ["Look", "MantissaCallback", "RoleLook", "UpdateMonitor"]


def __getattr__(name: str) -> Any:
    if name == "MantissaCallback":  # importing transformers takes seconds, and other training loops do not need it
        from mantissa.training.callback import MantissaCallback

        return MantissaCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
