"""The device to count on: the CPU, unless a CUDA device is requested or the process was launched onto one."""

import os
from collections.abc import Collection
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from analyzers.core.errors import InvalidRequest

Device = Literal["cpu", "cuda"]


def choose_device(requested: Literal["auto", "cpu", "cuda"], held: Collection[str] = ()) -> Device:
    """Return the device to count on. held: the devices of the models, if all of them are in memory.

    "auto" is CUDA if all held models are there, or if ``accelerate launch`` started the process and gave it a CUDA device; else the CPU,
    which keeps up with any disk or network without importing torch. Raises InvalidRequest for "cuda" if there is no CUDA device.
    """
    if requested == "auto" and set(held) == {"cuda"}:
        return "cuda"
    if requested == "cpu" or (requested == "auto" and "LOCAL_RANK" not in os.environ):
        return "cpu"
    if requested == "auto":
        from accelerate import PartialState

        return "cuda" if PartialState().device.type == "cuda" else "cpu"
    import torch

    if not torch.cuda.is_available():
        raise InvalidRequest("No CUDA device is available: leave out the device, or choose cpu.")
    return "cuda"


def stream_buffer(size: int, device: str) -> NDArray[np.uint8]:
    """Allocate a buffer to read into; for a GPU one that it copies directly, on a stream of the calling thread's own."""
    if device != "cuda":
        return np.empty(size, dtype=np.uint8)  # pages are committed only when written
    import torch

    # Each thread begins on the first device, whichever one a launcher gave to the process.
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]
    buffer: NDArray[np.uint8] = torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
    return buffer
