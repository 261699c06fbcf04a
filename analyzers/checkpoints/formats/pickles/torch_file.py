"""Lists the tensors of a file that torch.save wrote, in either of its layouts, in a header like that of a safetensors file."""

import io
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

from analyzers.checkpoints.formats.pickles.machine import Machine, Stream
from analyzers.checkpoints.formats.pickles.objects import DTYPES, Damaged, Excess, Pairs, Refused, Stored
from analyzers.checkpoints.formats.pickles.weights import weights
from analyzers.checkpoints.formats.pickles.weights_only import as_state_dict, why_no_state_dict, why_refused
from analyzers.checkpoints.formats.read_cache import ReadCache
from analyzers.checkpoints.formats.safetensors_header import Header, HeaderTensor
from analyzers.checkpoints.reference import quoted
from analyzers.checkpoints.repository import RangeFile
from analyzers.checkpoints.tensor import DTYPE_BITS
from analyzers.checkpoints.words import WORDS
from analyzers.core import limits
from analyzers.core.errors import InvalidCheckpoint, LimitExceeded, UnsupportedWeights

PICKLE_BYTES = 100_000_000  # The pickle of a PyTorch file, which describes its tensors, is decoded in memory.
ZIP_DIRECTORY_BYTES = 200_000_000  # The directory of a zip archive is parsed in memory.
_ZIP = b"PK\3\4"
_LOCAL = struct.Struct("<4s5H3I2H")
_DESCRIBED, _ENCRYPTED, _FULL32 = 1 << 3, 1, 0xFFFFFFFF
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_VERSIONS = range(1, 11)
_FIRST_READ = 64 << 10
_FEW = 64  # most opcodes of a pickle that holds one number
_COUNT = 8  # bytes of the length before each storage's data
_VIEWS = 8  # Times the size of the file: tensors may share bytes, and a small file could stand for years of reading.
_SPARE_BYTES = 64 << 20  # views may cover this many bytes, even in a small file
# First bytes of what is often found in place of weights.
_OTHERS = (
    (b"version https://git-lfs", "is a Git LFS pointer in place of the weights: fetch them with 'git lfs pull'."),
    (b"<", "is a web page or another text in place of the weights: download it again."),
)


class _Contents(NamedTuple):
    """The contents of a file.

    root: the description of the pickled object; places: storage key -> offset of its data; nbytes: of the pickles; refused: see `Header`;
    constants: number of constants of a TorchScript program.
    """

    root: Any
    machine: Machine
    places: Mapping[str, int]
    nbytes: int
    refused: str = ""
    constants: int = 0


def read_pickled(file: RangeFile, checked: int | None = None) -> Header:
    """List the tensors of a file that `torch.save` wrote, in either of its layouts, without unpickling it.

    checked: the number of storages, evenly spaced, whose offsets are verified against the headers next to their data, with a read each;
    None for all. Views become strides (`Tensor.strides`), and every name of tied tensors is listed. From a trainer's checkpoint, only the
    weights are listed (`weights`). Nothing that the file names is called: values of unknown classes stay opaque, and tensors that cannot be
    read are in ``omitted``. Raises InvalidCheckpoint for a damaged file, UnsupportedWeights for one without tensors that can be read,
    LimitExceeded; each names the file.
    """
    path = quoted(file.path, 200)
    if file.size == 0:
        raise InvalidCheckpoint(f"{path} is empty: upload or download it again.")
    try:
        return _read(file, checked)
    except Damaged as error:
        raise InvalidCheckpoint(f"{path} is cut off or damaged: {error}. Upload or download it again.") from None
    except Refused as error:
        raise UnsupportedWeights(f"{path} {error}") from None
    except Excess as error:
        raise LimitExceeded(f"{path} {error}") from None


def _read(file: RangeFile, checked: int | None) -> Header:
    pieces = ReadCache(file)
    beginning = pieces.keep(0, min(file.size, _FIRST_READ))
    for first, what in _OTHERS:
        if beginning.startswith(first):
            raise Refused(what)
    contents = (_zipped if beginning.startswith(_ZIP) else _legacy)(pieces, checked)
    root = as_state_dict(contents.root)
    found, omitted, notes, opaque = weights(root, contents.machine)
    if contents.constants:
        if not found:
            raise Refused("is a frozen TorchScript program, whose weights are constants of its code: save it before torch.jit.freeze.")
        notes.append(WORDS.note("constants", constants=contents.constants))
    tensors = tuple(_tensors(found, contents.places))
    _check_views(tensors, file.size)
    return Header(tensors, {}, contents.nbytes, tuple(notes), opaque, omitted, contents.refused or why_no_state_dict(root), pickled=True)


