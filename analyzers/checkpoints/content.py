"""The format of a weight file, told by its first bytes: names are not reliable (``.pth.tar``, ``.jit``, ``.model``, none)."""

from dataclasses import replace

from analyzers.checkpoints.gguf import read_gguf
from analyzers.checkpoints.header import FIRST_READ, Header, read_header
from analyzers.checkpoints.layout import GGUF, SAFETENSORS
from analyzers.checkpoints.pickles import read_pickled
from analyzers.checkpoints.reference import quoted
from analyzers.checkpoints.repository import RangeFile, read_range

PICKLED = ".bin"
_ENDINGS = {SAFETENSORS: SAFETENSORS, ".sft": SAFETENSORS, GGUF: GGUF, **dict.fromkeys((PICKLED, ".pt", ".pth", ".ckpt"), PICKLED)}
_NAMES = {SAFETENSORS: "a safetensors file", GGUF: "a GGUF file", PICKLED: "a PyTorch file"}
_PICKLE_PROTOCOLS = range(2, 6)
_OLD_MAGIC = b"L119547037146038801333356L\n"  # of torch.save in protocols 0 and 1


def read_any_header(file: RangeFile, checked: int | None) -> Header:
    """Read the header of a weight file of any format. The name decides only if the content is of no known format.

    checked: as of `read_pickled`. Raises InvalidCheckpoint, UnsupportedWeights, LimitExceeded.
    """
    begun = _Begun(file)
    named = next((kind for ending, kind in _ENDINGS.items() if file.path.endswith(ending)), "")
    kind = recognize(begun.beginning, file.size) or named
    read = {SAFETENSORS: read_header, GGUF: read_gguf}.get(kind)
    header = read(begun) if read else read_pickled(begun, checked)
    if not named or kind == named:
        return header
    note = f"{quoted(file.path, 200)} is {_NAMES[kind]}, which its name does not say: other programs may not open it."
    return replace(header, notes=(*header.notes, note))


def is_recognized(file: RangeFile) -> bool:
    """Whether the content of ``file`` is of a known format."""
    return bool(recognize(read_range(file, 0, min(file.size, len(_OLD_MAGIC))), file.size))


def recognize(beginning: bytes, size: int) -> str:
    """`SAFETENSORS`, `GGUF` or `PICKLED`, which `torch.save` writes; "" if the format is unknown. size: bytes of the whole file."""
    if beginning[8:9] == b"{" and int.from_bytes(beginning[:8], "little") <= size - 8:
        return SAFETENSORS
    if beginning.startswith(b"GGUF"):
        return GGUF
    if beginning.startswith((b"PK\3\4", _OLD_MAGIC)):
        return PICKLED
    return PICKLED if beginning[:1] == b"\x80" and len(beginning) > 1 and beginning[1] in _PICKLE_PROTOCOLS else ""


class _Begun:
    """A file whose first bytes are in memory: over a network, looking at them costs no request of its own."""

    def __init__(self, file: RangeFile) -> None:
        self.path, self.size = file.path, file.size
        self.beginning = read_range(file, 0, min(file.size, FIRST_READ))
        self._file = file

    def read_into(self, offset: int, buffer: memoryview) -> None:
        if offset + len(buffer) <= len(self.beginning):
            buffer[:] = self.beginning[offset : offset + len(buffer)]
        else:
            self._file.read_into(offset, buffer)

    def close(self) -> None:
        self._file.close()
