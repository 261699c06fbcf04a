"""The rules `ignore-list` and `promises`: what the configuration says of the tensors, held against their names."""

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import translate
from time import monotonic
from typing import Any

from analyzers.check.base_rules import stack
from analyzers.check.engine_facts import EngineFacts
from analyzers.check.report import Finding
from analyzers.check.words import WORDS, finding
from analyzers.checkpoints.tensor_names.filters import compile_filter
from analyzers.core.errors import InvalidFilter
from analyzers.core.notes import Value

# --- ignore-list ---------------------------------------------------------------------------------------------------

# Keys whose entries name modules that are not quantized, or are in another way: lists, and dicts by name of the module
_LISTS = (
    "ignore", "ignored_layers", "ignored_modules", "exclude", "exclude_modules", "modules_to_not_convert", "llm_int8_skip_modules",
    "skip_modules", "modules_to_not_quantize",
)  # fmt: skip
_DICTS = ("extra_config", "dynamic", "module_fqn_to_config", "modules_config")
_OF_MLX = frozenset({"group_size", "bits", "mode", "quant_method", "linear_class", "quantize_embeddings", "quantize_input"})
# Methods whose lists hold parts of names; those that quantize the layers of the language model alone
_PARTS, _LAYERS_ALONE = frozenset({"awq", "gptq", "bitsandbytes", "auto-round"}), frozenset({"awq", "gptq", "auto-round"})
# Components of names that programs add or leave out, and modules that a checkpoint may lack although recipes name them
_WRAPPERS = frozenset({"model", "language_model", "text_model", "module", "base_model"})
_OPTIONAL = re.compile(r"head|embed|output|router|gate(?!_proj)|mtp|nextn|vis|audio|image|proj_out|score|classifier", re.IGNORECASE)
_CODES = re.compile(r"(weight(_packed|_scale(_inv|_2)?)?|qweight|W_q|scales|\w*_(blocks|qdata)|weight\.absmax|SCB)")
_FUSED = ((re.compile(r"\b[qkv]_proj\b"), "qkv_proj"), (re.compile(r"\b(gate|up)_proj\b"), "gate_up_proj"))
_PLAIN = frozenset({"attention", "mlp", "expert", "other"})
_LONGEST, _SECONDS, _PATTERNS = 500, 2.0, 1_000  # of an entry; for all patterns; patterns that are tried


def ignore_list(facts: EngineFacts) -> Iterator[Finding]:
    """Find entries that match no tensor, and plain weights of linear layers that no entry excludes.

    Patterns are those of the repository: they have a time limit, and a note says if they reach it.
    """
    entries = list(dict.fromkeys(entry for settings in facts.settings for entry in _entries(settings)))
    if not entries or not facts.tensors:
        return
    methods = {str(settings.get("quant_method", "")).lower() for settings in facts.settings}
    modules = dict.fromkeys(name.rpartition(".")[0].removesuffix(".weight") or name for name in facts.tensors)
    plain = _plain_linears(facts, methods)
    parts, known = _parts(modules), {module: _canonical(module) for module in plain}
    exact, patterns = set[str](), list[tuple[str, Any]]()
    unmatched = []
    for entry in entries:
        pattern = _pattern(entry)
        if pattern is not None:
            patterns.append((entry, pattern))
            continue
        name = _canonical(entry)
        exact.add(name)
        found = name in parts or (methods & _PARTS and len(entries) <= _PATTERNS and any(entry in module for module in modules))
        if not found and not (entry[:1].isupper() and "." not in entry) and not re.search(r"(^|[._])(head|lm_head)s?$", entry):
            unmatched.append(entry)
    left = {module for module, name in known.items() if not exact & _sublists(name)}
    if methods & _PARTS and len(exact) <= _PATTERNS:
        left = {module for module in left if not any(name in known[module] for name in exact)}
    try:
        unmatched += _try(patterns[:_PATTERNS], modules, left)
    except TimeoutError:
        facts.notes.append(WORDS.note("patterns-not-tried", patterns=len(patterns), seconds=_SECONDS))
        left = set()
    if unmatched:
        number, every = len(unmatched), len(entries)
        yield finding("ignore-list", "warning", "ignored-without-tensor", unmatched, entries=number, all=every, name=unmatched[0])
    if left:
        names = [plain[module] for module in plain if module in left]
        yield finding("ignore-list", "warning", "plain-but-not-ignored", names, tensors=len(names), name=names[0])


def _entries(settings: Mapping[str, Any]) -> Iterator[str]:
    named = [settings.get(key) for key in _LISTS] + [list(each) for key in _DICTS if isinstance(each := settings.get(key), dict)]
    if "group_size" in settings and "quant_method" not in settings:  # MLX names modules next to its settings
        named.append([key for key, value in settings.items() if key not in _OF_MLX and isinstance(value, dict | bool)])
    for entries in named:
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, str) and 0 < len(entry) <= _LONGEST and entry != "_default":
                yield entry


def _pattern(entry: str) -> Any:
    """Return the compiled pattern of an entry, which matches from the start of a name; None if it is a name."""
    text = entry.removeprefix("re:")
    if text == entry and entry[:2] in ("-:", "+:"):  # GPTQModel
        text = entry[2:]
    elif text == entry and not set(entry) & set("*?[(|^$\\"):
        return None
    elif text == entry and not set(entry) & set("(|^$\\+"):  # a glob
        text = rf"(?:.*\.)?(?:{translate(entry)[4:-3]})(?:\.|$)" if "." in entry or "*" not in entry else translate(entry)[4:-3]
    try:
        return compile_filter("ignore", text)
    except InvalidFilter:
        return None


