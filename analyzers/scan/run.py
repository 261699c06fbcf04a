"""Runs a scan, from its list to its tables."""

import sys
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from analyzers.checkpoints import Access
from analyzers.checkpoints.reading.worker_threads import work_through
from analyzers.core import limits
from analyzers.core.errors import InvalidRequest
from analyzers.core.progress_bar import COMPILING
from analyzers.core.terminal import plural, print_line
from analyzers.numerics.compilation import on_compiling
from analyzers.numerics.device import choose_device
from analyzers.scan.cluster import scan_on_cluster
from analyzers.scan.journal import Journal, Outcome
from analyzers.scan.listing import Listed, read_list
from analyzers.scan.ranks import Rank
from analyzers.scan.request import ScanRequest
from analyzers.scan.scan_folder import ScanFolder
from analyzers.scan.tables import CHECKPOINTS, TENSORS
from analyzers.scan.tasks import ACCESS, Task

# Seconds between two lines of progress if standard error is not a terminal.
_LINE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a scan.

    checkpoints: number in the list; errors: class -> count; done_before: number finished by earlier runs; transient: number of errors that
    may not recur; written: whether the tables were written again; processes: number in the launch, 1 without one.
    """

    checkpoints: int
    ok: int
    errors: dict[str, int]
    transient: int
    done_before: int
    scanned: int
    written: bool
    processes: int
    seconds: float
    tables: tuple[str, str]


def scan(request: ScanRequest, out: Path) -> Summary | None:
    """Scan the list of ``request`` into the folder ``out``; return None in every process of a launch except the first.

    Raises MantissaError for a list, folder, cluster or device that cannot be used; an error of a single checkpoint is a row of the table.
    After a KeyboardInterrupt, finished checkpoints stay in the journal.
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
    with ScanFolder(out, request) as folder:
        listed = read_list(request.source, request.limit, lambda kind, text, limit: folder.find(_ask_hub, kind, text, limit))
        missing = folder.missing(listed)
        before = len({one.key for one in listed if one.problem is None}) - len(missing)
        share = missing if rank is None else rank.share(missing)
        with closing(_engine(request, share, rank)) as running:
            for outcome in _shown(running, len(share), before):
                folder.journal.append(outcome)
        if rank is not None:
            rank.wait()
            folder.merge_shards()
        written = folder.write_tables(listed)
        processes = 1 if rank is None else rank.world
        return _summary(listed, folder, (before, len(missing)), written, processes, time.monotonic() - start)


def _scan_share(rank: Rank, request: ScanRequest, out: Path) -> None:
    """Scan the share of a process of a launch that is not the first."""
    keys = rank.share(None)
    with Journal(out / rank.journal) as journal, closing(_engine(request, keys, rank)) as running:
        for done in running:
            if done is not None:
                journal.append(done, f"rank {rank.rank}")
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


def _summary(listed: list[Listed], folder: ScanFolder, work: tuple[int, int], written: bool, processes: int, seconds: float) -> Summary:
    entries = [folder.journal.entries[one.key] for one in listed if one.problem is None]
    errors = Counter(entry.error for entry in entries if entry.error)
    errors["InvalidReference"] += len(listed) - len(entries)
    return Summary(
        checkpoints=len(listed),
        ok=sum(not entry.error for entry in entries),
        errors={kind: number for kind, number in sorted(errors.items()) if number},
        transient=sum(entry.transient for entry in entries),
        done_before=work[0],
        scanned=work[1],
        written=written,
        processes=processes,
        seconds=seconds,
        tables=(str(folder.path / CHECKPOINTS), str(folder.path / TENSORS)),
    )


def _ask_hub(kind: str, text: str, limit: int) -> list[str]:
    # Local import: a scan of samples and local paths does not need the Hub's client.
    from analyzers.checkpoints.hub.hub_repository import list_models

    return list_models(kind, text, limit, Access(token=ACCESS.token))


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
