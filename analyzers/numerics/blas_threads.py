"""Keeps the threads of numpy's products and decompositions from competing with those that read and count weights."""

import os
from contextlib import AbstractContextManager, nullcontext

from analyzers.numerics.shared_context import SharedContext


def one_blas_thread() -> AbstractContextManager[object]:
    """Return a context in which numpy's BLAS runs on the thread that calls it; after the last of these it has as many threads as before.

    Each of several threads that decompose small matrices would otherwise start one per core, and these wait for each other by spinning.
    """
    if os.environ.get("OPENBLAS_NUM_THREADS") == "1":  # set by the command line and by the app, before numpy is imported
        return nullcontext()
    return _limited


def _limits() -> AbstractContextManager[object]:
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[object] = threadpool_limits(1, user_api="blas")
    return limits


_limited = SharedContext(_limits)
