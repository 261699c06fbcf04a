"""Memory that goes back to the system when it is freed.

glibc keeps freed blocks of up to 32 MB for later, in heaps that tensors of many sizes soon leave full of holes: on a processor a run with
checkpointing held about twice what it used.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_MMAP_THRESHOLD = -3  # of mallopt
_FROM = 1 << 20  # bytes; smaller blocks do not matter, and giving each of them back takes time
_USUAL = 32 << 20  # the most that glibc's own rule comes to


@contextmanager
def given_back() -> Iterator[None]:
    """Meanwhile large blocks are the system's again once they are freed, in the whole process. Nothing happens without glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _FROM)
    try:
        yield
    finally:
        if mallopt is not None:
            mallopt(_MMAP_THRESHOLD, _USUAL)
