"""Recognizes files that may hold weights by their names: weight files, indexes of shards, numbered shards and precision variants."""

import re
from collections.abc import Iterable

SAFETENSORS: tuple[str, ...] = (".safetensors", ".sft")
GGUF = ".gguf"
PICKLED: tuple[str, ...] = (".bin", ".pt", ".pth", ".ckpt")
INDEX = ".index.json"
_WEIGHTS = (*SAFETENSORS, GGUF, *PICKLED)
_INDEXES = tuple(ending + INDEX for ending in (*SAFETENSORS, *PICKLED))

# Files that trainers store next to the weights, and files of other programs with the same extensions.
_NO_WEIGHTS = re.compile(
    r"training_args|(optimizer|optim|scheduler|lr_scheduler|scaler|grad_scaler|rng_state|random_states|sampler|dl_state_dict|custom_checkpoint)"
    r"([_-]?\d+)*|.*_optim_states|(.*_)?zero_pp_rank_\d+_mp_rank_\d+_model_states|(openvino|ggml)[_-].*|.*[._-]imatrix|imatrix([._-].*)?"
)
_PACKAGE = re.compile(r"\.(mlpackage|mlmodelc)/")  # Core ML keeps a weight.bin inside its packages
SHARD = re.compile(r"(.*?)-?([0-9]{1,6})-of-([0-9]{1,6})((?:\.[A-Za-z0-9_-]+)?)\.(safetensors|sft|bin|pt|pth|ckpt|gguf)")
VARIANT = re.compile(r"(.+?)(?:\.(?:non_ema|ema)|[._-](?:fp16|bf16|fp32|fp8(?:_e4m3fn|_e5m2)?))(?:-[0-9]+-of-[0-9]+)?")
CONVENTIONAL = re.compile(r".*pytorch_model.*\.bin(\.index\.json)?")
ADAPTER = re.compile(r"adapter_|(.*[._-])?lora([._-]|$)", re.IGNORECASE)
CONSOLIDATED = "consolidated"
_STEP = re.compile(r"((?:checkpoint|ckpt|global_?step|step|epoch|iter|iteration)[-_]?)([0-9]{1,12})", re.IGNORECASE)


def is_weights(path: str) -> bool:
    """Return whether a file may hold weights, judged by its name: excludes training state."""
    name = path.rpartition("/")[2]
    return name.endswith(_WEIGHTS) and not _NO_WEIGHTS.fullmatch(name.rpartition(".")[0]) and not _PACKAGE.search(path)


def holds_no_weights(path: str) -> bool:
    """Return whether a file has the extension of weights and the name of something else, such as the optimizer's state."""
    name = path.rpartition("/")[2]
    return name.endswith(_WEIGHTS) and bool(_NO_WEIGHTS.fullmatch(name.rpartition(".")[0]))


def is_index(path: str) -> bool:
    """Return whether a file is an index of shards, judged by its name."""
    return path.endswith(_INDEXES)


def is_conventional(path: str) -> bool:
    """Return whether a file is safetensors, a pickle under a name that transformers uses, or an index of either."""
    return any(ending in path for ending in SAFETENSORS) or bool(CONVENTIONAL.fullmatch(file_name(path)))


def folder(path: str) -> str:
    """Return the folder of a file, "" for the top folder."""
    return path.rpartition("/")[0]


def file_name(path: str) -> str:
    """Return the name of a file in its folder."""
    return path.rpartition("/")[2]


def step(folder: str) -> tuple[str, int, str] | None:
    """Find the folder of a training step in a path; None if there is none.

    Returns the path up to the step's number, the number, and the path of the folder.
    """
    parts = folder.split("/")
    for at, part in enumerate(parts):
        if match := _STEP.fullmatch(part):
            return "/".join([*parts[:at], match[1]]), int(match[2]), "/".join(parts[: at + 1])
    return None


def stem(name: str) -> str:
    """Return the name of a weight file, or of an index, without its extension."""
    return name.removesuffix(INDEX).rpartition(".")[0]


def without_variants(names: list[str]) -> list[str]:
    """Return ``names`` without variants of other names in the list, and without consolidated copies if there are other files."""
    stems = {stem(name) for name in names}
    stems |= {match[1] for name in names if (match := SHARD.fullmatch(name))}
    kept = [name for name in names if (match := VARIANT.fullmatch(stem(name))) is None or match[1] not in stems]
    return [name for name in kept if not name.startswith(CONSOLIDATED)] or kept


def numbered_shards(names: Iterable[str]) -> tuple[list[str], dict[tuple[str, str, str, str], dict[int, str]]]:
    """Separate files without a number from numberings "part k of n": number -> file, keyed by everything else in the name."""
    single, numberings = [], dict[tuple[str, str, str, str], dict[int, str]]()
    for name in names:
        match = SHARD.fullmatch(name)
        if match is None:
            single.append(name)
        else:
            numberings.setdefault((match[1], match[3], match[4], match[5]), {})[int(match[2])] = name
    return single, numberings


def missing_parts(total: str, parts: dict[int, str]) -> list[int]:
    """Return the numbers that ``parts`` lack of ``total``, counted from 0 if there is a part 0, else from 1."""
    first = 0 if 0 in parts else 1
    return [number for number in range(first, first + int(total)) if number not in parts]


def renumbered(name: str, number: int) -> str:
    """Return the name of another part of the same numbering."""
    match = SHARD.fullmatch(name)
    if match is None:
        return name
    return f"{name[: match.start(2)]}{number:0{len(match[2])}d}{name[match.end(2) :]}"
