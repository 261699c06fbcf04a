"""Reads the zip archive of a PyTorch file: the byte range of each entry; redundant fields must agree.

    local header, name, padding, data, descriptor | ... one for each entry ... | directory | end of the directory, in 64 and 32 bits

Only what torch writes is accepted: uncompressed entries without gaps, the first at byte 0, the directory after the last. The code of a
TorchScript program may be compressed: it is not read.
Data begin after padding whose length only the local header gives; but only a descriptor of known length separates data from the
next entry, so their offset follows from that. Local headers are checked against it.
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple

from analyzers.checkpoints.formats.pickles.faults import Damaged, Excess
from analyzers.checkpoints.formats.read_cache import ReadCache
from analyzers.checkpoints.reference import quoted

ZIP_ENTRIES = 1_100_000  # A PyTorch file is a zip archive with an entry for every storage.
ZIP_DIRECTORY_BYTES = 200_000_000  # The directory of a zip archive is parsed in memory.
LOCAL = b"PK\3\4"
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQ2H2I4Q")
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF  # marks a field whose value is in the 64-bit field
_WIDE = 1  # id of the extra field with 64-bit numbers
_DESCRIBED, _ENCRYPTED = 1 << 3, 1 | 1 << 6 | 1 << 13
_DESCRIPTOR, _DESCRIPTOR64 = 16, 24
_DEFLATED, _CODE = 8, "/code/"
_TAIL = 64 << 10
_NAME_LENGTH = 1_000


class Entry(NamedTuple):
    """One entry of the archive: offsets of its local header and of its data, and the size of the data in the file, in bytes."""

    name: str
    header: int
    start: int
    size: int
    flags: int


def read_directory(pieces: ReadCache) -> dict[str, Entry]:
    """Read the directory: name -> entry, in the order of the file. Raises Damaged, Excess."""
    size = pieces.size
    if size < _END.size:
        raise Damaged("it is cut off")
    tail_start = max(0, size - _TAIL)
    tail = pieces.keep(tail_start, size - tail_start)
    start, length, count = _directory(tail, tail_start, size)
    if length > ZIP_DIRECTORY_BYTES:
        raise Excess(f"has a zip directory of {length:,} bytes, more than {ZIP_DIRECTORY_BYTES:,}.")
    if count > ZIP_ENTRIES:
        raise Excess(f"has {count:,} zip entries, more than {ZIP_ENTRIES:,}.")
    found = _entries(pieces.read(start, length), count)
    return _place(found, start)


def check_places(pieces: ReadCache, entries: Iterable[Entry]) -> None:
    """Compare the local headers of ``entries`` with the directory. Raises Damaged."""
    for entry in entries:
        raw_name = entry.name.encode()
        raw = pieces.read(entry.header, _LOCAL.size + len(raw_name))
        signature, _, flags, method, _, _, _, packed, size, name_length, extra_length = _LOCAL.unpack_from(raw)
        if signature != LOCAL or method or flags != entry.flags or name_length != len(raw_name) or raw[_LOCAL.size :] != raw_name:
            raise Damaged(f"the zip entry {quoted(entry.name)} is not what the directory says")
        if entry.header + len(raw) + extra_length != entry.start:
            raise Damaged(f"the zip entry {quoted(entry.name)} has data elsewhere than the directory says")
        for said in (packed, size):
            if said not in (entry.size, _FULL32) and not (said == 0 and flags & _DESCRIBED):
                raise Damaged(f"the zip entry {quoted(entry.name)} has another length than the directory says")


def _directory(tail: bytes, tail_start: int, size: int) -> tuple[int, int, int]:
    """Return offset, bytes and number of entries of the directory."""
    signature, disk, first_disk, here, count, length, start, comment = _END.unpack(tail[-_END.size :])
    if signature != b"PK\5\6" or comment or disk or first_disk or here != count:
        raise Damaged("its zip directory has no end: it is cut off, or something was appended")
    end = size - _END.size
    at = len(tail) - _END.size - _LOCATOR.size
    if at >= 0 and tail[at : at + 4] == b"PK\6\7":
        _, disk, place, disks = _LOCATOR.unpack_from(tail, at)
        end = tail_start + at - _END64.size
        at -= _END64.size
        if at < 0 or place != end or disk or disks != 1:
            raise Damaged("the two ends of its zip directory do not match")
        record = _END64.unpack_from(tail, at)
        wide = record[6], record[8], record[9]
        if record[0] != b"PK\6\6" or record[1] != _END64.size - 12 or record[4] or record[5] or record[6] != record[7]:
            raise Damaged("the 64-bit end of its zip directory is invalid")
        for said, limit, full in zip((count, length, start), (_FULL16, _FULL32, _FULL32), wide, strict=True):
            if said not in (full, limit) or (said == limit and full < limit):
                raise Damaged("the two ends of its zip directory contradict each other")
        count, length, start = wide
    if start + length != end or length < count * _CENTRAL.size:
        raise Damaged("its zip directory is not where its end says")
    return start, length, count


def _entries(raw: bytes, count: int) -> list[Entry]:
    """Parse the entries of a directory in its order; ``start`` is not yet known."""
    found = []
    names = set()
    at = 0
    for _ in range(count):
        if at + _CENTRAL.size > len(raw):
            raise Damaged("its zip directory ends early")
        fields = _CENTRAL.unpack_from(raw, at)
        signature, _, _, flags, method, _, _, _, packed, size, name_length, extra_length, comment_length, disk, _, _, header = fields
        at += _CENTRAL.size
        stop = at + name_length + extra_length + comment_length
        if signature != b"PK\1\2" or stop > len(raw) or name_length > _NAME_LENGTH:
            raise Damaged("its zip directory is invalid")
        name = _name(raw[at : at + name_length])
        wide = _wide(raw[at + name_length : at + name_length + extra_length])
        at = stop
        if _FULL32 in (size, packed, header):
            numbers = iter(wide)
            try:
                size, packed, header = (next(numbers) if said == _FULL32 else said for said in (size, packed, header))
            except (StopIteration, RuntimeError):
                raise Damaged(f"the zip entry {quoted(name)} lacks its 64-bit lengths") from None
        if method == _DEFLATED and _CODE in name:
            size = packed
        elif method or packed != size:
            raise Damaged(f"the zip entry {quoted(name)} is compressed, which torch never does")
        if flags & _ENCRYPTED or disk not in (0, _FULL16):
            raise Damaged(f"the zip entry {quoted(name)} is encrypted or on another disk")
        if name in names:
            raise Damaged(f"the zip entry {quoted(name)} occurs twice")
        names.add(name)
        found.append(Entry(name, header, 0, size, flags))
    if at != len(raw):
        raise Damaged("its zip directory does not end with its last entry")
    return found


def _name(raw: bytes) -> str:
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        raise Damaged("the name of a zip entry is not text") from None
    if not name.isprintable() or any(part in ("", ".", "..") for part in name.removesuffix("/").split("/")):
        raise Damaged(f"the zip entry {quoted(name)} has an unsafe name")
    return name


def _wide(extra: bytes) -> tuple[int, ...]:
    """Return the numbers in the 64-bit field among an entry's extra fields; empty if there is none."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == _WIDE:
            count = min(length, len(extra) - at - 4) // 8
            return struct.unpack_from(f"<{count}Q", extra, at + 4)
        at += 4 + length
    return ()


def _place(found: list[Entry], end: int) -> dict[str, Entry]:
    """Set the offset of each entry's data, checking that the entries fill the file up to ``end`` without overlap."""
    found.sort(key=lambda entry: entry.header)
    if not found or found[0].header != 0:
        raise Damaged("its zip entries do not begin at its first byte")
    placed = {}
    for number, entry in enumerate(found):
        following = found[number + 1].header if number + 1 < len(found) else end
        descriptor = 0
        if entry.flags & _DESCRIBED:
            descriptor = _DESCRIPTOR64 if max(entry.header, entry.size) >= _FULL32 else _DESCRIPTOR
        start = following - descriptor - entry.size
        if start < entry.header + _LOCAL.size + len(entry.name.encode()):
            raise Damaged(f"the zip entry {quoted(entry.name)} overlaps the next, or reaches beyond the file")
        placed[entry.name] = entry._replace(start=start)
    return placed
