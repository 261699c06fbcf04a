"""Scans one checkpoint: what every process and every worker of a cluster runs."""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

from analyzers.checkpoints import Access
from analyzers.checkpoints.reading.worker_threads import Stopped
from analyzers.dtype import DtypeReport, DtypeRequest, Inspection
from analyzers.numerics.device import Device
from analyzers.scan.outcomes import Outcome

# Access of the command line: this machine's Hub token, and local paths.
ACCESS = Access(token=True, local=True)


@dataclass(frozen=True, slots=True)
class Task:
    """Options of the scan of one checkpoint. threads: parallel reads of a local file; None: one per core."""

    each: DtypeRequest
    device: Device
    threads: int | None

    def scan(self, key: str, stopped: Callable[[], bool] = lambda: False) -> Outcome:
        """Scan a checkpoint. Raises Stopped."""
        start = time.monotonic()
        try:
            request = self.each.model_copy(update={"model": key})
            with Inspection(request, ACCESS, device=self.device, threads=self.threads) as inspection:
                outcome = Outcome(key, report=_report(inspection, stopped).model_dump_json(exclude={"timing", "environment"}))
        except Exception as error:
            if stopped():  # the error is a consequence of stopping
                raise Stopped from None
            outcome = Outcome.failed(key, error)
        return replace(outcome, seconds=round(time.monotonic() - start, 3))


def _report(inspection: Inspection, stopped: Callable[[], bool]) -> DtypeReport:
    with closing(inspection.run()) as steps:
        while not stopped():
            try:
                next(steps)
            except StopIteration as end:
                report: DtypeReport = end.value
                return report
    raise Stopped
