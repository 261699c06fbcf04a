"""Lays out the safetensors files that `shrink` writes, and their indexes, in full before a byte is written."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from analyzers.checkpoints import DTYPE_BITS, Checkpoint, read_header
from analyzers.checkpoints.repository import read_file
from analyzers.core import limits
from analyzers.core.untrusted_json import InvalidJson, parse_json
from analyzers.shrink.plan import Planned

_SAFETENSORS = ".safetensors"
_INDEX = ".safetensors.index.json"
_SHARD = re.compile(r"(.*)-[0-9]+-of-[0-9]+\.safetensors")


@dataclass(frozen=True, slots=True)
class WeightFile:
    """A weight file to write. header: with the 8 bytes of its length; starts: byte offset of each stored tensor, by its name."""

    path: str
    header: bytes
    tensors: tuple[Planned, ...]
    starts: dict[str, int]

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return len(self.header) + sum(each.nbytes for each in self.tensors)


def lay_out(checkpoint: Checkpoint, plan: list[Planned]) -> list[WeightFile]:
    """Lay out the weight files of the result, one for each of the checkpoint's files that still holds tensors."""
    tensors: dict[int, list[Planned]] = {}
    for planned in plan:
        if planned.to is not None:
            tensors.setdefault(planned.file, []).append(planned)
    files = []
    for number in sorted(tensors):
        source = checkpoint.files[number]
        metadata = dict(read_header(source).metadata) if source.path.endswith(_SAFETENSORS) else {}
        entries: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
        # Widest first, like the safetensors library, so that every tensor begins at a multiple of its element size.
        starts, at = {}, 0
        for planned in sorted(tensors[number], key=lambda each: (-DTYPE_BITS[each.to or ""], each.name)):
            entries[planned.name] = {"dtype": planned.to, "shape": planned.tensor.shape, "data_offsets": [at, at + planned.nbytes]}
            starts[planned.name] = at
            at += planned.nbytes
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        header = len(text).to_bytes(8, "little") + text
        starts = {name: len(header) + start for name, start in starts.items()}
        files.append(WeightFile(_safetensors_path(source.path), header, tuple(tensors[number]), starts))
    return files


def _safetensors_path(path: str) -> str:
    """Return the path of the written file: model-00001-of-00002.safetensors for pytorch_model-00001-of-00002.bin."""
    if path.endswith(_SAFETENSORS):
        return path
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}{name.rpartition('.')[0].replace('pytorch_model', 'model')}{_SAFETENSORS}"


def indexes(checkpoint: Checkpoint, files: Sequence[WeightFile]) -> dict[str, bytes]:
    """Build the index of each set of shards from the headers, keeping the old index's metadata and its omissions."""
    groups: dict[str, list[WeightFile]] = {}
    for file in files:
        folder, slash, name = file.path.rpartition("/")
        shard = _SHARD.fullmatch(name)
        groups.setdefault(f"{folder}{slash}{shard[1] if shard else 'model'}{_INDEX}", []).append(file)
    found = {}
    for path, shards in groups.items():
        pairs = [(name, file.path.rpartition("/")[2]) for file in shards for name in file.starts]
        unique = len(dict(pairs)) == len(pairs)  # if not, the last shard with a name counts, according to an index
        new = path not in checkpoint.repository.files and unique and (len(shards) > 1 or _SHARD.fullmatch(pairs[0][1]))
        if new or indexed(checkpoint, path) & {file.path for file in shards}:  # an index of other files is unchanged
            metadata = _read_json(checkpoint, path).get("metadata")
            total = sum(planned.nbytes for file in shards for planned in file.tensors)
            index = {
                "metadata": {**(metadata if isinstance(metadata, dict) else {}), "total_size": total},
                "weight_map": dict(sorted(pairs)),
            }
            found[path] = json.dumps(index, indent=2).encode() + b"\n"
    return found


def indexed(checkpoint: Checkpoint, path: str) -> set[str]:
    """Return the files that a stored index names; none if it is missing or unreadable."""
    folder, slash, _ = path.rpartition("/")
    named = _read_json(checkpoint, path).get("weight_map")
    return {f"{folder}{slash}{name}" for name in named.values()} if isinstance(named, dict) else set()


def _read_json(checkpoint: Checkpoint, path: str) -> dict[str, Any]:
    """Read a stored index; empty if it is missing or unreadable."""
    if not 0 < checkpoint.repository.files.get(path, 0) <= limits.INDEX_BYTES:
        return {}
    try:
        found = parse_json(read_file(checkpoint.repository, path), lenient=True)
    except InvalidJson:
        return {}
    return found if isinstance(found, dict) else {}
