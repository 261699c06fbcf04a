"""Memory that goes back to the system when it is freed.

glibc keeps freed blocks of up to 32 MB for later, in heaps that tensors of many sizes soon leave full of holes: on a processor a run with
checkpointing held about twice what it used. To give every block back at once costs more: the system fills each new one with zeros.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_MMAP_THRESHOLD = -3  # of mallopt
_FROM = 8 << 20  # bytes; smaller blocks are used again while a layer lasts
_USUAL = 32 << 20  # the most that glibc's own rule comes to

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_mallopt, _trim = getattr(_libc, "mallopt", None), getattr(_libc, "malloc_trim", None)


@contextmanager
def given_back() -> Iterator[None]:
    """Meanwhile large blocks are the system's again once they are freed, in the whole process. Nothing happens without glibc."""
    if _mallopt is not None:
        _mallopt(_MMAP_THRESHOLD, _FROM)
    try:
        yield
    finally:
        if _mallopt is not None:
            _mallopt(_MMAP_THRESHOLD, _USUAL)


def give_back() -> None:
    """Give all back that is free now, of the whole process. Nothing happens without glibc."""
    if _trim is not None:
        _trim(0)
