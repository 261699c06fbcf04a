"""Runs a scan on a dask.distributed cluster, which schedules the tasks and retries those of lost workers.

Each checkpoint is one task.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from analyzers.core import limits
from analyzers.core.errors import InvalidRequest, ProcessLost
from analyzers.dtype.report import ANALYSIS_VERSION
from analyzers.scan.one_checkpoint import Task
from analyzers.scan.outcomes import Outcome

LOCAL = "local"
_CONNECT_SECONDS = 30


def scan_on_cluster(address: str, task: Task, keys: Sequence[str]) -> Iterator[Outcome | None]:
    """Scan ``keys`` on the cluster whose scheduler is at ``address``, or on one process per core of this machine (``local``).

    Yields finished checkpoints in any order. Closing the generator cancels the rest. Raises InvalidRequest if there is no such cluster, or
    if its workers have another version of Mantissa or none.
    """
    try:
        from distributed import Client, LocalCluster, as_completed
    except ImportError:
        raise InvalidRequest("--dask needs dask.distributed: pip install distributed.") from None
    logging.getLogger("distributed").setLevel(logging.ERROR)  # lost workers are handled, not reported
    with ExitStack() as stack:
        if address == LOCAL:
            cluster: Any = LocalCluster(
                n_workers=limits.cores(), threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL
            )
            stack.enter_context(cluster)
        try:
            client = stack.enter_context(Client(cluster if address == LOCAL else address, timeout=_CONNECT_SECONDS))
        except (OSError, ValueError, TypeError):
            raise InvalidRequest(f"No dask scheduler answers at {address[:200]}: start one, or use --dask local.") from None
        _check_versions(client)
        names = dict(zip(client.map(task.scan, keys, pure=False), keys, strict=True))
        for future in as_completed(names):
            yield _result(names.pop(future), future)


def _result(key: str, future: Any) -> Outcome:
    from distributed.scheduler import KilledWorker

    try:
        outcome: Outcome = future.result()
        return outcome
    except KilledWorker:
        lost = ProcessLost("The workers that scanned this checkpoint were lost, one after another, perhaps because memory ran out.")
        return Outcome.failed(key, lost)
    except Exception as error:
        return Outcome.failed(key, error)


def _check_versions(client: Any) -> None:
    """Raise InvalidRequest unless every current worker runs the same analysis version as this process."""
    try:
        versions = set(client.run(_version).values())
    except Exception:
        raise InvalidRequest("The workers of the cluster cannot import Mantissa: install this version on each of them.") from None
    if versions - {ANALYSIS_VERSION}:
        raise InvalidRequest("The workers of the cluster have another version of Mantissa: install this one on each of them.")


def _version() -> int:
    return ANALYSIS_VERSION
