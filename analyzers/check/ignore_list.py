"""The rule `ignore-list`: modules that the quantization settings name, held against the names of the tensors."""

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

# Keys whose entries name modules that are not quantized, or are in another way: lists, and dicts by name of the module
_LISTS = (
    "ignore", "ignored_layers", "ignored_modules", "exclude", "exclude_modules", "modules_to_not_convert", "llm_int8_skip_modules",
    "skip_modules", "modules_to_not_quantize",
)  # fmt: skip
_DICTS = ("extra_config", "dynamic", "module_fqn_to_config", "modules_config")
_OF_MLX = frozenset({"group_size", "bits", "mode", "linear_class", "quantize_embeddings", "quantize_input"})
# Methods whose lists hold parts of names, and those that quantize nothing but the layers of the language model
_BY_PARTS, _LAYERS_ALONE = frozenset({"awq", "gptq", "bitsandbytes", "auto-round"}), frozenset({"awq", "gptq", "auto-round"})
# Components of names that programs add or leave out, and modules that a recipe names whether or not a model has them
_WRAPPERS = frozenset({"model", "language_model", "text_model", "module", "base_model", "weight"})
_OPTIONAL = re.compile(r"head|embed|output|router|gate(?!_proj)|mtp|nextn|vis|audio|image|proj_out|score|classifier", re.IGNORECASE)
_HEAD = re.compile(r"(^|[._])(lm_)?head$")  # a tied one is not stored
_CODES = re.compile(r"(weight(_packed|_scale(_inv|_2)?)?|qweight|W_q|scales|\w*_(blocks|qdata)|weight\.absmax|SCB)")
_FLOATS = frozenset({"F32", "F16", "BF16"})
_PLAIN = frozenset({"attention", "mlp", "expert", "other"})  # roles of linear layers that quantizers convert
_LONGEST, _ENTRIES, _SECONDS = 500, 10_000, 2.0  # of an entry; of those that are tried, and for how long


def ignore_list(facts: EngineFacts) -> Iterator[Finding]:
    """Find entries that match no tensor, and plain weights of linear layers that no entry excludes.

    Entries are those of the repository: number, length and time are limited, and a note says how many are beyond.
    """
    entries = list(dict.fromkeys(entry for settings in facts.settings for entry in _entries(settings)))
    modules = list(dict.fromkeys(name.rpartition(".")[0].removesuffix(".weight") or name for name in facts.tensors))
    methods = {str(settings.get("quant_method", "")).lower() for settings in facts.settings}
    plain = _plain_linears(facts, methods)
    tried = [entry for entry in entries[:_ENTRIES] if len(entry) <= _LONGEST]
    unmatched, left, number = _compare(tried, modules, list(plain), bool(methods & _BY_PARTS))
    if number < len(entries):
        bounds = {"longest": _LONGEST, "most": _ENTRIES, "seconds": _SECONDS}
        facts.notes.append(WORDS.note("entries-not-tried", entries=len(entries) - number, all=len(entries), **bounds))
        left = []  # which the others may exclude
    if unmatched:
        yield finding("ignore-list", "warning", "ignored-without-tensor", unmatched, all=len(entries))
    if left:
        yield finding("ignore-list", "warning", "plain-but-not-ignored", [plain[module] for module in left])


