"""Which files of a repository are its weights.

In one folder, the first of these that there is: ``model.safetensors.index.json`` and its shards, ``model.safetensors``,
another ``*.safetensors.index.json`` and its shards, every ``*.safetensors``. Where the top folder has none, the same in
each of the topmost folders that have some. Variants (``model.fp16.safetensors``) and ``consolidated`` copies stand back
behind the plain files.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from analyzers import limits
from analyzers.checkpoints.reference import quoted
from analyzers.errors import CheckpointNotFound, InvalidCheckpoint, LimitExceeded, NoWeights

_WEIGHTS = ".safetensors"
_INDEX = ".safetensors.index.json"
_SHARD = re.compile(r"(.*?)-?([0-9]{1,6})-of-([0-9]{1,6})((?:\.[A-Za-z0-9_-]+)?)\.safetensors")
_VARIANT = re.compile(r"(.+)\.(fp16|bf16|fp32|fp8|non_ema|ema)(?:-[0-9]+-of-[0-9]+)?")

# What there may be in place of safetensors, in the order in which it is told.
_OTHERS = (
    ((".gguf", ".ggml"), "only GGUF files, which Mantissa does not read"),
    ((".bin", ".pt", ".pth", ".ckpt", ".pkl"), "weights stored as pickles only, which Mantissa does not read"),
    ((".h5", ".msgpack", ".tflite", ".pb"), "weights for TensorFlow or Flax only, which Mantissa does not read"),
    ((".onnx", ".onnx_data"), "only ONNX files, which Mantissa does not read"),
    ((".nemo", ".mlmodel", ".npz", ".pdparams", ".engine"), "weights in a format Mantissa does not read"),
)


@dataclass(frozen=True, slots=True)
class WeightSet:
    """Weight files that make up one model or one component of it.

    folder: where its configuration lies, "" for the top; groups: files that belong together (the shards of one index or
    numbering) and in which a name may stand only once; names in different groups are told apart by the file where they collide;
    weight_map: what the index says, tensor name -> path, if there is one.
    """

    folder: str
    groups: tuple[tuple[str, ...], ...]
    weight_map: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """One set, or one per component folder; notes: what was left out, for people."""

    sets: tuple[WeightSet, ...]
    notes: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """Every weight file, in order."""
        return tuple(path for weights in self.sets for group in weights.groups for path in group)


def select_weights(files: Mapping[str, int], read_small: Callable[[str], bytes], subfolder: str | None = None) -> WeightFiles:
    """Find the weight files among ``files`` (path -> bytes).

    read_small: reads a whole file, asked for index files only and never for one larger than INDEX_BYTES;
    subfolder: look into this folder alone.
    Raises NoWeights saying what there is instead, InvalidCheckpoint for missing shards or a damaged index,
    CheckpointNotFound for a subfolder that is not there, LimitExceeded.
    """
    start = (subfolder or "").strip("/")
    inside = f"{start}/" if start else ""
    listed = [path for path in files if path.startswith(inside)]
    if start and not listed:
        raise CheckpointNotFound(f"There is no folder {quoted(start)} in this checkpoint.")
    folders = _topmost({_folder(path) for path in listed if path.endswith((_WEIGHTS, _INDEX))}, start)
    if not folders:
        raise NoWeights(f"{_instead(listed)}: safetensors files are needed.")
    notes: list[str] = []
    sets = tuple(_select(folder, files, read_small, notes) for folder in folders)
    if len(sets) > 1:
        notes.append(f"Weights of {len(sets)} folders, read together: {', '.join(folders[:8])}{', ...' if len(folders) > 8 else ''}.")
    found = WeightFiles(sets, tuple(notes))
    if len(found.paths) > limits.SHARDS:
        raise LimitExceeded(f"The checkpoint has {len(found.paths):,} weight files, more than {limits.SHARDS:,} (MANTISSA_SHARDS).")
    return found


def _topmost(folders: set[str], start: str) -> list[str]:
    if start in folders:
        return [start]
    chosen: set[str] = set()
    for folder in sorted(folders, key=lambda folder: (folder.count("/"), folder)):
        parts = folder.split("/")
        if not any("/".join(parts[:depth]) in chosen for depth in range(1, len(parts))):
            chosen.add(folder)
    return sorted(chosen)


def _select(folder: str, files: Mapping[str, int], read_small: Callable[[str], bytes], notes: list[str]) -> WeightSet:
    prefix = f"{folder}/" if folder else ""
    names = sorted(path.removeprefix(prefix) for path in files if _folder(path) == folder)
    indexes = _plain([name for name in names if name.endswith(_INDEX)], _INDEX)
    weights = _plain([name for name in names if name.endswith(_WEIGHTS)], _WEIGHTS)
    if "model" + _INDEX not in indexes and "model" + _WEIGHTS in weights:
        _note_rest(names, {"model" + _WEIGHTS}, folder, notes)
        return WeightSet(folder, ((prefix + "model" + _WEIGHTS,),))
    if any(not name.startswith("consolidated") for name in weights):
        indexes = [name for name in indexes if not name.startswith("consolidated")]
    indexes.sort(key=lambda name: name != "model" + _INDEX)
    if indexes:
        weight_map = _read_index(prefix + indexes[0], prefix, files, read_small)
        shards = tuple(sorted(set(weight_map.values())))
        _note_rest(names, {shard.removeprefix(prefix) for shard in shards}, folder, notes)
        return WeightSet(folder, (shards,), weight_map)
    _note_rest(names, set(weights), folder, notes)
    return WeightSet(folder, tuple(tuple(prefix + name for name in group) for group in _complete_groups(weights)))


def _plain(names: list[str], ending: str) -> list[str]:
    """``names`` without variants of others among them, and without consolidated copies where there are others."""
    stems = {name.removesuffix(ending) for name in names}
    plain = []
    for name in names:
        variant = _VARIANT.fullmatch(name.removesuffix(ending))
        if variant is None or not _has_plain(variant[1], stems):
            plain.append(name)
    return [name for name in plain if not name.startswith("consolidated")] or plain


def _has_plain(stem: str, stems: set[str]) -> bool:
    return stem in stems or any(shard.startswith(stem + "-") and "-of-" in shard for shard in stems)


def _complete_groups(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Numbered files (``-00001-of-00003``) grouped into sets, each complete; every other file is a group of its own."""
    numbered: dict[tuple[str, str, str], dict[int, str]] = {}
    groups: list[tuple[str, ...]] = []
    for name in names:
        match = _SHARD.fullmatch(name)
        if match is None:
            groups.append((name,))
        else:
            numbered.setdefault((match[1], match[3], match[4]), {})[int(match[2])] = name
    for (_, total, _), shards in numbered.items():
        first = 0 if 0 in shards else 1
        count = int(total)
        if count > limits.SHARDS:
            raise LimitExceeded(f"The checkpoint claims {count:,} weight files, more than {limits.SHARDS:,} (MANTISSA_SHARDS).")
        missing = [number for number in range(first, first + count) if number not in shards]
        if missing:
            lost = _renumbered(next(iter(shards.values())), missing[0])
            more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            raise InvalidCheckpoint(f"The checkpoint is incomplete, with {quoted(lost, 200)}{more} of {count:,} weight files missing.")
        groups.append(tuple(shards[number] for number in sorted(shards)))
    return groups


