"""Who works on a scan: this process alone, or the processes of a launch (`launched.Launched`).

One process leads: it has the list and the folder, hands out checkpoints and takes in what came of them. Each has a few
threads that take checkpoints until none is left.
"""

import queue
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from analyzers.checkpoints import Access
from analyzers.dtype_detection import Inspection, Partial
from analyzers.scan.outcome import Outcome

# Seconds between two looks at what the others do.
PAUSE = 0.1

# What one's own reads may be of: the command line's, with the token of this machine.
ACCESS = Access(token=True, local=True)

# Opens a checkpoint by its reference; raises as `Inspection` does.
Open = Callable[[str], Inspection]

# Counts part k of n; raises as `Inspection.count` does.
CountPart = Callable[[Inspection, int, int], Partial]


@dataclass(frozen=True, slots=True)
class Done:
    """An outcome, in how many seconds it came about, in which process, and how many parts of the checkpoint others counted for it."""

    outcome: Outcome
    seconds: float
    process: int
    by_others: int


class Team(Protocol):
    """What a scan asks of the processes it runs in. Safe to use from several threads."""

    @property
    def processes(self) -> int:
        """How many there are."""

    @property
    def leads(self) -> bool:
        """Whether this one has the list and the folder."""

    @property
    def stopped(self) -> bool:
        """Whether work is to end at once."""

    def begin(self, keys: Sequence[str]) -> None:
        """Hand out these checkpoints. Called once, by the leading process."""

    def take(self) -> str | None:
        """The next checkpoint to work on; None when none is left."""

    def give(self, done: Done) -> None:
        """Hand in what came of a checkpoint."""

    def done(self) -> Iterator[Done | None]:
        """What was handed in by all, as it comes, until nothing is missing; None at least once a second. For the leading process."""

    def share(self, key: str, inspection: Inspection, count: CountPart) -> list[Partial]:
        """Count all of a checkpoint, with the help of idle processes where it is large."""

    def help(self, opener: Open, count: CountPart) -> None:
        """Take over parts of others' checkpoints until the scan is over."""

    def stop(self, reason: str) -> None:
        """Let everybody end at once."""


class Alone:
    """A team of one process."""

    processes = 1
    leads = True

    def __init__(self) -> None:
        self.stopped = False
        self._waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self._missing = 0

    def begin(self, keys: Sequence[str]) -> None:
        """See `Team`."""
        self._missing = len(keys)
        for key in keys:
            self._waiting.put(key)

    def take(self) -> str | None:
        """See `Team`."""
        try:
            return self._waiting.get_nowait()
        except queue.Empty:
            return None

    def give(self, done: Done) -> None:
        """See `Team`."""
        self._done.put(done)

    def done(self) -> Iterator[Done | None]:
        """See `Team`."""
        while self._missing:
            try:
                found = self._done.get(timeout=PAUSE)
            except queue.Empty:
                yield None
                continue
            self._missing -= 1
            yield found

    def share(self, key: str, inspection: Inspection, count: CountPart) -> list[Partial]:
        """See `Team`; there is nobody to share with."""
        return [count(inspection, 0, 1)]

    def help(self, opener: Open, count: CountPart) -> None:
        """See `Team`; there is nobody to help."""

    def stop(self, reason: str) -> None:
        """See `Team`."""
        self.stopped = True
