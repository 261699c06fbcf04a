"""Selects the weight files of a repository.

In one folder, the first of these that exists:

    model.safetensors.index.json and its shards     pytorch_model.bin.index.json and its shards     the widest GGUF file,
    model.safetensors                               pytorch_model.bin                               all its parts
    another *.safetensors.index.json                another *.bin.index.json
    every *.safetensors                             every *.bin, *.pt, *.pth, *.ckpt with weights

safetensors take precedence over pickles, pickles over GGUF. If the top folder has no weights, the same rules apply to each
of the topmost folders that do; folders with only GGUF files, or pickles under unconventional names, count only if no other
folder has weights. Plain files take precedence over variants (``model.fp16.safetensors``) and ``consolidated`` copies.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from analyzers import limits
from analyzers.checkpoints.reference import quoted
from analyzers.errors import CheckpointNotFound, InvalidCheckpoint, LimitExceeded, NoWeights
from analyzers.terminal import plural

SAFETENSORS = ".safetensors"
GGUF = ".gguf"
_SAFE: tuple[str, ...] = (SAFETENSORS,)
_PICKLED: tuple[str, ...] = (".bin", ".pt", ".pth", ".ckpt")
_INDEX = ".index.json"

# Files that trainers store next to the weights, and files of other programs with the same extensions.
_NO_WEIGHTS = re.compile(
    r"training_args|(optimizer|optim|scheduler|lr_scheduler|scaler|grad_scaler|rng_state|random_states|sampler|dl_state_dict|custom_checkpoint)"
    r"([_-]?\d+)*|.*_optim_states|(openvino|ggml)[_-].*|.*[_-]imatrix|imatrix"
)
_SHARD = re.compile(r"(.*?)-?([0-9]{1,6})-of-([0-9]{1,6})((?:\.[A-Za-z0-9_-]+)?)\.(safetensors|bin|pt|pth|ckpt|gguf)")
_VARIANT = re.compile(r"(.+)\.(fp16|bf16|fp32|fp8|non_ema|ema)(?:-[0-9]+-of-[0-9]+)?")
_CONVENTIONAL = re.compile(r".*pytorch_model.*\.bin(\.index\.json)?")

# Storage widths in GGUF file names, widest first; names without any of these rank last.
_WIDTHS = [re.compile(rf"(^|[-._])({names})([-._]|$)", re.IGNORECASE) for names in ("f32|fp32", "bf16", "f16|fp16")]
_PROJECTOR = "mmproj"

# Unsupported formats to report if there are no supported weights, in order of precedence.
_OTHERS = (
    ((".ggml",), "only GGML files, which Mantissa does not read"),
    ((".h5", ".msgpack", ".tflite", ".pb"), "weights for TensorFlow or Flax only, which Mantissa does not read"),
    ((".onnx", ".onnx_data"), "only ONNX files, which Mantissa does not read"),
    ((".nemo", ".mlmodel", ".npz", ".pdparams", ".engine", ".pkl"), "weights in a format Mantissa does not read"),
)


@dataclass(frozen=True, slots=True)
class WeightSet:
    """Weight files that make up one model or one component of it.

    folder: contains its configuration, "" for the top folder; groups: files that belong together (the shards of one index or
    numbering), in which a name must be unique; if a name occurs in several groups, the file is added to it;
    weight_map: tensor name -> path, from the index if there is one; total_size: bytes of all tensors according to the index.
    """

    folder: str
    groups: tuple[tuple[str, ...], ...]
    weight_map: Mapping[str, str] | None = None
    total_size: float | None = None


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """One set, or one per component folder; notes: which files were excluded, for the reader."""

    sets: tuple[WeightSet, ...]
    notes: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """Every weight file, in order."""
        return tuple(path for weights in self.sets for group in weights.groups for path in group)


def is_weights(path: str) -> bool:
    """Whether a file may hold weights, judged by its name: excludes training state."""
    name = path.rpartition("/")[2]
    return name.endswith((SAFETENSORS, GGUF, *_PICKLED)) and not _NO_WEIGHTS.fullmatch(name.rpartition(".")[0])


def is_index(path: str) -> bool:
    """Whether a file is an index of shards, judged by its name."""
    return path.endswith(tuple(ending + _INDEX for ending in (SAFETENSORS, *_PICKLED)))


def select_weights(files: Mapping[str, int], read_small: Callable[[str], bytes], subfolder: str | None = None) -> WeightFiles:
    """Select the weight files among ``files`` (path -> bytes).

    read_small: reads a whole file; called only for index files of at most INDEX_BYTES;
    subfolder: search only this folder.
    Raises NoWeights, which says what was found instead, InvalidCheckpoint for missing shards or a damaged index,
    CheckpointNotFound for a missing subfolder, LimitExceeded.
    """
    start = (subfolder or "").strip("/")
    inside = f"{start}/" if start else ""
    listed = [path for path in files if path.startswith(inside)]
    if start and not listed:
        raise CheckpointNotFound(f"There is no folder {quoted(start)} in this checkpoint.")
    weights = [path for path in listed if is_weights(path) or is_index(path)]
    if not weights:
        raise NoWeights(f"{_instead(listed)}: safetensors, PyTorch or GGUF files are needed.")
    notes: list[str] = []
    folders = _folders(weights, start)
    sets: tuple[WeightSet, ...]
    if any(not path.endswith(GGUF) for path in weights if _folder(path) in folders):
        sets = tuple(_select(folder, files, read_small, notes) for folder in folders)
    else:
        sets = (_widest([path for path in weights if _folder(path) in folders], files, notes),)
    if len(sets) > 1:
        notes.append(f"Weights of {len(sets)} folders, read together: {', '.join(folders[:8])}{', ...' if len(folders) > 8 else ''}.")
    found = WeightFiles(sets, tuple(notes))
    if len(found.paths) > limits.SHARDS:
        raise LimitExceeded(f"The checkpoint has {len(found.paths):,} weight files, more than {limits.SHARDS:,} (MANTISSA_SHARDS).")
    return found


def _folders(weights: list[str], start: str) -> list[str]:
    """The topmost folders with weights of the most specific kind: conventional names, then any pickle, then GGUF."""
    conventional = [path for path in weights if SAFETENSORS in path or _CONVENTIONAL.fullmatch(path.rpartition("/")[2])]
    known = conventional or [path for path in weights if not path.endswith(GGUF)] or weights
    return _topmost({_folder(path) for path in known}, start)


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
    if any(name.endswith((SAFETENSORS, SAFETENSORS + _INDEX)) for name in names):
        main, endings = "model.safetensors", _SAFE
    else:
        main, endings = "pytorch_model.bin", _PICKLED
    indexes = _plain([name for name in names if name.endswith(tuple(ending + _INDEX for ending in endings))])
    weights = _plain([name for name in names if name.endswith(endings) and is_weights(name)])
    if main + _INDEX not in indexes and main in weights:
        _note_rest(names, {main}, endings, folder, notes)
        return WeightSet(folder, ((prefix + main,),))
    if any(not name.startswith("consolidated") for name in weights):
        indexes = [name for name in indexes if not name.startswith("consolidated")]
    indexes.sort(key=lambda name: name != main + _INDEX)
    if indexes:
        weight_map, total_size = _read_index(prefix + indexes[0], prefix, endings, files, read_small, notes)
        shards = tuple(sorted(set(weight_map.values())))
        _note_rest(names, {shard.removeprefix(prefix) for shard in shards}, endings, folder, notes)
        return WeightSet(folder, (shards,), weight_map, total_size)
    _note_rest(names, set(weights), endings, folder, notes)
    return WeightSet(folder, tuple(tuple(prefix + name for name in group) for group in _complete_groups(weights)))


def _widest(paths: list[str], files: Mapping[str, int], notes: list[str]) -> WeightSet:
    """The widest complete GGUF file with all its parts. GGUF files are the same weights at different widths."""
    models = [path for path in paths if not path.rpartition("/")[2].lower().startswith(_PROJECTOR)] or paths
    first = min(models, key=lambda path: (_width(path), -files[path], path))
    match = _SHARD.fullmatch(first)
    parts = models if match else [first]
    groups = [group for group in _complete_groups([path for path in parts if _same_split(path, match)]) if first in group]
    if len(paths) > len(groups[0]):
        notes.append(f"Not read: {plural(len(paths) - len(groups[0]), 'more GGUF file')}; {quoted(groups[0][0], 200)} is the widest.")
    return WeightSet(_folder(first), (groups[0],))


def _width(path: str) -> int:
    name = path.rpartition("/")[2].removesuffix(GGUF)
    return next((number for number, said in enumerate(_WIDTHS) if said.search(name)), len(_WIDTHS))


def _same_split(path: str, match: re.Match[str] | None) -> bool:
    other = _SHARD.fullmatch(path)
    return match is None or (other is not None and (other[1], other[3], other[4]) == (match[1], match[3], match[4]))


def _plain(names: list[str]) -> list[str]:
    """``names`` without variants of other names in the list, and without consolidated copies if there are other files."""
    stems = {_stem(name) for name in names}
    plain = []
    for name in names:
        variant = _VARIANT.fullmatch(_stem(name))
        if variant is None or not _has_plain(variant[1], stems):
            plain.append(name)
    return [name for name in plain if not name.startswith("consolidated")] or plain


def _stem(name: str) -> str:
    return name.removesuffix(_INDEX).rpartition(".")[0]


def _has_plain(stem: str, stems: set[str]) -> bool:
    return stem in stems or any(shard.startswith(stem + "-") and "-of-" in shard for shard in stems)


def _complete_groups(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Group single files and numbered shards; raises InvalidCheckpoint if a numbering has gaps."""
    numbered: dict[tuple[str, str, str, str], dict[int, str]] = {}
    groups: list[tuple[str, ...]] = []
    for name in names:
        match = _SHARD.fullmatch(name)
        if match is None:
            groups.append((name,))
        else:
            numbered.setdefault((match[1], match[3], match[4], match[5]), {})[int(match[2])] = name
    for (_, total, _, _), shards in numbered.items():
        first = 0 if 0 in shards else 1
        count = int(total)
        if count > limits.SHARDS:
            raise LimitExceeded(f"The checkpoint claims {count:,} weight files, more than {limits.SHARDS:,} (MANTISSA_SHARDS).")
        missing = [number for number in range(first, first + count) if number not in shards]
        if missing:
            lost = _renumbered(next(iter(shards.values())), missing[0])
            more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            raise InvalidCheckpoint(
                f"The checkpoint is incomplete, with {quoted(lost, 200)}{more} of {plural(count, 'weight file')} missing."
            )
        groups.append(tuple(shards[number] for number in sorted(shards)))
    return groups


