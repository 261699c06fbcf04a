"""Lists the tensors of a file that torch.save wrote, in either of its layouts, in a header like that of a safetensors file."""

import io
import re
import struct
import zipfile
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from analyzers.checkpoints.formats.faults import Damaged, Excess, Unsupported, cut_off, faults_named
from analyzers.checkpoints.formats.pickles.constructors import Pairs
from analyzers.checkpoints.formats.pickles.machine import PICKLE_BYTES, Budget, Machine
from analyzers.checkpoints.formats.pickles.weights import weights
from analyzers.checkpoints.formats.read_cache import ReadCache
from analyzers.checkpoints.formats.safetensors_header import Header, HeaderTensor
from analyzers.checkpoints.reference import quoted
from analyzers.checkpoints.repository import RangeFile
from analyzers.checkpoints.tensor import DTYPE_BITS

ZIP_DIRECTORY_BYTES = 32_000_000  # The directory of a zip archive, 60 bytes for each tensor, is parsed in memory.
_ZIP = b"PK\3\4"
_LOCAL = struct.Struct("<4s5H3I2H")
_LONGEST_LOCAL = _LOCAL.size + 2 * 0xFFFF  # with the longest name and extra field
_DESCRIBED, _ENCRYPTED, _FULL32 = 1 << 3, 1, 0xFFFFFFFF
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # begin the layout before torch 1.6
_FIRST_READ = 64 << 10
_WINDOW = 1 << 20  # bytes of its pickles that are read at once
_COUNT = 8  # bytes of the length before each of its storages
_VIEWS = 8  # Times the size of the file: tensors may share bytes, and a small file could stand for years of reading.
_SPARE_BYTES = 64 << 20  # views may cover this many bytes, even in a small file
_NEWEST = 2  # protocol of the opcodes that torch.load reads with weights_only
# The names that it accepts.
_ACCEPTED = re.compile(
    r"torch\.(cuda\.|sparse\.|storage\.)*\w+|torch\._utils\._rebuild_\w+|torch\._tensor\._rebuild_from_type_v2|torch\.nn\.parameter\.Parameter"
    r"|torch\.serialization\._get_layout|collections\.(OrderedDict|Counter)|_codecs\.encode|(builtins|__builtin__)\.(set|bytearray|complex)"
)


def read_pickled(file: RangeFile, checked: int | None = None) -> Header:
    """List the tensors of a file that `torch.save` wrote, in either of its layouts, or TorchScript, without unpickling it.

    checked: the number of storages, evenly spaced, whose offsets are verified against the headers next to their data, with a read each;
    None for all. Views become strides (`Tensor.strides`), and every name of tied tensors is listed. From a trainer's checkpoint, only the
    weights are listed (`weights`). Nothing that the file names is called: values of unknown classes stay opaque, and tensors that cannot be
    read are in ``omitted``. Raises InvalidCheckpoint for a damaged file, UnsupportedWeights for one without tensors that can be read,
    LimitExceeded; each names the file.
    """
    with faults_named(file):
        return _read(file, checked)


