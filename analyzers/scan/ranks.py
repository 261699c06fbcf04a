"""Coordinates the processes of ``accelerate launch`` or torchrun: each scans a static share of the list into a file of its own.

The first process reads the list, tells the others which checkpoints are missing, and finally reads the outcomes of all. All processes need
the same folder on a shared file system.
"""

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from analyzers.core.errors import InvalidRequest

# One share may take days longer than another; the launcher ends all processes if one fails.
_PATIENCE = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Rank:
    """One of ``world`` processes, ``local_world`` of them on this host."""

    rank: int
    world: int
    local_rank: int
    local_world: int

    @classmethod
    def of(cls, variables: Mapping[str, str] = os.environ) -> "Rank | None":
        """Read the rank from the environment; None if this process is the only one. Raises InvalidRequest for contradictory variables."""
        if "RANK" not in variables or "WORLD_SIZE" not in variables:
            return None
        try:
            rank, world = int(variables["RANK"]), int(variables["WORLD_SIZE"])
            local_rank, local_world = int(variables.get("LOCAL_RANK", "0")), int(variables.get("LOCAL_WORLD_SIZE", "1"))
        except ValueError:
            rank = world = local_rank = local_world = -1
        if not (0 <= rank < world and 0 <= local_rank < local_world <= world):
            raise InvalidRequest(
                "RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE do not describe a launched process: start with accelerate launch or "
                "torchrun, or unset them."
            )
        return cls(rank, world, local_rank, local_world) if world > 1 else None

    @property
    def file(self) -> str:
        """Name of this process's file of outcomes."""
        return f"outcomes-{self.rank}.jsonl"

    def share(self, keys: list[str] | None) -> list[str]:
        """Return this process's share of the first process's ``keys``; the others pass None. Every process must call it once."""
        from accelerate import PartialState
        from accelerate.utils import broadcast_object_list

        # Python cannot handle signals during a wait for other processes: without the default handler, the launcher, which ends all
        # processes when one fails, would hang too.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

        PartialState(cpu=True, timeout=_PATIENCE)
        (found,) = broadcast_object_list([keys])
        return list(found[self.rank :: self.world])

    def wait(self) -> None:
        """Wait until every process has called this."""
        from accelerate import PartialState

        PartialState().wait_for_everyone()

    def take_one_gpu(self) -> None:
        """Reserve one GPU for this process. Call it before torch looks for GPUs. Raises InvalidRequest."""
        devices = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        if devices and self.local_rank >= len(devices):
            raise InvalidRequest(f"There are {self.local_world} processes on this machine and {len(devices)} GPUs: start one for each.")
        os.environ["CUDA_VISIBLE_DEVICES"] = devices[self.local_rank] if devices else str(self.local_rank)
