"""Enters a context that changes a setting of the whole process once for all threads that need it at the same time."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType


class SharedContext(AbstractContextManager[None]):
    """A context that the first of several overlapping users enters and the last one leaves, in whatever order they end.

    If each entered its own, the one that ends last would restore what another had set. enter: returns the context.
    """

    def __init__(self, enter: Callable[[], AbstractContextManager[object]]) -> None:
        self._enter = enter
        self._lock = threading.Lock()
        self._users = 0
        self._context: AbstractContextManager[object] | None = None

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                context = self._enter()
                context.__enter__()
                self._context = context
            self._users += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        with self._lock:
            self._users -= 1
            if not self._users and self._context is not None:
                context, self._context = self._context, None
                context.__exit__(None, None, None)
