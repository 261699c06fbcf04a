"""Chooses where to count: on the CPU, unless a CUDA device is requested or the process was launched onto one."""

import os
from collections.abc import Collection
from typing import Literal

from analyzers.errors import InvalidRequest

Device = Literal["cpu", "cuda"]


def choose_device(requested: Literal["auto", "cpu", "cuda"], held: Collection[str] = ()) -> Device:
    """The device to count on. held: the devices of models that are in memory, if all are.

    "auto" is the device of these; else the CPU, which keeps up with any disk or network, without importing torch; a process started by
    ``accelerate launch`` takes the device it was given. Raises InvalidRequest for "cuda" if there is no CUDA device.
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
        raise InvalidRequest("There is no CUDA device here: leave out the device, or choose cpu.")
    return "cuda"