def _tensors(found: Mapping[str, Stored], places: Mapping[str, int]) -> Iterator[HeaderTensor]:
    for name, (key, dtype, shape, strides, start, nbytes) in found.items():
        known = DTYPES[dtype]
        if known == "F4":  # torch counts bytes, each of which holds two numbers
            shape = (*shape[:-1], 2 * shape[-1]) if shape else (2,)
        yield HeaderTensor(name, known, shape, places[key] + start, places[key] + start + nbytes, strides)


def _check_views(tensors: Sequence[HeaderTensor], size: int) -> None:
    """Refuse a file whose views amount to many times its size: reading them would take too long. Tied tensors are read once."""
    shown = {(t.start, t.shape, t.strides, t.dtype): max(t.stop - t.start, prod(t.shape) * DTYPE_BITS[t.dtype] // 8) for t in tensors}
    if sum(shown.values()) > _VIEWS * size + _SPARE_BYTES:
        raise Excess(f"holds tensors of more than {_VIEWS} times its own bytes.")


class _RangeIO(io.RawIOBase):
    """A file that is read by range, as a file object."""

    def __init__(self, pieces: ReadCache) -> None:
        self._pieces, self._at = pieces, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self._pieces.size)[whence])
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        length = max(0, self._pieces.size - self._at)
        length = length if size is None or size < 0 else min(length, size)
        if length > ZIP_DIRECTORY_BYTES:
            raise Excess(f"has a zip directory of {length:,} bytes, more than {ZIP_DIRECTORY_BYTES:,}.")
        self._at += length
        return self._pieces.read(self._at - length, length)


def _zipped(pieces: ReadCache, checked: int | None) -> _Contents:
    """Read the layout since torch 1.6: an archive with data.pkl, and an entry for every storage.

    An archive of TorchScript also holds code, which is not read, and constants of the code.
    """
    pieces.keep(max(0, pieces.size - _FIRST_READ), min(pieces.size, _FIRST_READ))
    try:
        archive = zipfile.ZipFile(_RangeIO(pieces))
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, OverflowError) as error:
        raise Damaged(f"its zip directory is invalid ({str(error)[:60] or type(error).__name__})") from None
    entries = {entry.filename: entry for entry in archive.infolist()}
    folder = next(iter(entries), "").partition("/")[0] + "/"
    if len(entries) < len(archive.infolist()):
        raise Damaged("its zip archive holds two entries of one name")
    if folder + "data.pkl" not in entries:
        raise Refused("is a zip archive without data.pkl, which torch.save did not write.")
    starts = dict(_starts(archive))

    def start_of(name: str, verified: bool = True) -> int:
        """Return the offset of an entry's data, compared with its local header if ``verified``."""
        entry, start = entries[name], starts[name]
        if entry.compress_type or entry.flag_bits & _ENCRYPTED or entry.compress_size != entry.file_size:
            raise Damaged(f"the zip entry {quoted(name)} is compressed or encrypted, which torch never does")
        if not 0 <= entry.header_offset <= start - _LOCAL.size or start + entry.file_size > pieces.size:
            raise Damaged(f"the zip entry {quoted(name)} overlaps another, or reaches beyond the file")
        if verified:
            header = _LOCAL.unpack(pieces.read(entry.header_offset, _LOCAL.size))
            if header[0] != _ZIP or entry.header_offset + _LOCAL.size + header[9] + header[10] != start:
                raise Damaged(f"the zip entry {quoted(name)} is not where the directory says")
        return start

    pickled = entries[folder + "data.pkl"]
    if pickled.file_size > PICKLE_BYTES:
        raise _too_long(pickled.file_size)
    end = start_of(pickled.filename, verified=False) + pickled.file_size  # the pickle and the small entries after it in one read
    pieces.keep(pickled.header_offset, max(0, min(end + _FIRST_READ, pieces.size) - pickled.header_offset))
    small = {name: pieces.read(start_of(folder + name), min(entries[folder + name].file_size, 16)).strip()
             for name in ("version", "byteorder") if folder + name in entries}  # fmt: skip
    _check_little_endian(small.get("byteorder", b"little") == b"little")
    version = small.get("version", b"")
    if not version.isdigit() or int(version) not in _VERSIONS:
        raise Refused(f"is of version {quoted(version.decode('latin-1'))} of torch's format, and 1 to {_VERSIONS[-1]} are known.")
    machine = Machine(Stream(pieces.read(start_of(pickled.filename), pickled.file_size)))
    root = machine.run()
    places = {}
    verified = {storage.key for storage in spread([*machine.storages.values()], checked)}
    for key, storage in machine.storages.items():
        name = f"{folder}data/{key}"
        if name not in entries or entries[name].file_size != storage.nbytes:
            raise Damaged(f"the storage {quoted(key)} is missing, or does not have the length that its tensors state")
        places[key] = start_of(name, key in verified)
    constants = sum(name.startswith(folder + "constants/") for name in entries)
    script = "it is a TorchScript program, which torch.load refuses with weights_only" if folder + "constants.pkl" in entries else ""
    return _Contents(root, machine, places, pickled.file_size, script or why_refused(machine.seen, machine.names), constants)