def _renumbered(name: str, number: int) -> str:
    match = _SHARD.fullmatch(name)
    if match is None:
        return name
    return f"{name[: match.start(2)]}{number:0{len(match[2])}d}{name[match.end(2) :]}"


def _read_index(
    path: str,
    prefix: str,
    endings: tuple[str, ...],
    files: Mapping[str, int],
    read_small: Callable[[str], bytes],
    notes: list[str],
) -> tuple[dict[str, str], float | None]:
    """Tensor name -> path of its shard, and the total bytes of all tensors; every shard is in ``files`` and ends with one of ``endings``.

    notes: receives a sentence if the total is not a number.
    """
    if files[path] > limits.INDEX_BYTES:
        raise LimitExceeded(f"{quoted(path, 200)} has {files[path]:,} bytes, more than {limits.INDEX_BYTES:,} (MANTISSA_INDEX_BYTES).")
    try:
        index: Any = json.loads(read_small(path))
    except (ValueError, RecursionError):
        raise InvalidCheckpoint(f"{quoted(path, 200)} is not JSON: the index of the weight files is damaged.") from None
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise InvalidCheckpoint(f"{quoted(path, 200)} has no weight_map from tensor names to files.")
    if len(weight_map) > limits.TENSORS:
        raise LimitExceeded(f"{quoted(path, 200)} lists more than {limits.TENSORS:,} tensors (MANTISSA_TENSORS).")
    for shard in set(weight_map.values()):
        parts = shard.split("/")
        if not shard.endswith(endings) or "\\" in shard or not shard.isprintable() or any(part in ("", ".", "..") for part in parts):
            raise InvalidCheckpoint(f"{quoted(path, 200)} names {quoted(shard)}, which is not a weight file of this checkpoint.")
    missing = sorted({shard for shard in weight_map.values() if prefix + shard not in files})
    if missing:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise InvalidCheckpoint(f"The checkpoint is incomplete, with {quoted(missing[0], 200)}{more}, named in its index, missing.")
    metadata = index.get("metadata")
    total_size = metadata.get("total_size") if isinstance(metadata, dict) else None
    counted = isinstance(total_size, int | float) and not isinstance(total_size, bool) and 0 <= total_size < 2**63
    if total_size is not None and not counted:
        notes.append(
            f"The total_size of {quoted(path, 200)} is not a number of bytes: {quoted(json.dumps(total_size), 60)}. It was ignored."
        )
    return {name: prefix + shard for name, shard in weight_map.items()}, total_size if counted else None


def _note_rest(names: list[str], used: set[str], endings: tuple[str, ...], folder: str, notes: list[str]) -> None:
    rest = [name for name in names if name.endswith(endings) and is_weights(name) and name not in used]
    if rest:
        more = f" and {len(rest) - 1:,} more" if len(rest) > 1 else ""
        where = f" in {quoted(folder)}" if folder else ""
        notes.append(f"Not read{where}: {quoted(rest[0])}{more}, next to the files that make up the model.")


def _instead(paths: list[str]) -> str:
    if not paths:
        return "The checkpoint is empty"
    for endings, what in _OTHERS:
        if any(path.lower().endswith(endings) for path in paths):
            return f"The checkpoint holds {what}"
    if any(path.rpartition("/")[2] == "config.json" for path in paths):
        return "The checkpoint holds a configuration and no weights"
    if any(path.endswith(_PICKLED) for path in paths):
        return "The checkpoint holds training state and no weights"
    return "The checkpoint holds no weights"


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
