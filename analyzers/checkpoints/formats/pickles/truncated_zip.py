"""Says what a truncated PyTorch file lacks: its zip directory is gone, but data.pkl, the first entry, states the size of every storage."""

import struct

from analyzers.checkpoints.formats.pickles.faults import Damaged, Excess, Refused
from analyzers.checkpoints.formats.pickles.machine import Machine, Stream
from analyzers.checkpoints.formats.pickles.zip_archive import LOCAL
from analyzers.checkpoints.formats.safetensors_header import cut_off
from analyzers.checkpoints.reference import quoted
from analyzers.checkpoints.repository import RangeFile, read_range
from analyzers.errors import InvalidCheckpoint
from analyzers.terminal import plural

_LOCAL = struct.Struct("<4s5H3I2H")
_END, _END_BYTES = b"PK\5\6", 22
_MOST = 4 << 20  # largest pickle; that of a model with 10,000 tensors has 1 MB
_TAIL = 64 << 10


def cut_zip(file: RangeFile) -> InvalidCheckpoint | None:
    """Return the error about a zip archive that does not end with its directory; None for any other file."""
    if read_range(file, 0, min(file.size, len(LOCAL))) != LOCAL:
        return None
    tail = read_range(file, file.size - min(file.size, _TAIL), min(file.size, _TAIL))
    end = tail.rfind(_END)
    appended = len(tail) - _END_BYTES - end
    if end >= 0 and appended == 0:
        return None
    path = quoted(file.path, 200)
    if end >= 0 and appended > 0:
        return InvalidCheckpoint(
            f"{path} is damaged: it has {plural(appended, 'byte')} after the end of its zip directory, where torch writes none. "
            "Upload or download it again."
        )
    raw = read_range(file, 0, min(file.size, _MOST))
    start, name = _LOCAL.size, b""
    if len(raw) >= start:
        lengths = _LOCAL.unpack_from(raw)[-2:]
        name, start = raw[start : start + lengths[0]], start + sum(lengths)
        if len(raw) > start and not name.endswith(b"/data.pkl"):
            return None
    needed = _storages_end(raw, start)
    if needed is not None and needed > file.size:
        return cut_off(file.path, "zip directory is missing, and its tensors need at least", needed, file.size)
    known = "how much else is missing is not known, since the cut is in or before data.pkl, which describes the tensors"
    if needed is not None:
        known = f"its tensors take {needed:,} bytes and may all be there"
    return InvalidCheckpoint(
        f"{path} is cut off after {plural(file.size, 'byte')}: the zip directory at its end is missing, and {known}. "
        "Upload or download it again."
    )


def _storages_end(raw: bytes, start: int) -> int | None:
    """Return a lower bound on the offset of the last storage's end, from the pickle at ``start``; None if that is incomplete."""
    stream = Stream(raw, start)
    machine = Machine(stream)
    try:
        machine.run()
    except (Damaged, Refused, Excess):
        return None
    return stream.at + sum(storage.whole * storage.dtype.itemsize for storage in machine.storages.values())
