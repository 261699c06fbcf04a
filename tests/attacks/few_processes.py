"""Runs analyses without free processes: ``python -m tests.attacks.few_processes``, run by `command`, prints the error of each, or ""."""

import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from analyzers.checkpoints import Access
from analyzers.core.errors import MantissaError
from analyzers.core.report import Report
from analyzers.dtype_detection import DtypeRequest
from components.running import analysis_process

AT_ONCE = 8
# Limit on processes: this one with its threads, the fork server, its tracker, and two analyses.
TASKS = AT_ONCE + 5


def command() -> list[str]:
    """Return the command that runs this module with the limit.

    The system does not count root's processes, so ``setpriv`` changes the real user, without losing root's access to files.
    """
    program = ["prlimit", f"--nproc={TASKS}", sys.executable, "-m", "tests.attacks.few_processes"]
    return ["setpriv", "--ruid=65534", "--bounding-set=-sys_admin,-sys_resource", *program] if os.geteuid() == 0 else program


def _analyze_together(seed: int, all_threads: threading.Barrier) -> str:
    """Analyze once all threads have started, since a thread that cannot start would end this program."""
    all_threads.wait()
    return _analyze(seed)


def _analyze(seed: int) -> str:
    request = DtypeRequest(model="sample:tiny-bf16", seed=seed)
    try:
        *_, last = analysis_process.run(request, None, Access())
    except MantissaError as error:
        return str(error)
    assert isinstance(last, Report)
    return ""


if __name__ == "__main__":
    analysis_process.start()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        together = list(threads.map(_analyze_together, range(AT_ONCE), [threading.Barrier(AT_ONCE)] * AT_ONCE))
    print(json.dumps([together, _analyze(AT_ONCE)]))
