"""Lays out the files of a new folder in full before a byte is written: weight files, their indexes, and the dtype in config.json."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analyzers.checkpoints import DTYPE_BITS, Checkpoint, read_header
from analyzers.checkpoints.repository import read_object
from analyzers.checkpoints.stated_dtype import TORCH_NAMES, plain_dtype
from analyzers.core import limits
from analyzers.write.plan import Planned

_SAFETENSORS = ".safetensors"
_INDEX = ".safetensors.index.json"
_SHARD = re.compile(r"(.*)-[0-9]+-of-[0-9]+\.safetensors")
_DTYPE_KEYS = ("dtype", "torch_dtype")
_BITS = {name: DTYPE_BITS[dtype] for dtype, name in TORCH_NAMES.items()}


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


def lay_out(checkpoint: Checkpoint, plan: Sequence[Planned]) -> list[WeightFile]:
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
            metadata = read_object(checkpoint.repository, path, limits.INDEX_BYTES).get("metadata")
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
    named = read_object(checkpoint.repository, path, limits.INDEX_BYTES).get("weight_map")
    return {f"{folder}{slash}{name}" for name in named.values()} if isinstance(named, dict) else set()


def configs(
    checkpoint: Checkpoint, files: Sequence[WeightFile], changes: Mapping[str, Any] | None
) -> dict[str, tuple[dict[str, Any], str]]:
    """Return each config.json that has to be written, the outermost first, with the dtype that it states.

    changes: settings that a merge changes; None for a shrink, which rewrites those above tensors whose dtype changes, and states no dtype
    that is wider than before.
    """
    found = {}
    paths = [path for path in checkpoint.repository.files if path.rpartition("/")[2] == "config.json"]
    for path in sorted(paths, key=lambda path: path.count("/")):
        below = [each for file in files if file.path.startswith(path.removesuffix("config.json")) for each in file.tensors]
        # Buffers are left out: loaders ignore or recompute most of them.
        dtype = holding_dtype(planned.to or "" for planned in below if not planned.tensor.buffer)
        config = read_object(checkpoint.repository, path, limits.CONFIG_BYTES)
        if config and dtype and (changes is not None or any(planned.narrows for planned in below)):
            found[path] = config, state_dtype(config, dtype, wider_only=changes is None)
            for key, value in (changes or {}).items():
                holder = next((part for part in (config, config.get("text_config")) if isinstance(part, dict) and key in part), config)
                holder[key] = value
    return found


def holding_dtype(dtypes: Iterable[str]) -> str | None:
    """Return the narrowest dtype that holds values of all ``dtypes``, by its name in torch; float32 for BF16 together with F16."""
    names = {TORCH_NAMES[dtype] for dtype in dtypes if dtype in TORCH_NAMES}
    if names == {"bfloat16", "float16"}:
        return "float32"
    return max(names, key=_BITS.__getitem__, default=None)


def state_dtype(config: dict[str, Any], dtype: str, wider_only: bool) -> str:
    """Replace each dtype that ``config`` states, also in nested parts, by ``dtype``; return the one that it then states.

    wider_only: replace only those that are wider. If none is stated, ``dtype`` is added: a loader would use that of the first tensor.
    """
    for part in (config, *config.values()):
        for key in _DTYPE_KEYS if isinstance(part, dict) else ():
            if key in part and (not wider_only or _BITS.get(plain_dtype(part[key]), 0) > _BITS[dtype]):
                part[key] = dtype
    if not any(key in config for key in _DTYPE_KEYS):
        config["dtype"] = dtype
    return plain_dtype(next(config[key] for key in _DTYPE_KEYS if key in config))
