"""Learns from the runs that had a GPU how many seconds to request for the next."""

from collections import defaultdict, deque
from threading import Lock

# A factor needs so many runs, and forgets all but so many; the longest of them decides, and may be exceeded by half.
_FEWEST, _NEWEST, _MARGIN = 3, 8, 1.5
# Beyond these bounds the runs were unlike the one to come.
_LEAST, _MOST = 0.25, 4.0


class GpuRates:
    """Seconds that the newest runs of each analyzer had a GPU for, as multiples of their estimates. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._ratios: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_NEWEST))

    def record(self, analyzer: str, seconds: float, estimated: float) -> None:
        """Record a run. estimated: its seconds without a factor."""
        with self._lock:
            self._ratios[analyzer].append(seconds / estimated)

    def factor(self, analyzer: str) -> float:
        """Return what to multiply the estimate of the next run by: 1 before enough runs were measured."""
        with self._lock:
            ratios = self._ratios[analyzer]
            return min(_MOST, max(_LEAST, _MARGIN * max(ratios))) if len(ratios) >= _FEWEST else 1.0