def _read(file: RangeFile, checked: int | None) -> Header:
    cache = ReadCache(file, PICKLE_BYTES)
    cache.keep(0, _FIRST_READ)
    zipped = cache.bytes_at(0, min(len(_ZIP), file.size)) == _ZIP
    root, machine, places = (_zipped if zipped else _old)(cache, checked)
    found, omitted, notes = weights(root, machine)
    tensors = tuple(
        HeaderTensor(name, dtype, shape, places[key] + start, places[key] + start + nbytes, strides)
        for name, (key, dtype, shape, strides, start, nbytes) in found.items()
    )
    # Reading views that amount to many times the file would take too long. Tied tensors are read once.
    shown = {each[1:]: max(each.stop - each.start, prod(each.shape) * DTYPE_BITS[each.dtype] // 8) for each in tensors}
    if sum(shown.values()) > _VIEWS * file.size + _SPARE_BYTES:
        raise Excess(f"holds tensors of more than {_VIEWS} times its own bytes.")
    return Header(tensors, {}, notes, omitted, _why_refused(root, machine), pickled=True)


def _why_refused(root: Any, machine: Machine) -> str:
    """Explain why transformers, which calls torch.load with weights_only, refuses a pickle; empty if it does not."""
    other = min((name for name in machine.names if not _ACCEPTED.fullmatch(name)), default="")
    if other or machine.protocol > _NEWEST:
        what = f"opcodes of protocol {machine.protocol}" if machine.protocol > _NEWEST else quoted(other, 100)
        return f"its pickle has {what}, which torch.load refuses with weights_only"
    mapping = type(root) is Pairs and all(type(key) is str for key, _ in root)
    return "" if mapping else "it holds no mapping from names to tensors, which transformers expects"


def _zipped(cache: ReadCache, checked: int | None) -> tuple[Any, Machine, dict[str, int]]:
    """Read the layout since torch 1.6, an archive with data.pkl and an entry for every storage: the object, and where its storages begin.

    An archive of TorchScript also holds code, which is not read.
    """
    cache.most = ZIP_DIRECTORY_BYTES
    cache.keep(max(0, cache.size - _FIRST_READ), cache.size)
    try:
        archive = zipfile.ZipFile(cache)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, OverflowError) as error:
        raise Damaged(f"its zip directory is invalid ({str(error)[:60] or type(error).__name__})") from None
    entries = {entry.filename: entry for entry in archive.infolist()}
    if len(entries) < len(archive.infolist()):
        raise Damaged("its zip archive holds two entries of one name")
    folder = next(iter(entries), "").partition("/")[0] + "/"
    if folder + "data.pkl" not in entries:
        raise Unsupported("is a zip archive without data.pkl, which torch.save did not write.")
    starts = dict(_starts(archive))

    def start_of(name: str, verified: bool = True) -> int:
        """Return the offset of an entry's data, compared with its local header if ``verified``."""
        entry, start = entries[name], starts[name]
        if entry.compress_type or entry.flag_bits & _ENCRYPTED or entry.compress_size != entry.file_size:
            raise Damaged(f"the zip entry {quoted(name)} is compressed or encrypted, which torch never does")
        inside = entry.header_offset >= 0 and start + entry.file_size <= cache.size
        if not inside or not _LOCAL.size <= start - entry.header_offset <= _LONGEST_LOCAL:
            raise Damaged(f"the zip entry {quoted(name)} overlaps another, or reaches beyond the file")
        if verified:
            header = _LOCAL.unpack(cache.bytes_at(entry.header_offset, _LOCAL.size))
            if header[0] != _ZIP or entry.header_offset + _LOCAL.size + header[9] + header[10] != start:
                raise Damaged(f"the zip entry {quoted(name)} is not where the directory says")
        return start

    pickled = entries[folder + "data.pkl"]
    start = start_of(pickled.filename, verified=False)
    if pickled.file_size > PICKLE_BYTES:
        raise Excess(f"has a pickle of {pickled.file_size:,} bytes, more than {PICKLE_BYTES:,}.")
    # The pickle and the small entries after it in one read.
    cache.keep(pickled.header_offset, start + pickled.file_size + _FIRST_READ)
    order = folder + "byteorder"
    if order in entries and cache.bytes_at(start_of(order), min(entries[order].file_size, 16)).strip() != b"little":
        raise _big_endian()
    data = cache.bytes_at(start_of(pickled.filename), pickled.file_size)
    machine = Machine(io.BytesIO(data), Budget(len(data)))
    root = machine.run()
    verified = set(_spread(list(machine.storages), checked))
    places = {}
    for key, storage in machine.storages.items():
        name = f"{folder}data/{key}"
        if name not in entries or entries[name].file_size != storage.nbytes:
            raise Damaged(f"the storage {quoted(key)} is missing, or does not have the length that its tensors state")
        places[key] = start_of(name, key in verified)
    return root, machine, places


def _starts(archive: zipfile.ZipFile) -> Iterator[tuple[str, int]]:
    """Yield each entry's name and the offset of its data, without a read for each: data end where the next entry begins.

    A descriptor of known length may stand between the two.
    """
    entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
    for entry, after in zip(entries, [*(each.header_offset for each in entries[1:]), archive.start_dir], strict=True):
        wide = max(entry.header_offset, entry.file_size) >= _FULL32
        yield entry.filename, after - (0 if not entry.flag_bits & _DESCRIBED else 24 if wide else 16) - entry.compress_size


def _old(cache: ReadCache, checked: int | None) -> tuple[Any, Machine, dict[str, int]]:
    """Read the layout before torch 1.6: five consecutive pickles, then the length and the data of every storage."""
    source, budget = io.BufferedReader(cache, _WINDOW), Budget(cache.size)
    try:
        magic, protocol = Machine(source, budget).run(), Machine(source, budget).run()
    except Damaged:
        magic = protocol = None
    if (type(magic), magic, type(protocol), protocol) != (int, _MAGIC, int, _PROTOCOL):
        raise Unsupported("was not written by torch.save, though it may be a pickle: save the state_dict of a model, best as safetensors.")
    system = Machine(source, budget).run()
    if type(system) is not Pairs or not any(key == "little_endian" and value is True for key, value in system):
        raise _big_endian()
    machine = Machine(source, budget)
    root, keys = machine.run(), Machine(source, budget).run()
    if type(keys) is not list or any(type(key) is not str for key in keys) or sorted(keys) != sorted(machine.storages):
        raise Damaged("its list of storages is not that of its tensors")
    places, at = dict[str, int](), source.tell()
    for key in keys:
        places[key] = at + _COUNT
        at += _COUNT + machine.storages[key].nbytes
    if at > cache.size:
        raise cut_off("tensors need", at, cache.size)
    for key in _spread(keys, checked):
        if int.from_bytes(cache.bytes_at(places[key] - _COUNT, _COUNT), "little") != machine.storages[key].numel:
            raise Damaged("a storage does not have the length that its tensors state")
    return root, machine, places


def _big_endian() -> Unsupported:
    return Unsupported("holds big-endian numbers, which Mantissa does not read: save it again on another machine.")


def _spread(items: Sequence[str], count: int | None) -> Sequence[str]:
    """Return about ``count`` of the items, evenly spaced, including the first and the last; all if ``count`` is None."""
    if count is None or len(items) <= count:
        return items
    return [*items[:: -(-len(items) // count)], items[-1]]
