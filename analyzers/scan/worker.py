"""The threads of one process that scan checkpoints, one after the other."""

import threading
import time
from contextlib import closing

from analyzers.base import Progress
from analyzers.dtype_detection import DtypeRequest, Inspection, Partial
from analyzers.errors import ProcessLost
from analyzers.numerics.device import Device
from analyzers.scan.outcome import Outcome
from analyzers.scan.request import ScanRequest
from analyzers.scan.team import ACCESS, Done, Team

# Seconds that threads get to notice the end, before the process ends without them.
_PATIENCE = 2.0


class Stopped(Exception):
    """The scan is being ended."""


class Workers:
    """``request.jobs`` threads at work for a team; number: of this process, for the log; threads: per checkpoint, see `Inspection`."""

    def __init__(self, team: Team, request: ScanRequest, number: int, threads: int | None) -> None:
        self._team = team
        self._each: DtypeRequest = request.each
        self._device: Device = request.device
        self._number = number
        self._threads = threads
        self.failure: BaseException | None = None
        self._pool = [threading.Thread(target=self._run, name=f"scan-{i}", daemon=True) for i in range(request.jobs)]

    def start(self) -> None:
        """Begin."""
        for thread in self._pool:
            thread.start()

    def at_work(self) -> bool:
        """Whether a thread is still at work. Raises what ended one that should not have ended."""
        if self.failure is not None:
            raise self.failure
        return any(thread.is_alive() for thread in self._pool)

    def wait(self) -> bool:
        """Give the threads a moment to end; returns whether all did."""
        end = time.monotonic() + _PATIENCE
        for thread in self._pool:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._pool)

    def open(self, model: str) -> Inspection:
        """Open a checkpoint."""
        return Inspection(self._each.model_copy(update={"model": model}), ACCESS, device=self._device, threads=self._threads)

    def _run(self) -> None:
        try:
            while not self._team.stopped and (key := self._team.take()) is not None:
                self._team.give(self._scan(key))
            self._team.help(self.open, self._count)
        except Stopped:
            pass
        except BaseException as error:  # whatever it is belongs to the main thread
            self.failure = error

    def _scan(self, key: str) -> Done:
        start, by_others = time.monotonic(), 0

        def count(inspection: Inspection, part: int, parts: int) -> Partial:
            nonlocal by_others
            by_others -= 1
            return self._count(inspection, part, parts)

        try:
            with self.open(key) as inspection:
                partials = self._team.share(key, inspection, count)
                by_others += len(partials)
                report = inspection.report(partials)
            outcome = Outcome(key, report.model_dump_json(exclude={"timing", "environment"}))
        except (Stopped, ProcessLost):
            raise
        except Exception as error:
            if self._team.stopped:  # whatever came of it then says nothing about the checkpoint
                raise Stopped from None
            outcome, by_others = Outcome.failed(key, error), 0
        return Done(outcome, time.monotonic() - start, self._number, by_others)

    def _count(self, inspection: Inspection, part: int, parts: int) -> Partial:
        with closing(inspection.count(part, parts)) as steps:
            for step in steps:
                if not isinstance(step, Progress):
                    return step
                if self._team.stopped:
                    raise Stopped
        raise AssertionError("a count ends with what was found")
