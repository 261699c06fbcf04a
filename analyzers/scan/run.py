"""Runs a scan, from its list to its tables."""

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from analyzers.checkpoints.reading.worker_threads import work_through
from analyzers.core import limits
from analyzers.core.errors import InvalidRequest
from analyzers.core.progress_bar import COMPILING
from analyzers.core.terminal import plural, print_line
from analyzers.dtype.report import ANALYSIS_VERSION
from analyzers.numerics.compilation import on_compiling
from analyzers.numerics.device import choose_device
from analyzers.scan.cluster import scan_on_cluster
from analyzers.scan.listing import read_list
from analyzers.scan.one_checkpoint import Task
from analyzers.scan.outcomes import FILE, Outcome, Outcomes, appending, writable
from analyzers.scan.ranks import Rank
from analyzers.scan.request import ScanRequest
from analyzers.scan.tables import CHECKPOINTS, TENSORS, write_tables

# Seconds between two lines of progress if standard error is not a terminal.
_LINE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a scan.

    checkpoints: number in the list; errors: class -> count; done_before: number finished by earlier runs; transient: number of errors that
    may not recur; processes: number in the launch, 1 without one.
    """

    checkpoints: int
    ok: int
    errors: dict[str, int]
    transient: int
    done_before: int
    scanned: int
    processes: int
    seconds: float
    tables: tuple[str, str]


def scan(request: ScanRequest, out: Path) -> Summary | None:
    """Scan the list of ``request`` into the folder ``out``; return None in every process of a launch except the first.

    Raises MantissaError for a list, folder, cluster or device that cannot be used; an error of a single checkpoint is a row of the table.
    After a KeyboardInterrupt, the outcomes of finished checkpoints are there.
    """
    rank = Rank.of()
    if rank is not None and request.dask is not None:
        raise InvalidRequest("Use either --dask or a launcher of several processes, not both.")
    if request.device == "cuda":
        if rank is not None:
            rank.take_one_gpu()
        choose_device(request.device)  # CUDA looks for devices only once, so this process must have chosen its own before
    if rank is not None and rank.rank > 0:
        _scan_share(rank, request, out)
        return None
    start = time.monotonic()
    known = Outcomes(out)
    options = _new_options(known, request, out)
    listed = read_list(request.source)
    keys = dict.fromkeys(one.key for one in listed if one.problem is None)
    missing = [key for key in keys if key not in known.entries or known.entries[key].transient]
    with appending(out) as append:
        if options is not None:
            append(json.dumps({"options": options}))
        share = missing if rank is None else rank.share(missing)
        with closing(_engine(request, share, rank)) as running:
            for outcome in _shown(running, len(share), len(keys) - len(missing)):
                append(outcome.line())
        if rank is not None:
            rank.wait()
        found = Outcomes(out)
        with writable(out):
            write_tables(out, listed, found)
    entries = [found.entries[one.key] for one in listed if one.problem is None]
    errors = Counter(entry.error for entry in entries if entry.error)
    errors["InvalidReference"] += len(listed) - len(entries)
    return Summary(
        checkpoints=len(listed),
        ok=sum(not entry.error for entry in entries),
        errors={kind: number for kind, number in sorted(errors.items()) if number},
        transient=sum(entry.transient for entry in entries),
        done_before=len(keys) - len(missing),
        scanned=len(missing),
        processes=1 if rank is None else rank.world,
        seconds=time.monotonic() - start,
        tables=(str(out / CHECKPOINTS), str(out / TENSORS)),
    )


def _new_options(known: Outcomes, request: ScanRequest, out: Path) -> dict[str, Any] | None:
    """Return the options of the scan, None if the folder has them.

    Raises InvalidRequest for a folder whose checkpoints were scanned with other options, or with tables of the same names that no scan
    made.
    """
    asked = request.each.model_dump(mode="json", exclude={"model"}) | {"analysis_version": ANALYSIS_VERSION}
    if known.options == asked:
        return None
    if known.entries:
        old = known.options or {}
        changed = sorted(name for name in old.keys() | asked.keys() if old.get(name) != asked.get(name))
        named = ", ".join(f"{name} was {old.get(name)!r}, now {asked.get(name)!r}" for name in changed)
        raise InvalidRequest(f"The checkpoints in this folder were scanned with other options ({named[:300]}): choose another folder.")
    for table in (CHECKPOINTS, TENSORS):
        if not (out / FILE).exists() and os.path.lexists(out / table):
            raise InvalidRequest(f"The folder has a {table} that no scan made and that would be lost: choose another one with --out.")
    return asked


def _scan_share(rank: Rank, request: ScanRequest, out: Path) -> None:
    """Scan the share of a process of a launch that is not the first."""
    keys = rank.share(None)
    with appending(out, rank.file) as append, closing(_engine(request, keys, rank)) as running:
        for done in running:
            if done is not None:
                append(done.line())
    rank.wait()


def _engine(request: ScanRequest, keys: Sequence[str], rank: Rank | None) -> Generator[Outcome | None, None, None]:
    if not keys:
        return
    if request.dask is not None:
        yield from scan_on_cluster(request.dask, Task(request.each, request.device, 1), keys)
    else:
        threads = None if rank is None else max(1, limits.cores() // rank.local_world)
        yield from _scan_here(Task(request.each, request.device, threads), keys, request.jobs)


def _scan_here(task: Task, keys: Sequence[str], jobs: int) -> Iterator[Outcome | None]:
    """Scan ``keys`` in ``jobs`` threads. Closing the generator stops them at their next chunk, without waiting."""
    stop = Event()
    work = work_through(keys, min(jobs, len(keys)), lambda: lambda key: task.scan(key, stop.is_set), stop, patience=0)
    with closing(work) as finished:
        for found in finished:
            yield found and found[1]


def _shown(outcomes: Iterable[Outcome | None], missing: int, before: int) -> Iterator[Outcome]:
    """Yield the finished outcomes, with progress on standard error: a bar on a terminal, otherwise a line every ten seconds."""
    from tqdm import tqdm

    done, errors, due, total = before, 0, time.monotonic() + _LINE_SECONDS, missing + before
    terminal = sys.stderr.isatty()
    bar = tqdm(total=total, initial=before, unit="checkpoint", leave=False, file=sys.stderr, disable=not terminal)
    with bar, on_compiling(lambda: bar.set_description_str(COMPILING)):
        for outcome in outcomes:
            if outcome is not None:
                done, errors = done + 1, errors + bool(outcome.error)
                bar.set_description_str("", refresh=False)
                bar.set_postfix(errors=errors, refresh=False)
                bar.update()
                yield outcome
            if not terminal and time.monotonic() >= due:
                print_line(f"{done:,} of {plural(total, 'checkpoint')}, {plural(errors, 'error')} in this run")
                due = time.monotonic() + _LINE_SECONDS