def _renumbered(name: str, number: int) -> str:
    match = _SHARD.fullmatch(name)
    if match is None:
        return name
    return f"{name[: match.start(2)]}{number:0{len(match[2])}d}{name[match.end(2) :]}"


def _read_index(path: str, prefix: str, files: Mapping[str, int], read_small: Callable[[str], bytes]) -> dict[str, str]:
    """Tensor name -> path of its shard, every shard being among ``files``."""
    if files[path] > limits.INDEX_BYTES:
        raise LimitExceeded(f"{quoted(path, 200)} has {files[path]:,} bytes, more than {limits.INDEX_BYTES:,} (MANTISSA_INDEX_BYTES).")
    try:
        index: Any = json.loads(read_small(path))
    except (ValueError, RecursionError):
        raise InvalidCheckpoint(f"{quoted(path, 200)} is no JSON: the index of the weight files is damaged.") from None
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise InvalidCheckpoint(f"{quoted(path, 200)} has no weight_map from tensor names to files.")
    if len(weight_map) > limits.TENSORS:
        raise LimitExceeded(f"{quoted(path, 200)} lists more than {limits.TENSORS:,} tensors (MANTISSA_TENSORS).")
    for shard in set(weight_map.values()):
        parts = shard.split("/")
        if not shard.endswith(_WEIGHTS) or "\\" in shard or not shard.isprintable() or any(part in ("", ".", "..") for part in parts):
            raise InvalidCheckpoint(f"{quoted(path, 200)} names {quoted(shard)}, which is no weight file of this checkpoint.")
    missing = sorted({shard for shard in weight_map.values() if prefix + shard not in files})
    if missing:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise InvalidCheckpoint(f"The checkpoint is incomplete, with {quoted(missing[0], 200)}{more}, named in its index, missing.")
    return {name: prefix + shard for name, shard in weight_map.items()}


def _note_rest(names: list[str], used: set[str], folder: str, notes: list[str]) -> None:
    rest = [name for name in names if name.endswith(_WEIGHTS) and name not in used]
    if rest:
        more = f" and {len(rest) - 1:,} more" if len(rest) > 1 else ""
        where = f" in {quoted(folder)}" if folder else ""
        notes.append(f"Not read{where}: {quoted(rest[0])}{more}, beside the files that make up the model.")


def _instead(paths: list[str]) -> str:
    if not paths:
        return "The checkpoint is empty"
    for endings, what in _OTHERS:
        if any(path.lower().endswith(endings) and path.rpartition("/")[2] != "training_args.bin" for path in paths):
            return f"The checkpoint holds {what}"
    if any(path.rpartition("/")[2] == "config.json" for path in paths):
        return "The checkpoint holds a configuration and no weights"
    return "The checkpoint holds no weights"


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
