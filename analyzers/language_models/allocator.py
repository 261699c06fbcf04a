"""Memory that goes back to the system when it is freed.

glibc keeps freed blocks of up to 32 MB for later, in heaps that tensors of many sizes soon leave full of holes: on a processor a run with
checkpointing held about twice what it used. To give every block back at once costs more: the system fills each new one with zeros.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # of mallopt
_AT_END = 32 << 20  # bytes that may stay free at the end of a heap
_USUAL = 32 << 20, 64 << 20  # the most that glibc's own rules come to

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_mallopt, _trim = getattr(_libc, "mallopt", None), getattr(_libc, "malloc_trim", None)


@contextmanager
def given_back(least: int) -> Iterator[None]:
    """Meanwhile blocks of ``least`` bytes or more are the system's again once they are freed, in the whole process; smaller ones are used
    again. Nothing happens without glibc.
    """
    if _mallopt is not None:
        _mallopt(_MMAP_THRESHOLD, least)
        _mallopt(_TRIM_THRESHOLD, _AT_END)
    try:
        yield
    finally:
        if _mallopt is not None:
            for rule, usual in zip((_MMAP_THRESHOLD, _TRIM_THRESHOLD), _USUAL, strict=True):
                _mallopt(rule, usual)


def give_back() -> None:
    """Give all back that is free now, of the whole process. Nothing happens without glibc."""
    if _trim is not None:
        _trim(0)
