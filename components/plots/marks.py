"""How the many things of one figure are told apart (variants, methods), and an axis of powers of ten."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from components.plots.style import COLOURS, DASHES, MARKERS, log_axis

# Empty room beyond the smallest and the largest value, and how far within it marks of values that have no place stand; both as factors.
_ROOM = 1.6
_INSIDE = 1.12
_NONE = (1e-3, 1.0)


def marked(index: int) -> dict[str, Any]:
    """Colour, dash and marker of the one numbered ``index``; beyond the colours there are, dashes and markers move on by one."""
    again = index + index // len(COLOURS)
    return {"color": COLOURS[index % len(COLOURS)], "dash": DASHES[again % len(DASHES)], "symbol": MARKERS[again % len(MARKERS)]}


@dataclass(frozen=True, slots=True)
class LogAxis:
    """An axis of powers of ten from ``low`` to ``high``."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "LogAxis":
        """One that holds the values above 0; any, where there are none."""
        known = [value for value in values if value]
        low, high = (min(known), max(known)) if known else _NONE
        return cls(low / _ROOM, high * _ROOM)

    @property
    def edges(self) -> tuple[float, float]:
        """Where marks of what has no place on the axis stand."""
        return self.low * _INSIDE, self.high / _INSIDE

    def settings(self) -> dict[str, Any]:
        """Of Plotly."""
        return log_axis(math.log10(self.low), math.log10(self.high)) | {"tickangle": 0}


def shortened(name: str, longest: int) -> str:
    """Without the middle of a long name, of which beginning and end tell more."""
    return name if len(name) <= longest else f"{name[: (longest - 1) // 2]}…{name[-(longest // 2) :]}"