def _try(patterns: Sequence[tuple[str, Any]], modules: Mapping[str, None], left: set[str]) -> Iterator[str]:
    """Yield patterns that match no module, and take those that they match out of ``left``. Raises TimeoutError."""
    deadline = monotonic() + _SECONDS
    for entry, pattern in patterns:

        def matches(module: str, pattern: Any = pattern) -> bool:
            seconds = deadline - monotonic()
            if seconds <= 0:
                raise TimeoutError
            inner = module.split(".", 1)[-1]
            return any(pattern.match(name, timeout=seconds) for name in {module, f"{module}.weight", inner, f"model.{module}"})

        left -= {module for module in left if matches(module)}
        if not any(map(matches, modules)) and not _OPTIONAL.search(entry):
            yield entry


def _plain_linears(facts: EngineFacts, methods: set[str]) -> dict[str, str]:
    """Return the modules of linear layers with plain floats, each with its tensor, if others are quantized in all of their modules."""
    targets = [each for settings in facts.settings for each in _targets(settings)]
    if targets and "Linear" not in targets:  # only modules that are named are quantized
        return {}
    plain, stacks, coded = dict[str, str](), set[str](), set[str]()
    linear = set(facts.loading.linears) if facts.loading is not None else set()
    for name, tensor in facts.tensors.items():
        module, _, leaf = name.rpartition(".")
        if leaf == "weight" and tensor.dtype in ("F32", "F16", "BF16"):
            if len(tensor.shape) == 2 and tensor.role in _PLAIN and (not linear or name in linear or tensor.role == "expert"):
                plain[module] = name
        elif _CODES.fullmatch(leaf):
            stacks.add(stack(tensor))
            coded.add(tensor.role)
    if not stacks or methods & {"mlx"} or any("group_size" in each and "quant_method" not in each for each in facts.settings):
        return {}
    if "expert" not in coded:  # experts in one parameter are no linear layers to a quantizer
        plain = {module: name for module, name in plain.items() if facts.tensors[name].role != "expert"}
    if methods & _LAYERS_ALONE:
        plain = {module: name for module, name in plain.items() if stack(facts.tensors[name]) in stacks}
    return plain if any(_lists_modules(settings) for settings in facts.settings) else {}


def _targets(settings: Mapping[str, Any]) -> Iterator[str]:
    groups = settings.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        named = group.get("targets") if isinstance(group, dict) else None
        yield from (each for each in named if isinstance(each, str)) if isinstance(named, list) else ()


def _lists_modules(settings: Mapping[str, Any]) -> bool:
    return any(isinstance(settings.get(key), list) and settings[key] for key in _LISTS)


def _canonical(name: str) -> str:
    """Return a name without the components that programs add in front, and with fused parts under one name."""
    kept = [part for part in name.strip(".").split(".") if part not in _WRAPPERS and part != "weight"]
    return ".".join(kept) or name


def _sublists(name: str) -> set[str]:
    """Return every run of components of a name, and of its name as part of a fused module."""
    names = {name, *(pattern.sub(fused, name) for pattern, fused in _FUSED)}
    runs = set[str]()
    for each in names:
        parts = each.split(".")[:16]
        runs |= {".".join(parts[first:last]) for first in range(len(parts)) for last in range(first + 1, len(parts) + 1)}
    return runs


def _parts(modules: Mapping[str, None]) -> set[str]:
    """Return the runs of components of all modules; of many modules only those from their start or to their end."""
    if len(modules) <= 20_000:
        return {run for module in modules for run in _sublists(_canonical(module))}
    found = set[str]()
    for module in modules:
        parts = _canonical(module).split(".")[:16]
        found.update(".".join(parts[:last]) for last in range(1, len(parts) + 1))
        found.update(".".join(parts[first:]) for first in range(1, len(parts)))
    return found


# --- promises ------------------------------------------------------------------------------------------------------

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
    stated = next((number for section in sections for _, number in _numbers(section, _LAYERS)), None)
    key, heads = next(((key, number) for section in sections for key, number in _numbers(section, _HEADS)), ("", 0))
    beyond = stated is not None and any(number >= stated for number in layers)
    if heads and not beyond and not any(map(_HEAD_NAMES.search, names)):
        yield finding("promises", "warning", "next-token-heads-missing", key=key, promised=heads)
    if facts.loads_whole:  # transformers finds whatever else the configuration describes
        return
    shared = any(key in section for section in sections for key in _SHARED)
    if stated is not None and layers and len(layers) < stated and not shared:
        lost = [number for number in range(min(stated, 10_000)) if number not in layers]
        yield finding("promises", "warning", "layers-missing", promised=stated, found=len(layers), first=lost[0])
    yield from _missing_experts(names, facts, sections)
    for part, (keys, words) in _TOWERS.items():
        key = next((key for section in sections for key in keys if isinstance(section.get(key), dict) and section[key]), "")
        if key and not any(re.search(words, name, re.IGNORECASE) for name in names):
            yield finding("promises", "warning", "tower-missing", part=part, key=key)


def _layers(names: Sequence[str]) -> set[int]:
    """Return the numbers of the layers in the longest stack of the model that is no tower and no head."""
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
        found = _EXPERT.match(name)
        if found:
            groups.setdefault(found[1], set()).add(int(found[2]))
    short = {group: numbers for group, numbers in groups.items() if len(numbers) < promised}
    if short:
        group, numbers = next(iter(short.items()))
        values: dict[str, Value] = {"key": key, "promised": promised, "found": len(numbers), "layers": len(short), "name": group}
        yield finding("promises", "warning", "experts-missing", list(short), **values)
    elif not groups and not any(re.search(r"expert|moe", name, re.IGNORECASE) for name in names):
        yield finding("promises", "warning", "no-experts", key=key, promised=promised)


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
