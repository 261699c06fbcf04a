"""The store that the processes of a launch share: torch's TCPStore, with values of any size, and no wait without an end."""

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from analyzers import limits
from analyzers.errors import InvalidRequest, ProcessLost

# The store refuses values of more than 8 MiB, and answers nobody else while it takes one in.
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Launch:
    """What ``accelerate launch`` or ``torchrun`` say of this process: its rank, how many there are in all, and on this host."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    address: str
    port: int

    @classmethod
    def of(cls, variables: Mapping[str, str] = os.environ) -> "Launch | None":
        """From the environment; None where this process is the only one. Raises InvalidRequest for what contradicts itself."""
        if "RANK" not in variables or "WORLD_SIZE" not in variables:
            return None
        try:
            rank, world = int(variables["RANK"]), int(variables["WORLD_SIZE"])
            local_rank, local_world = int(variables.get("LOCAL_RANK", "0")), int(variables.get("LOCAL_WORLD_SIZE", "1"))
            address, port = variables["MASTER_ADDR"], int(variables["MASTER_PORT"])
        except (KeyError, ValueError):
            port = rank = world = local_rank = local_world = -1
        if not (0 <= rank < world and 0 <= local_rank < local_world <= world and 0 < port < 1 << 16):
            raise InvalidRequest(
                "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT do not describe a launched process: start with accelerate launch or "
                "torchrun, or unset them."
            )
        return cls(rank, world, local_rank, local_world, address, port) if world > 1 else None


class Store:
    """A client of the launch's store; the first process serves it where the launcher does not. Safe to use from several threads.

    Raises ProcessLost where it cannot be reached.
    """

    def __init__(self, launch: Launch) -> None:
        from torch import distributed

        served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self._lock = threading.Lock()
        with _Reached():
            whole = distributed.TCPStore(  # type: ignore[attr-defined]
                launch.address,
                launch.port,
                launch.world,
                launch.rank == 0 and not served,
                timeout=timedelta(seconds=limits.SCAN_SILENCE_SECONDS),
                wait_for_workers=False,
                multi_tenant=True,
            )
            run = os.environ.get("TORCHELASTIC_RUN_ID", "") + os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
            self._store: Any = distributed.PrefixStore(  # type: ignore[attr-defined]
                f"mantissa-scan-{run}", whole
            )

    def add(self, name: str, amount: int = 1) -> int:
        """Add to a counter, which begins at 0; returns its new value."""
        with _Reached(), self._lock:
            return int(self._store.add(name, amount))

    def has(self, name: str) -> bool:
        """Whether there is a value."""
        with _Reached(), self._lock:
            return bool(self._store.check([name]))

    def put(self, name: str, value: bytes) -> None:
        """Set a value, in pieces; it is there once all are."""
        pieces = range(0, len(value), _PIECE_BYTES)
        for number, start in enumerate(pieces):
            with _Reached(), self._lock:
                self._store.set(f"{name}/{number}", value[start : start + _PIECE_BYTES])
        with _Reached(), self._lock:
            self._store.set(name, str(len(pieces)))

    def get(self, name: str) -> bytes:
        """A value that is there."""
        with _Reached(), self._lock:
            pieces = int(self._store.get(name))
        found = []
        for number in range(pieces):
            with _Reached(), self._lock:
                found.append(self._store.get(f"{name}/{number}"))
        return b"".join(found)

    def take(self, name: str) -> bytes:
        """A value that is there, which is then no more."""
        found = self.get(name)
        for piece in [name, *(f"{name}/{number}" for number in range(-(-len(found) // _PIECE_BYTES)))]:
            with _Reached(), self._lock:
                self._store.delete_key(piece)
        return found


class _Reached:
    """Turns what torch raises for a broken or silent connection into advice."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RuntimeError):  # the base of torch's errors of connections and timeouts
            raise ProcessLost("The first process of the scan cannot be reached: see what it said, then run the same scan again.") from None
