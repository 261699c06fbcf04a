"""Reads the two layouts of `torch.save`: the pickled object and the offsets of its storages."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from analyzers.checkpoints.formats.pickles.faults import Damaged, Excess, Refused
from analyzers.checkpoints.formats.pickles.machine import Machine, Stream
from analyzers.checkpoints.formats.pickles.objects import Entries, Storage
from analyzers.checkpoints.formats.pickles.weights_only import why_refused
from analyzers.checkpoints.formats.pickles.zip_archive import Entry, check_places, read_directory
from analyzers.checkpoints.formats.read_cache import ReadCache
from analyzers.checkpoints.reference import quoted
from analyzers.core import limits

PICKLE_BYTES = 100_000_000  # The pickle of a PyTorch file, which describes its tensors, is decoded in memory.
_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_FIRST_READ = 64 << 10
_FEW = 64  # most opcodes of a pickle that holds one number
_COUNT = 8  # bytes of the length before each storage's data
_VERSIONS = range(1, 11)


class Contents(NamedTuple):
    """The contents of a pickled file.

    root: the unpickled description; foreign: how many values each unknown class or function would have created; storages: key -> bytes;
    places: storage key -> offset of its data; nbytes: bytes of the pickles; refused: see `Header`; constants: number of constants of a
    TorchScript program.
    """

    root: Any
    foreign: Mapping[str, int]
    storages: dict[str, int]
    places: dict[str, int]
    nbytes: int
    refused: str
    constants: int = 0


def read_zip(pieces: ReadCache, checked: int | None) -> Contents:
    """Read the layout since torch 1.6: an archive with data.pkl, and an entry for every storage.

    An archive of TorchScript also holds code, which is not read, and constants of the code. checked: see `read_pickled`. Raises Damaged,
    Refused, Excess.
    """
    entries = read_directory(pieces)
    folder = next(iter(entries)).partition("/")[0] + "/"
    if any(not name.startswith(folder) for name in entries):
        raise Refused(f"is a zip archive of several folders ({_some(entries)}), which torch.save did not write.")
    pickled = entries.get(folder + "data.pkl")
    if pickled is None:
        raise Refused(f"is a zip archive without data.pkl ({_some(entries)}), which torch.save did not write.")
    if pickled.size > PICKLE_BYTES:
        raise _too_long(pickled.size)
    small = [entries[folder + name] for name in ("version", "byteorder") if folder + name in entries]
    _keep_beginning(pieces, entries, folder, pickled)
    check_places(pieces, [pickled, *small])
    told = {entry.name.removeprefix(folder): pieces.read(entry.start, min(entry.size, 16)).strip() for entry in small}
    if told.get("byteorder", b"little") != b"little":
        raise Refused("holds big-endian numbers, which Mantissa does not read: save it again on another machine.")
    version = told.get("version", b"")
    if not version.isdigit() or int(version) not in _VERSIONS:
        raise Refused(f"is of version {quoted(version.decode('latin-1'))} of torch's format, and 1 to {_VERSIONS[-1]} are known.")
    machine = Machine(Stream(pieces.read(pickled.start, pickled.size)))
    root = machine.run()
    data = {name.removeprefix(folder + "data/"): entry for name, entry in entries.items() if name.startswith(folder + "data/")}
    for storage in machine.storages.values():
        if storage.key not in data:
            raise Damaged(f"the storage {quoted(storage.key)} is missing")
        if data[storage.key].size != _nbytes(storage):
            raise Damaged(f"the storage {quoted(storage.key)} does not have the length that its tensors state")
    check_places(pieces, spread([data[key] for key in machine.storages], checked))
    places = {key: data[key].start for key in machine.storages}
    constants = sum(name.startswith(folder + "constants/") for name in entries)
    refused = why_refused(machine.seen, machine.names)
    if folder + "constants.pkl" in entries:
        refused = "it is a TorchScript program, which torch.load refuses with weights_only"
    return Contents(root, machine.foreign, _sizes(machine), places, pickled.size, refused, constants)


def read_legacy(pieces: ReadCache, checked: int | None) -> Contents:
    """Read the layout before torch 1.6: five consecutive pickles, then the length and the data of every storage."""
    stream = Stream(pieces.read(0, min(pieces.size, _FIRST_READ)), more=partial(_longer, pieces))

    def unpickled(opcodes: int = limits.PICKLE_OPCODES) -> tuple[Any, Machine]:
        machine = Machine(stream, opcodes)
        return machine.run(), machine

    try:
        magic, protocol = unpickled(_FEW)[0], unpickled(_FEW)[0]
    except (Damaged, Refused, Excess):
        magic, protocol = None, None
    if type(magic) is not int or magic != _MAGIC:
        raise Refused("was not written by torch.save, though it may be a pickle: save the state_dict of a model, best as safetensors.")
    if type(protocol) is not int or protocol != _PROTOCOL:
        raise Refused("is of an unknown version of torch's format.")
    system, _ = unpickled()
    if type(system) is not Entries or ("little_endian", True) not in list(zip(system[::2], system[1::2], strict=True)):
        raise Refused("holds big-endian numbers, which Mantissa does not read: save it again on another machine.")
    root, machine = unpickled()
    keys, _ = unpickled()
    if type(keys) is not list or any(type(key) is not str for key in keys) or len(set(keys)) != len(keys):
        raise Damaged("its list of storages is not a list of names")
    nbytes = at = stream.at
    places = {}
    counts = []
    for key in keys:
        storage = machine.storages.get(key)
        if storage is None:
            raise Damaged(f"the storage {quoted(key)} belongs to no tensor, so its length is unknown")
        counts.append((at, storage.whole))
        places[key] = at + _COUNT
        at += _COUNT + _nbytes(storage)
    if at > pieces.size:
        raise Damaged(f"it is cut off: its tensors need {at:,} bytes and it has {pieces.size:,}")
    missing = next((key for key in machine.storages if key not in places), None)
    if missing is not None:
        raise Damaged(f"the storage {quoted(missing)} is missing")
    for place, count in spread(counts, checked):
        if int.from_bytes(pieces.read(place, _COUNT), "little") != count:
            raise Damaged("a storage does not have the length that its tensors state")
    return Contents(root, machine.foreign, _sizes(machine), places, nbytes, why_refused(machine.seen, machine.names))


def _nbytes(storage: Storage) -> int:
    return storage.whole * storage.dtype.itemsize


def _sizes(machine: Machine) -> dict[str, int]:
    return {key: _nbytes(storage) for key, storage in machine.storages.items()}


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


def _keep_beginning(pieces: ReadCache, entries: dict[str, Entry], folder: str, pickled: Entry) -> None:
    """Read the pickle and the small entries around it in one read."""
    stop = min((entry.header for entry in entries.values() if entry.header > pickled.header and entry.size > _FIRST_READ), default=0)
    end = pickled.start + pickled.size
    pieces.keep(pickled.header, min(max(stop, end), end + _FIRST_READ) - pickled.header)


def _some(entries: Iterable[str]) -> str:
    return ", ".join(quoted(name, 30) for name, _ in zip(entries, range(2), strict=False))


def _too_long(nbytes: int) -> Excess:
    return Excess(f"has a pickle of {nbytes:,} bytes, more than {PICKLE_BYTES:,}.")
