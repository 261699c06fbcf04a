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
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Where a signal's description and the system's structures are laid out as assumed below.
AVAILABLE = sys.platform == "linux" and ctypes.sizeof(ctypes.c_void_p) == 8 and hasattr(mmap, "MAP_POPULATE")

_SA_SIGINFO = 4
_ADDRESS_IN_SIGINFO = 16
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Action(ctypes.Structure):
    """``struct sigaction`` of 64-bit Linux."""

    _fields_ = (("handler", ctypes.c_void_p), ("mask", ctypes.c_ubyte * 128), ("flags", ctypes.c_int), ("restorer", ctypes.c_void_p))


class Window:
    """``size`` bytes of an open file from ``offset`` on, mapped until nothing refers to ``codes`` any more.

    To be looked at by the thread that made it, and before it makes another one. The caller knows the file to be long
    enough. Raises OSError where the file cannot be mapped. damaged: some of its bytes were not there and read as zeros.
    """

    def __init__(self, descriptor: int, offset: int, size: int) -> None:
        before = offset % mmap.PAGESIZE
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE  # populated in one go: a fault for each page would take longer than a copy
        self._mapping = mmap.mmap(descriptor, before + size, flags, mmap.PROT_READ, offset=offset - before)
        self._first = np.frombuffer(self._mapping, np.uint8).ctypes.data
        self._stop = self._first + before + size
        self.damaged = False
        # numpy takes the array from here, and keeps this object alive with it. Not "read-only", though it must never be
        # written: the compiled loops would have to be compiled once more for arrays of that kind.
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (self._first + before, False), "version": 3}
        _watch(self)

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
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10  # MAP_FIXED
        return bool(_libc().mmap(page, mmap.PAGESIZE, mmap.PROT_READ, flags, -1, 0) == page)


_windows = threading.local()
_installing = threading.Lock()
_installed: list[Any] = []


def _watch(window: Window) -> None:
    """Have a missing page of ``window``, the one this thread looks at now, answered by `_on_bus_error`."""
    _windows.current = window
    if not _installed:
        with _installing:
            if not _installed:
                _install()


def _install() -> None:
    before = _Action()

    def on_bus_error(_number: int, description: int, _context: int) -> None:
        # Runs in the thread that looked at the page, which then looks again. Its window is the thread's own.
        address = ctypes.c_uint64.from_address(description + _ADDRESS_IN_SIGINFO).value
        window = getattr(_windows, "current", None)
        if window is None or not window.mend(address):
            _libc().sigaction(signal.SIGBUS, ctypes.byref(before), None)  # not ours: who was asked before is asked again

    handler = _Handler(on_bus_error)
    action = _Action(handler=ctypes.cast(handler, ctypes.c_void_p), flags=_SA_SIGINFO)
    if _libc().sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(before)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    _installed.extend((handler, before))


def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    return libc
