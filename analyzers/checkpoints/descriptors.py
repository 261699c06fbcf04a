"""Open files in bounded number: those not used for longest are closed, and opened again when they are needed."""

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable


class OpenFile:
    """An open file of ``owner``. A ``with`` statement is one use of it, as `Descriptors.take` began it, and has its descriptor."""

    __slots__ = ("_all", "descriptor", "owner", "users")

    def __init__(self, owner: Hashable, descriptor: int, every: "Descriptors") -> None:
        self.owner = owner
        self.descriptor = descriptor
        self.users = 0
        self._all = every

    def __enter__(self) -> int:
        return self.descriptor

    def __exit__(self, *_: object) -> None:
        self._all.leave(self)


class Descriptors:
    """File descriptors by owner, at most ``most`` of them beside those in use. Safe to use from several threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: OrderedDict[Hashable, OpenFile] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, owner: Hashable, opened: Callable[[], int]) -> OpenFile:
        """The file of ``owner``, from ``opened()`` where it is not open; it stays open until `leave` was called as often.

        Where the process may open no more files, those idle here are given up for it. Raises what ``opened`` raises.
        """
        with self._lock:
            held = self._held.get(owner)
            if held is None:
                self._close_idle(self._most - 1)
                held = self._held[owner] = OpenFile(owner, self._open(opened), self)
            else:
                self._held.move_to_end(owner)
            held.users += 1
            return held

    def leave(self, held: OpenFile) -> None:
        """End one use of what `take` returned."""
        with self._lock:
            held.users -= 1
            if held.users == 0 and self._held.get(held.owner) is not held:
                os.close(held.descriptor)  # given up meanwhile

    def close(self, owner: Hashable) -> None:
        """Give up the descriptor of ``owner``, if it has one: closed at once, or as soon as nobody uses it."""
        with self._lock:
            held = self._held.pop(owner, None)
            if held is not None and held.users == 0:
                os.close(held.descriptor)

    def _open(self, opened: Callable[[], int]) -> int:
        while True:
            try:
                return opened()
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._close_idle(len(self._held) - 1):
                    raise

    def _close_idle(self, most: int) -> bool:
        """Close what was not used for longest until ``most`` are left, as far as they are idle; whether any was closed."""
        idle = [owner for owner, held in self._held.items() if held.users == 0][: max(0, len(self._held) - most)]
        for owner in idle:
            os.close(self._held.pop(owner).descriptor)
        return bool(idle)