def _compare(entries: Sequence[str], modules: Sequence[str], plain: Sequence[str], by_parts: bool) -> tuple[list[str], list[str], int]:
    """Return the entries that match no module, the modules of ``plain`` that none matches, and how many entries were tried in time."""
    deadline = monotonic() + _SECONDS
    known = {_canonical(module) for module in modules}
    text = f".{'..'.join(known)}."
    left = {module: f".{_canonical(module)}." for module in plain}
    unmatched = list[str]()
    for number, entry in enumerate(entries):
        if monotonic() > deadline:
            return unmatched, list(left), number
        pattern = _pattern(entry)
        if pattern is None:
            name = _canonical(entry) if by_parts else f".{_canonical(entry)}."
            left = {module: own for module, own in left.items() if name not in own}
            wanted = not _HEAD.search(entry) and not (entry[:1].isupper() and "." not in entry)  # "Linear" names a class
            if wanted and name.strip(".") not in known and name not in text:
                unmatched.append(entry)
            continue
        try:
            left = {module: own for module, own in left.items() if not _matches(pattern, module, deadline)}
            if not any(_matches(pattern, module, deadline) for module in modules) and not _OPTIONAL.search(entry):
                unmatched.append(entry)
        except TimeoutError:
            return unmatched, list(left), number
    return unmatched, list(left), len(entries)


def _entries(settings: Mapping[str, Any]) -> Iterator[str]:
    named = [settings.get(key) for key in _LISTS] + [list(each) for key in _DICTS if isinstance(each := settings.get(key), dict)]
    if _is_mlx(settings):  # which names modules next to its settings
        named.append([key for key, value in settings.items() if key not in _OF_MLX and isinstance(value, dict | bool)])
    for entries in named:
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, str) and entry and entry != "_default":
                yield entry


def _pattern(entry: str) -> Any:
    """Return the compiled pattern of an entry, which matches from the start of a name; None if it is a name, or no pattern at all."""
    text = re.sub(r"^(re:|[-+]:)", "", entry)  # compressed-tensors, GPTQModel
    if text == entry and not set(entry) & set("*?[(|^$\\"):
        return None
    if text == entry and not set(entry) & set("(|^$\\+"):  # a glob
        text = rf"(?:.*\.)?(?:{translate(entry)[4:-3]})(?:\.|$)"
    try:
        return compile_filter("ignore", text)
    except InvalidFilter:
        return None


def _matches(pattern: Any, module: str, deadline: float) -> bool:
    seconds = max(deadline - monotonic(), 1e-6)
    return any(pattern.match(name, timeout=seconds) for name in {module, f"{module}.weight", module.split(".", 1)[-1], f"model.{module}"})


def _canonical(name: str) -> str:
    """Return a name without the components that programs add."""
    return ".".join(part for part in name.strip(".").split(".") if part not in _WRAPPERS) or name


def _is_mlx(settings: Mapping[str, Any]) -> bool:
    return "group_size" in settings and "quant_method" not in settings


def _plain_linears(facts: EngineFacts, methods: set[str]) -> dict[str, str]:
    """Return the modules of linear layers with plain floats, each with its tensor, if the settings list what stays so."""
    listed = any(isinstance(settings.get(key), list) and settings[key] for settings in facts.settings for key in _LISTS)
    targets = [each for settings in facts.settings for each in _targets(settings)]
    if "Linear" not in targets and (targets or not listed):  # only modules that are named are quantized
        return {}
    coded = [tensor for name, tensor in facts.tensors.items() if _CODES.fullmatch(name.rpartition(".")[2]) and tensor.dtype not in _FLOATS]
    roles, stacks = {tensor.role for tensor in coded}, {stack(tensor) for tensor in coded}
    linear = set(facts.loading.linears) if facts.loading is not None else set()
    return {
        name.removesuffix(".weight"): name
        for name, tensor in facts.tensors.items()
        if name.endswith(".weight") and tensor.dtype in _FLOATS and len(tensor.shape) == 2 and tensor.role in _PLAIN and coded
        # To a quantizer, experts in one parameter are not linear layers.
        if (tensor.role != "expert" and (not linear or name in linear)) or (tensor.role == "expert" and "expert" in roles)
        if stack(tensor) in stacks or not methods & _LAYERS_ALONE
    }


def _targets(settings: Mapping[str, Any]) -> Iterator[str]:
    groups = settings.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        named = group.get("targets") if isinstance(group, dict) else None
        yield from (each for each in named if isinstance(each, str)) if isinstance(named, list) else ()
