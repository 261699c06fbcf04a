"""Styles that distinguish the series of a figure (variants, methods), and a logarithmic axis."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from components.plots.style import COLOURS, DASHES, MARKERS, log_axis

# Padding beyond the smallest and the largest value, and the inset of marks for values off the axis; both as factors.
_ROOM = 1.6
_INSIDE = 1.12
_NONE = (1e-3, 1.0)


def marked(index: int) -> dict[str, Any]:
    """Colour, dash and marker of series ``index``. When colours repeat, dashes and markers shift by one."""
    again = index + index // len(COLOURS)
    return {"color": COLOURS[index % len(COLOURS)], "dash": DASHES[again % len(DASHES)], "symbol": MARKERS[again % len(MARKERS)]}


@dataclass(frozen=True, slots=True)
class LogAxis:
    """A logarithmic axis from ``low`` to ``high``."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "LogAxis":
        """An axis that covers the positive values; a default range if there are none."""
        known = [value for value in values if value]
        low, high = (min(known), max(known)) if known else _NONE
        return cls(low / _ROOM, high * _ROOM)

    @property
    def edges(self) -> tuple[float, float]:
        """Positions of marks for values that are off the axis."""
        return self.low * _INSIDE, self.high / _INSIDE

    def settings(self) -> dict[str, Any]:
        """Plotly's axis settings."""
        return log_axis(math.log10(self.low), math.log10(self.high)) | {"tickangle": 0}


def shortened(name: str, longest: int) -> str:
    """Truncate a long name in the middle: its beginning and end are the most informative."""
    return name if len(name) <= longest else f"{name[: (longest - 1) // 2]}…{name[-(longest // 2) :]}"
