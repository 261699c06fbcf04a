"""Defines the tasks that every engine runs, in this process or on a worker: scanning one checkpoint, whole or in parts."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from analyzers.checkpoints import Access
from analyzers.checkpoints.reading.worker_threads import Stopped
from analyzers.core import limits
from analyzers.core.request import Progress
from analyzers.dtype_detection import DtypeRequest, Inspection, Partial
from analyzers.numerics.device import Device
from analyzers.scan.journal import Outcome

# Access of the command line: this machine's Hub token, and local paths.
ACCESS = Access(token=True, local=True)


@dataclass(frozen=True, slots=True)
class Task:
    """Options of the scan of one checkpoint. threads: parallel reads of a local file; None: one per core."""

    each: DtypeRequest
    device: Device
    threads: int | None

    def open(self, key: str) -> Inspection:
        """Open a checkpoint. Raises MantissaError."""
        return Inspection(self.each.model_copy(update={"model": key}), ACCESS, device=self.device, threads=self.threads)

    def scan(self, key: str, stopped: Callable[[], bool] = lambda: False) -> Outcome:
        """Scan a whole checkpoint. Raises Stopped."""
        done = self._scan(key, None, stopped)
        assert isinstance(done, Outcome)
        return done

    def begin(self, key: str) -> Outcome | int:
        """Scan a checkpoint of up to SCAN_PART_BYTES; for a larger one, return the number of parts to count it in."""
        return self._scan(key, limits.SCAN_PART_BYTES)

    def _scan(self, key: str, part_bytes: int | None, stopped: Callable[[], bool] = lambda: False) -> Outcome | int:
        start = time.monotonic()
        try:
            with self.open(key) as inspection:
                if part_bytes is not None and (parts := inspection.parts(part_bytes)) > 1:
                    return parts
                outcome = _reported(key, inspection, [_counted(inspection, 0, 1, stopped)])
        except Exception as error:
            if stopped():  # the error is a consequence of stopping
                raise Stopped from None
            outcome = Outcome.failed(key, error)
        return replace(outcome, seconds=time.monotonic() - start)

    def count(self, key: str, part: int, parts: int) -> Partial | Outcome:
        """Count one part of a checkpoint; return an Outcome on failure."""
        try:
            with self.open(key) as inspection:
                return _counted(inspection, part, parts, lambda: False)
        except Exception as error:
            return Outcome.failed(key, error)

    def combine(self, key: str, partials: Sequence[Partial | Outcome], started: float) -> Outcome:
        """Combine the counted parts of a checkpoint into its outcome. started: seconds since the epoch."""
        counted = [each for each in partials if isinstance(each, Partial)]
        outcome = next((each for each in partials if isinstance(each, Outcome)), None)
        if outcome is None:
            try:
                with self.open(key) as inspection:
                    outcome = _reported(key, inspection, counted)
            except Exception as error:
                outcome = Outcome.failed(key, error)
        return replace(outcome, seconds=time.time() - started)


def _counted(inspection: Inspection, part: int, parts: int, stopped: Callable[[], bool]) -> Partial:
    with closing(inspection.count(part, parts)) as steps:
        for step in steps:
            if not isinstance(step, Progress):
                return step
            if stopped():
                raise Stopped
    raise AssertionError("a count ends with its result")


def _reported(key: str, inspection: Inspection, partials: Sequence[Partial]) -> Outcome:
    return Outcome(key, inspection.report(partials).model_dump_json(exclude={"timing", "environment"}))
