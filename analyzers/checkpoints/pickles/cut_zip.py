"""How many bytes a cut PyTorch file lacks: its zip directory is gone, but data.pkl, the first entry, states the size of every storage."""

import struct

from analyzers.checkpoints.header import cut_off
from analyzers.checkpoints.pickles.archive import LOCAL
from analyzers.checkpoints.pickles.faults import Damaged, Excess, Refused
from analyzers.checkpoints.pickles.machine import Machine, Stream
from analyzers.checkpoints.repository import RangeFile, read_range
from analyzers.errors import InvalidCheckpoint

_LOCAL = struct.Struct("<4s5H3I2H")
_END, _END_BYTES = b"PK\5\6", 22
_MOST = 4 << 20  # of the pickle; that of a model with 10,000 tensors has 1 MB


def cut_zip(file: RangeFile) -> InvalidCheckpoint | None:
    """The error about a zip archive without its end whose storages do not fit into it; None for any other file."""
    if file.size < _LOCAL.size or read_range(file, file.size - min(file.size, _END_BYTES), 4) == _END:
        return None
    raw = read_range(file, 0, min(file.size, _MOST))
    fields = _LOCAL.unpack_from(raw)
    start = _LOCAL.size + fields[-2] + fields[-1]
    if fields[0] != LOCAL or not raw[_LOCAL.size : _LOCAL.size + fields[-2]].endswith(b"/data.pkl"):
        return None
    stream = Stream(raw, start)
    machine = Machine(stream)
    try:
        machine.run()
    except (Damaged, Refused, Excess):
        return None
    needed = stream.at + sum(storage.whole * storage.dtype.itemsize for storage in machine.storages.values())
    return cut_off(file.path, "zip directory is missing, and its tensors need at least", needed, file.size) if needed > file.size else None
