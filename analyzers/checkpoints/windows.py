"""Windows onto local files: their bytes where the system keeps them already, without a copy, a few MiB at a time.

A mapped file counts as the process's memory, so only small windows are mapped, each for as long as it is looked at.
The price of mapping is that a file cut off, or a disk that fails, under a window is a signal (SIGBUS) and no error
code. It is answered here: the missing page becomes one of zeros, and the window tells that it is damaged.
"""

import ctypes
import mmap
import os
import signal
import sys
import threading
import weakref
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Where a signal's description and the system's structures are laid out as assumed below.
AVAILABLE = sys.platform == "linux" and ctypes.sizeof(ctypes.c_void_p) == 8 and hasattr(mmap, "MAP_POPULATE")

# Bytes below which a copy takes less time than a window.
SMALLEST = 512 << 10

_SA_SIGINFO = 4
_ADDRESS_IN_SIGINFO = 16
_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Action(ctypes.Structure):
    """``struct sigaction`` of 64-bit Linux."""

    _fields_ = (("handler", ctypes.c_void_p), ("mask", ctypes.c_ubyte * 128), ("flags", ctypes.c_int), ("restorer", ctypes.c_void_p))


class Window:
    """``size`` bytes of an open file from ``offset`` on, mapped until nothing refers to ``codes`` any more.

    To be looked at by the thread that made it; a thread may look at several. The caller knows the file to be long enough, and may
    close it. Raises OSError where the file cannot be mapped. damaged: some of its bytes were not there and read as zeros.
    """

    def __init__(self, descriptor: int, offset: int, size: int) -> None:
        before = offset % mmap.PAGESIZE
        self._stop = self._first = 0
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE  # populated in one go: a fault for each page would take longer than a copy
        # Not by Python's mmap, which keeps a copy of the descriptor open for as long as the mapping lives.
        self._first = _mapped(0, before + size, flags, descriptor, offset - before)
        self._stop = self._first + before + size
        self.damaged = False
        # numpy takes the array from here, and keeps this object alive with it. Not "read-only", though it must never be
        # written: torch, which counts on a GPU, warns of arrays of that kind.
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (self._first + before, False), "version": 3}
        _watch(self)

    def __del__(self) -> None:
        if self._first:
            _LIBC.munmap(self._first, self._stop - self._first)

    @property
    def codes(self) -> NDArray[np.uint8]:
        """(size,) the bytes; not to be written."""
        return np.asarray(self)

    def mend(self, address: int) -> bool:
        """Put a page of zeros where ``address`` is missing; False where that is not in this window."""
        if not self._first <= address < self._stop:
            return False
        self.damaged = True
        page = address // mmap.PAGESIZE * mmap.PAGESIZE
        with suppress(OSError):
            _mapped(page, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED, -1, 0)
            return True
        return False


class _OfThread(threading.local):
    """The windows that a thread may be looking at: those it made that still live."""

    def __init__(self) -> None:
        self.windows: weakref.WeakSet[Window] = weakref.WeakSet()


_mine = _OfThread()
_installing = threading.Lock()
_installed: list[Any] = []


def _watch(window: Window) -> None:
    """Have missing pages of ``window`` answered by `on_bus_error`."""
    _mine.windows.add(window)
    if not _installed:
        with _installing:
            if not _installed:
                _install()


def _install() -> None:
    before = _Action()

    def on_bus_error(_number: int, description: int, _context: int) -> None:
        # Runs in the thread that looked at the page, which then looks again. Its windows are the thread's own.
        address = ctypes.c_uint64.from_address(description + _ADDRESS_IN_SIGINFO).value
        if not any(window.mend(address) for window in _mine.windows):
            _LIBC.sigaction(signal.SIGBUS, ctypes.byref(before), None)  # not ours: who was asked before is asked again

    handler = _Handler(on_bus_error)
    action = _Action(handler=ctypes.cast(handler, ctypes.c_void_p), flags=_SA_SIGINFO)
    if _LIBC.sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(before)) != 0:
        raise _error()
    _installed.extend((handler, before))


def _mapped(address: int, size: int, flags: int, descriptor: int, offset: int) -> int:
    """Where ``size`` bytes are mapped to be read. Raises OSError."""
    found: int | None = _LIBC.mmap(address, size, mmap.PROT_READ, flags, descriptor, offset)
    if found is None or found == _FAILED:
        raise _error()
    return found


def _error() -> OSError:
    return OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return libc


_LIBC = _libc()
