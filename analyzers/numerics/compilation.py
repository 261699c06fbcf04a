"""Tells when loops are compiled: once after an installation, since numba keeps their machine code on disk."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from numba.core.event import Event, Listener, install_listener


class _Compilations(Listener):
    """Listener to numba's events of compilation, which loading machine code from disk does not cause."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def on_start(self, event: Event) -> None:
        self._tell()

    def on_end(self, event: Event) -> None:
        pass


@contextmanager
def on_compiling(tell: Callable[[], None]) -> Iterator[None]:
    """Call ``tell`` whenever a loop or a function in it begins to be compiled, in the thread that compiles it."""
    with install_listener("numba:compile", _Compilations(tell)):
        yield
