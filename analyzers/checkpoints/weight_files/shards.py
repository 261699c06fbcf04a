"""Groups weight files that belong together: the shards that an index names, and files numbered "part k of n"."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from analyzers.checkpoints.reference import quoted, quoted_names
from analyzers.checkpoints.weight_files.file_names import is_weights, missing_parts, numbered_shards, renumbered, without_variants
from analyzers.core import limits
from analyzers.core.errors import InvalidCheckpoint, LimitExceeded
from analyzers.core.terminal import plural
from analyzers.core.untrusted_json import InvalidJson, JsonTooLarge, parse_json


@dataclass(frozen=True, slots=True)
class Index:
    """An index of shards.

    weight_map: tensor name -> path of its shard; total_size: bytes of all tensors, None if that is not stated as a number.
    """

    weight_map: Mapping[str, str]
    total_size: float | None

    @property
    def shards(self) -> tuple[str, ...]:
        """All shards, in order."""
        return tuple(sorted(set(self.weight_map.values())))


def complete_groups(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Group single files and numbered shards. Raises InvalidCheckpoint if a numbering has gaps, LimitExceeded."""
    single, numberings = numbered_shards(names)
    groups: list[tuple[str, ...]] = [(name,) for name in single]
    for (_, total, _, _), shards in numberings.items():
        if int(total) > limits.SHARDS:
            raise LimitExceeded(f"The checkpoint claims {int(total):,} weight files, more than {limits.SHARDS:,}.")
        missing = missing_parts(total, shards)
        if missing:
            lost = renumbered(next(iter(shards.values())), missing[0])
            more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            raise InvalidCheckpoint(
                f"The checkpoint is incomplete, with {quoted(lost, 200)}{more} of {plural(int(total), 'weight file')} missing."
            )
        groups.append(tuple(shards[number] for number in sorted(shards)))
    return groups


def complete_sets(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the shards of each complete numbering, in order."""
    return [
        tuple(shards[number] for number in sorted(shards))
        for (_, total, _, _), shards in numbered_shards(names)[1].items()
        if int(total) <= min(len(shards), limits.SHARDS) and not missing_parts(total, shards)
    ]


def read_index(path: str, endings: tuple[str, ...], files: Mapping[str, int], read_small: Callable[[str], bytes]) -> Index:
    """Read an index of shards; each shard is in ``files`` and ends with one of ``endings``.

    Raises InvalidCheckpoint for a damaged index and for missing shards, LimitExceeded.
    """
    if files[path] > limits.INDEX_BYTES:
        raise LimitExceeded(f"{quoted(path, 200)} has {files[path]:,} bytes, more than {limits.INDEX_BYTES:,}.")
    try:
        index: Any = parse_json(read_small(path), lenient=True)
    except JsonTooLarge as error:
        raise LimitExceeded(f"{quoted(path, 200)} {error}.") from None
    except InvalidJson as error:
        raise InvalidCheckpoint(f"{quoted(path, 200)} {error}: the index of the weight files is damaged.") from None
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise InvalidCheckpoint(f"{quoted(path, 200)} has no weight_map from tensor names to files.")
    if len(weight_map) > limits.TENSORS:
        raise LimitExceeded(f"{quoted(path, 200)} lists more than {limits.TENSORS:,} tensors.")
    shards = sorted(set(weight_map.values()))
    for shard in shards:
        parts = shard.split("/")
        if not shard.endswith(endings) or "\\" in shard or not shard.isprintable() or any(part in ("", ".", "..") for part in parts):
            raise InvalidCheckpoint(f"{quoted(path, 200)} names {quoted(shard)}, which is not a weight file of this checkpoint.")
    prefix = path[: path.rfind("/") + 1]
    missing = [shard for shard in shards if prefix + shard not in files]
    if missing:
        names = [name.removeprefix(prefix) for name in files if name.startswith(prefix) and name.endswith(endings) and is_weights(name)]
        whole = next(iter(complete_sets(without_variants([name for name in names if "/" not in name]))), ())
        instead = f"{quoted_names(whole)} are a complete model: delete or rebuild the index" if whole else "complete the files"
        raise InvalidCheckpoint(f"{quoted(path, 200)} names {quoted_names(missing)}, which cannot be found: {instead}.")
    return Index({name: prefix + shard for name, shard in weight_map.items()}, _total_size(index))


def _total_size(index: Mapping[str, Any]) -> float | None:
    metadata = index.get("metadata")
    stated = metadata.get("total_size") if isinstance(metadata, dict) else None
    return stated if isinstance(stated, int | float) and not isinstance(stated, bool) and 0 <= stated < 2**63 else None
