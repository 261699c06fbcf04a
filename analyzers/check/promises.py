"""The rule `promises`: parts that config.json or the names of shards promise, held against the names of the tensors."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analyzers.check.engine_facts import EngineFacts
from analyzers.check.report import Finding
from analyzers.check.words import finding
from analyzers.core.formatting import plural
from analyzers.core.terminal import quoted

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")
_HEADS = (
    "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "mtp_num_layers", "num_mtp_modules", "num_nextn_layers",
    "n_mtp_layers", "num_next_token_heads",
)  # fmt: skip
_TOWERS = {
    "vision": (("vision_config", "vision_tower_config", "visual_config", "vit_config"), r"vis|vit\b|image|img|clip|patch_embed"),
    "audio": (("audio_config", "audio_tower_config", "speech_config", "audio_encoder_config"), r"audio|speech|whisper|sound|wav|voice"),
}
_SHARED = ("num_hidden_groups", "num_unique_layers")  # layers that share their weights are stored once
_HEAD_NAMES = re.compile(r"(^|[._])(mtp|nextn|next_n)([._]|$)|mtp_|\b(eh_proj|enorm|hnorm)\b", re.IGNORECASE)
_NUMBERED = re.compile(r"^((?:\w+\.)*?)(\w+)\.(\d+)\.")
_EXPERT = re.compile(r"^(.*(?<!shared_)experts)\.(\d+)\.")
_SHARD = re.compile(r"(.*)-(\d{1,6})-of-(\d{1,6})\.[a-z]+")


def promises(facts: EngineFacts) -> Iterator[Finding]:
    """Find parts that config.json promises and the file lacks: next-token heads, experts, towers, layers; and missing shards."""
    yield from _missing_shards(facts)
    names = list(facts.tensors)
    if not names:
        return
    layers = _layers(names)
    sections = list(facts.sections())
    layers_key, stated = next(((key, number) for section in sections for key, number in _numbers(section, _LAYERS)), ("", None))
    key, heads = next(((key, number) for section in sections for key, number in _numbers(section, _HEADS)), ("", 0))
    beyond = stated is not None and any(number >= stated for number in layers)
    if heads and not beyond and not any(map(_HEAD_NAMES.search, names)):
        yield _parts_missing(plural(heads, "next-token layer"), key)
    for part, (keys, words) in _TOWERS.items():
        key = next((key for section in sections for key in keys if isinstance(section.get(key), dict) and section[key]), "")
        if key and not any(re.search(words, name, re.IGNORECASE) for name in names):
            yield _parts_missing(f"a tower for {part}", key)
    if facts.loads_whole:  # transformers finds whatever else the configuration describes
        return
    shared = any(key in section for section in sections for key in _SHARED)
    if stated is not None and layers and len(layers) < stated and not shared:
        first = next(number for number in range(stated) if number not in layers)
        yield _parts_missing(plural(stated, "layer"), layers_key, f"{plural(len(layers), 'layer')}, without number {first}")
    yield from _missing_experts(names, facts, sections)


def _layers(names: Sequence[str]) -> set[int]:
    """Return the numbers of the layers in the longest stack of the model that is neither a tower nor a head."""
    stacks: dict[str, set[int]] = {}
    towers = re.compile("|".join(words for _, words in _TOWERS.values()), re.IGNORECASE)
    for name in names:
        found = _NUMBERED.match(name)
        if found and not towers.search(found[1] + found[2]) and not _HEAD_NAMES.search(found[1] + found[2]):
            stacks.setdefault(found[1] + found[2], set()).add(int(found[3]))
    return max(stacks.values(), key=len, default=set())


def _missing_experts(names: Sequence[str], facts: EngineFacts, sections: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    key, promised = next(((key, number) for section in sections for key, number in _numbers(section, _EXPERTS)), ("", 0))
    if promised < 2:
        return
    groups: dict[str, set[int]] = {}
    for name in names:
        if match := _EXPERT.match(name):
            groups.setdefault(match[1], set()).add(int(match[2]))
    short = {group: numbers for group, numbers in groups.items() if len(numbers) < promised}
    if short:
        group, numbers = next(iter(short.items()))
        found = f"{plural(len(numbers), 'expert')} in {quoted(group)}"
        yield _parts_missing(plural(promised, "expert"), key, found, list(short))
    elif not groups and not any(re.search(r"expert|moe", name, re.IGNORECASE) for name in names):
        yield _parts_missing(plural(promised, "expert"), key)


def _parts_missing(promised: str, key: str, found: str = "none", names: Sequence[str] = ()) -> Finding:
    return finding("promises", "warning", "parts-missing", names, promised=promised, key=key, found=found)


def _missing_shards(facts: EngineFacts) -> Iterator[Finding]:
    groups: dict[tuple[str, int], set[int]] = {}
    for file in facts.checkpoint.files:
        found = _SHARD.fullmatch(file.path)
        if found:
            groups.setdefault((found[1], int(found[3])), set()).add(int(found[2]))
    for (_, number), present in groups.items():
        lost = [part for part in range(1, min(number, 10_000) + 1) if part not in present]
        if lost and 0 not in present:
            yield finding("promises", "warning", "shards-missing", files=len(lost), parts=number, first=lost[0])


def _numbers(section: Mapping[str, Any], keys: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield the positive whole numbers that a configuration has under ``keys``."""
    for key in keys:
        value = section.get(key)
        if type(value) is int and value > 0:
            yield key, value
