"""Buffers for weights that are read and then counted, here or on a GPU."""

import os

import numpy as np
from numpy.typing import NDArray


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
