"""Choice of the device to count on: the CPU, unless a CUDA device is requested or the process was launched onto one."""

import os
from collections.abc import Collection
from typing import Literal

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
