"""A scan from its list to its tables."""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from analyzers import limits
from analyzers.checkpoints import Access
from analyzers.errors import InvalidRequest, MantissaError
from analyzers.numerics.device import choose_device
from analyzers.scan.folder import ScanFolder
from analyzers.scan.listing import Listed, read_list
from analyzers.scan.request import ScanRequest
from analyzers.scan.store import Launch
from analyzers.scan.tables import CHECKPOINTS, TENSORS
from analyzers.scan.team import ACCESS, PAUSE, Alone, Team
from analyzers.scan.worker import Workers
from analyzers.terminal import plural

if TYPE_CHECKING:
    from analyzers.scan.launched import Launched

# Seconds between two lines of progress where standard error is no terminal.
_LINE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Summary:
    """How a scan ended.

    checkpoints: in the list; errors: kind -> how many; done_before: were done already when it began; passing: errors that
    may have passed at the next run; written: whether the tables had to be written anew.
    """

    checkpoints: int
    ok: int
    errors: dict[str, int]
    passing: int
    done_before: int
    scanned: int
    written: bool
    processes: int
    seconds: float
    tables: tuple[str, str]


def scan(request: ScanRequest, out: Path) -> Summary | None:
    """Scan what ``request`` lists into the folder ``out``; None in a process that only helped.

    Raises MantissaError for a list, folder or device that cannot be used and for a lost process; what is wrong with single
    checkpoints is a row of the table. KeyboardInterrupt leaves what was finished finished.
    """
    launch = Launch.of()
    if request.device == "cuda":
        if launch is not None:
            _take_one_device(launch)
        choose_device(request.device)  # CUDA looks once at which devices there are: after this process has taken its own
    if launch is None:
        return _lead(Alone(), request, out, 0, None)
    from analyzers.scan.launched import Launched

    team = Launched(launch)
    threads = max(1, limits.cores() // launch.local_world)
    try:
        summary = None
        if team.leads:
            summary = _lead(team, request, out, 0, threads)
        else:
            _follow(team, request, launch.rank, threads)
        team.leave()
        return summary
    except KeyboardInterrupt:
        team.stop("The scan was interrupted.")
        raise
    except BaseException:
        team.stop("Another process of the scan could not go on: see what it said.")
        raise


def _lead(team: Team, request: ScanRequest, out: Path, number: int, threads: int | None) -> Summary:
    start = time.monotonic()
    with ScanFolder(out, request) as folder:
        listed = read_list(request.source, request.limit, lambda kind, text, limit: folder.find(_ask_hub, kind, text, limit))
        missing = folder.missing(listed)
        before = len({one.key for one in listed if one.problem is None}) - len(missing)
        team.begin([one.key for one in missing])
        with _at_work(Workers(team, request, number, threads), team) as workers, _Ticker(len(missing), before) as ticker:
            if missing:
                import pandas  # noqa: F401 - pyarrow asks for it when it gets its first list
                import pyarrow.parquet  # noqa: F401 - both are loaded while checkpoints are counted, not once nobody has work left
            for done in team.done():
                workers.at_work()
                if done is not None:
                    folder.keep(done.outcome, seconds=round(done.seconds, 3), process=done.process, parts_by_others=done.by_others)
                    ticker.step(bool(done.outcome.error))
                ticker.show()
        written = folder.tables(listed)
        return _summary(listed, folder, (before, len(missing)), written, team.processes, time.monotonic() - start)


def _follow(team: "Launched", request: ScanRequest, number: int, threads: int) -> None:
    with _at_work(Workers(team, request, number, threads), team) as workers:
        while workers.at_work():
            team.check()
            time.sleep(PAUSE)


@contextmanager
def _at_work(workers: Workers, team: Team) -> Iterator[Workers]:
    """``workers``, started; they end with the block, at once where it is left by an error."""
    workers.start()
    try:
        yield workers
    except BaseException as error:
        team.stop(str(error) if isinstance(error, MantissaError) else "The scan was stopped.")
        workers.wait()
        raise
    while workers.at_work():
        time.sleep(0.02)


def _summary(listed: list[Listed], folder: ScanFolder, work: tuple[int, int], written: bool, processes: int, seconds: float) -> Summary:
    entries = [folder.journal.entries[one.key] for one in listed if one.problem is None]
    errors = Counter(entry.error for entry in entries if entry.error)
    errors["InvalidReference"] += len(listed) - len(entries)
    return Summary(
        checkpoints=len(listed),
        ok=sum(not entry.error for entry in entries),
        errors={kind: number for kind, number in sorted(errors.items()) if number},
        passing=sum(entry.passing for entry in entries),
        done_before=work[0],
        scanned=work[1],
        written=written,
        processes=processes,
        seconds=seconds,
        tables=(str(folder.path / CHECKPOINTS), str(folder.path / TENSORS)),
    )


def _ask_hub(kind: str, text: str, limit: int) -> list[str]:
    # Here and not at the top: files of samples and local paths do without the Hub's client.
    from analyzers.checkpoints.hub import list_models

    return list_models(kind, text, limit, Access(token=ACCESS.token))


def _take_one_device(launch: Launch) -> None:
    """Each process of a host counts on a GPU of its own. To be called before torch looks for them."""
    devices = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if devices and launch.local_rank >= len(devices):
        raise InvalidRequest(f"There are {launch.local_world} processes on this machine and {len(devices)} GPUs: start one for each.")
    os.environ["CUDA_VISIBLE_DEVICES"] = devices[launch.local_rank] if devices else str(launch.local_rank)


class _Ticker:
    """Progress on standard error: a bar on a terminal, else a line now and then. ``missing`` are to be done, ``before`` are done."""

    def __init__(self, missing: int, before: int) -> None:
        total = missing + before
        self._total, self._done, self._errors = total, before, 0
        self._next = time.monotonic() + _LINE_SECONDS
        self._bar = None
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=total, initial=before, unit="checkpoint", leave=False, file=sys.stderr)

    def step(self, failed: bool) -> None:
        """One more checkpoint is done."""
        self._done += 1
        self._errors += failed
        if self._bar is not None:
            self._bar.set_postfix(errors=self._errors, refresh=False)
            self._bar.update()

    def show(self) -> None:
        """Time has passed."""
        if self._bar is None and time.monotonic() >= self._next:
            errors = plural(self._errors, "error")
            print(f"{self._done:,} of {plural(self._total, 'checkpoint')}, {errors} in this run", file=sys.stderr, flush=True)
            self._next = time.monotonic() + _LINE_SECONDS

    def __enter__(self) -> "_Ticker":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
