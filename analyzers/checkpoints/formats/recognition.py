"""Recognizes the format of a weight file by its first bytes: names are not reliable (``.pth.tar``, ``.jit``, ``.model``, none)."""

from dataclasses import replace
from enum import Enum

from analyzers.checkpoints.formats.gguf_header import read_gguf
from analyzers.checkpoints.formats.pickles import read_pickled
from analyzers.checkpoints.formats.read_cache import ReadCache
from analyzers.checkpoints.formats.safetensors_header import FIRST_READ, Header, read_header
from analyzers.checkpoints.repository import RangeFile, read_range
from analyzers.checkpoints.weight_files.file_names import GGUF, PICKLED, SAFETENSORS
from analyzers.checkpoints.words import WORDS

_PICKLE_PROTOCOLS = range(2, 6)
OLD_MAGIC = b"L119547037146038801333356L\n"  # magic number of torch.save in protocols 0 and 1


class Format(Enum):
    """A format of weight files; the value describes it for the reader."""

    SAFETENSORS = "a safetensors file"
    GGUF = "a GGUF file"
    PICKLED = "a PyTorch file"


_ENDINGS: dict[Format, tuple[str, ...]] = {Format.SAFETENSORS: SAFETENSORS, Format.GGUF: (GGUF,), Format.PICKLED: PICKLED}


def read_any_header(file: RangeFile, checked: int | None) -> Header:
    """Read the header of a weight file of any format. The name decides only if the content is of no known format.

    checked: see `read_pickled`. Raises InvalidCheckpoint, UnsupportedWeights, LimitExceeded.
    """
    begun = ReadCache(file)
    beginning = begun.keep(0, min(file.size, FIRST_READ))
    named = next((kind for kind, endings in _ENDINGS.items() if file.path.endswith(endings)), None)
    kind = recognize(beginning, file.size) or named or Format.PICKLED
    read = {Format.SAFETENSORS: read_header, Format.GGUF: read_gguf}.get(kind)
    header = read(begun) if read else read_pickled(begun, checked)
    if kind is named or named is None:
        return header
    note = WORDS.note("misnamed", path=file.path, format=kind.value)
    refused = f"it is {kind.value}, and transformers reads a file of that name as {named.value}"
    return replace(header, notes=(*header.notes, note), refused=refused)


def is_recognized(file: RangeFile) -> bool:
    """Return whether the content of ``file`` is of a known format."""
    return recognize(read_range(file, 0, min(file.size, len(OLD_MAGIC))), file.size) is not None


def recognize(beginning: bytes, size: int) -> Format | None:
    """Return the format of a file of ``size`` bytes, given its first bytes; None if it is unknown."""
    if beginning[8:9] == b"{" and int.from_bytes(beginning[:8], "little") <= size - 8:
        return Format.SAFETENSORS
    if beginning.startswith(b"GGUF"):
        return Format.GGUF
    pickled = beginning[:1] == b"\x80" and len(beginning) > 1 and beginning[1] in _PICKLE_PROTOCOLS
    return Format.PICKLED if pickled or beginning.startswith((b"PK\3\4", OLD_MAGIC)) else None