def _starts(archive: zipfile.ZipFile) -> Iterator[tuple[str, int]]:
    """Yield each entry's name and the offset of its data, without a read for each: data end where the next entry begins.

    A descriptor of known length may stand between the two.
    """
    entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
    for entry, after in zip(entries, [*(each.header_offset for each in entries[1:]), archive.start_dir], strict=True):
        wide = max(entry.header_offset, entry.file_size) >= _FULL32
        yield entry.filename, after - (0 if not entry.flag_bits & _DESCRIBED else 24 if wide else 16) - entry.compress_size


def _legacy(pieces: ReadCache, checked: int | None) -> _Contents:
    """Read the layout before torch 1.6: five consecutive pickles, then the length and the data of every storage."""
    stream = Stream(pieces.read(0, min(pieces.size, _FIRST_READ)), more=partial(_longer, pieces))

    def unpickled(opcodes: int = limits.PICKLE_OPCODES) -> tuple[Any, Machine]:
        machine = Machine(stream, opcodes)
        return machine.run(), machine

    try:
        magic, protocol = unpickled(_FEW)[0], unpickled(_FEW)[0]
    except (Damaged, Refused, Excess):
        magic, protocol = None, None
    if (type(magic), magic, type(protocol), protocol) != (int, _MAGIC, int, _PROTOCOL):
        raise Refused("was not written by torch.save, though it may be a pickle: save the state_dict of a model, best as safetensors.")
    system, _ = unpickled()
    _check_little_endian(type(system) is Pairs and any(key == "little_endian" and value is True for key, value in system))
    root, machine = unpickled()
    keys, _ = unpickled()
    if (
        type(keys) is not list
        or any(type(key) is not str for key in keys)
        or {*keys} != machine.storages.keys()
        or len(keys) != len({*keys})
    ):
        raise Damaged("its list of storages is not that of its tensors")
    nbytes = at = stream.at
    places, counts = dict[str, int](), []
    for key in keys:
        counts.append((at, machine.storages[key].numel))
        places[key] = at + _COUNT
        at += _COUNT + machine.storages[key].nbytes
    if at > pieces.size:
        raise Damaged(f"it is cut off: its tensors need {at:,} bytes and it has {pieces.size:,}")
    for place, count in spread(counts, checked):
        if int.from_bytes(pieces.read(place, _COUNT), "little") != count:
            raise Damaged("a storage does not have the length that its tensors state")
    return _Contents(root, machine, places, nbytes, why_refused(machine.seen, machine.names))


def _check_little_endian(little: bool) -> None:
    if not little:
        raise Refused("holds big-endian numbers, which Mantissa does not read: save it again on another machine.")


def spread(items: Sequence[Any], count: int | None) -> Sequence[Any]:
    """Return ``count`` of the items, evenly spaced, including the first and the last; all if ``count`` is None."""
    if count is None or len(items) <= count:
        return items
    return [items[number * (len(items) - 1) // max(count - 1, 1)] for number in range(count)]


def _longer(pieces: ReadCache, data: bytes, needed: int) -> bytes:
    """Return at least ``needed`` bytes from the start of the file, or all of it. data: what is known; reads double it."""
    if len(data) >= min(needed, pieces.size):
        return data
    if needed > PICKLE_BYTES:
        raise _too_long(needed)
    length = min(max(needed, 2 * len(data)), pieces.size, PICKLE_BYTES)
    return data + pieces.read(len(data), length - len(data))


def _too_long(nbytes: int) -> Excess:
    return Excess(f"has a pickle of {nbytes:,} bytes, more than {PICKLE_BYTES:,}.")
