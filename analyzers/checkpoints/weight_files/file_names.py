"""Recognizes files that may hold weights by their names: weight files, indexes of shards, numbered shards and precision variants."""

import re
from collections.abc import Iterable

SAFETENSORS: tuple[str, ...] = (".safetensors", ".sft")
GGUF = ".gguf"
PICKLED: tuple[str, ...] = (".bin", ".pt", ".pth", ".ckpt")
INDEX = ".index.json"
ENDINGS = (*SAFETENSORS, GGUF, *PICKLED)

# Files that trainers store next to the weights, and files of other programs with the same extensions.
_NO_WEIGHTS = re.compile(
    r"training_args|(optimizer|optim|scheduler|lr_scheduler|scaler|grad_scaler|rng_state|random_states|sampler|dl_state_dict|custom_checkpoint)"
    r"([_-]?\d+)*|.*_optim_states|(.*_)?zero_pp_rank_\d+_mp_rank_\d+_model_states|(openvino|ggml)[_-].*|.*[._-]imatrix|imatrix([._-].*)?"
)
SHARD = re.compile(r"(.*?)-?([0-9]{1,6})-of-([0-9]{1,6})((?:\.[A-Za-z0-9_-]+)?)\.(safetensors|sft|bin|pt|pth|ckpt|gguf)")
VARIANT = re.compile(r"(.+?)(?:\.(?:non_ema|ema)|[._-](?:fp16|bf16|fp32|fp8(?:_e4m3fn|_e5m2)?))(?:-[0-9]+-of-[0-9]+)?")
ADAPTER = re.compile(r"adapter_|(.*[._-])?lora([._-]|$)", re.IGNORECASE)
CONSOLIDATED = "consolidated"


def is_weights(path: str) -> bool:
    """Return whether a file may hold weights, judged by its name: excludes training state."""
    return path.endswith(ENDINGS) and not holds_no_weights(path)


def holds_no_weights(path: str) -> bool:
    """Return whether a file has the extension of weights and the name of something else, such as the optimizer's state."""
    return path.endswith(ENDINGS) and bool(_NO_WEIGHTS.fullmatch(file_name(path).rpartition(".")[0]))


def is_index(path: str) -> bool:
    """Return whether a file is an index of shards, judged by its name."""
    return path.endswith(INDEX) and path.removesuffix(INDEX).endswith((*SAFETENSORS, *PICKLED))


def folder(path: str) -> str:
    """Return the folder of a file, "" for the top folder."""
    return path.rpartition("/")[0]


def file_name(path: str) -> str:
    """Return the name of a file in its folder."""
    return path.rpartition("/")[2]


def stem(name: str) -> str:
    """Return the name of a weight file, or of an index, without its extension."""
    return name.removesuffix(INDEX).rpartition(".")[0]


def unnumbered(name: str) -> str:
    """Return the name of a weight file without its extension and "part k of n"."""
    match = SHARD.fullmatch(name)
    return match[1] + match[4] if match else stem(name)


def without_variants(names: list[str]) -> list[str]:
    """Return ``names`` without variants of other names in the list, and without consolidated copies if there are other files."""
    stems = {stem(name) for name in names} | {unnumbered(name) for name in names}
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
