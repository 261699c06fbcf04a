"""Chooses between several GGUF files: they hold the same weights at different widths, each in one file or in numbered parts."""

import re
from collections.abc import Mapping, Sequence

from analyzers.checkpoints.weight_files.file_names import ADAPTER, GGUF, SHARD, file_name, numbered_shards, renumbered
from analyzers.checkpoints.weight_files.shards import complete_groups, complete_sets
from analyzers.core import limits

# Storage widths in file names, widest first; names without any of these rank last.
_WIDTHS = [re.compile(rf"(^|[-._])({names})([-._]|$)", re.IGNORECASE) for names in ("f32|fp32", "bf16", "f16|fp16")]
_WIDTH = re.compile(
    r"[-._]?(?<![a-z0-9])(ud-)?(i?q\d\w*|tq\d\w*|mxfp4\w*|nvfp4|f32|fp32|bf16|f16|fp16)(?![a-z0-9])|[-._](i1|imat(rix)?)(?![a-z0-9])",
    re.IGNORECASE,
)
_PROJECTOR = "mmproj"


def widest_files(paths: Sequence[str], files: Mapping[str, int]) -> tuple[str, ...]:
    """Return the widest complete GGUF file with all its parts.

    Projectors of images or sound, which are another part of the model, and adapters are read only if there is nothing else. Raises
    InvalidCheckpoint if every file lacks parts, LimitExceeded.
    """
    models = [path for path in paths if not is_projector(path) and not ADAPTER.match(file_name(path))] or list(paths)
    single, _ = numbered_shards(models)
    # If every file lacks parts, complete_groups raises an error that names them.
    groups = [*((path,) for path in single), *complete_sets(models)] or complete_groups(models)
    return min(groups, key=lambda group: (_rank(group[0]), -sum(files[path] for path in group), group))


def is_projector(path: str) -> bool:
    """Return whether a GGUF file holds the encoder of images or sound that feeds a language model."""
    return file_name(path).lower().startswith(_PROJECTOR)


def same_model(path: str, other: str) -> bool:
    """Return whether two GGUF files are one model at different widths, judged by their names without width and part."""
    return _model(path) == _model(other)


def numbered_parts(path: str) -> tuple[int, list[str]]:
    """Return the number of a part and the names of all parts of its file.

    (1, [path]) for a file in one part, or in more parts than may be read.
    """
    match = SHARD.fullmatch(path)
    if match is None or int(match[3]) > limits.SHARDS:
        return 1, [path]
    return int(match[2]), [renumbered(path, number) for number in range(1, int(match[3]) + 1)]


def _rank(path: str) -> int:
    name = file_name(path).removesuffix(GGUF)
    return next((number for number, said in enumerate(_WIDTHS) if said.search(name)), len(_WIDTHS))


def _model(path: str) -> str:
    name = file_name(path)
    match = SHARD.fullmatch(name)
    return _WIDTH.sub("", match[1] if match else name.removesuffix(GGUF)).lower().strip("-._")
