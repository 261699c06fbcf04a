"""Validates adapter_config.json: how the matrices of an adapter change a base. Nothing that it names is followed or executed."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal

from analyzers.checkpoints.reference import parse_reference, quoted
from analyzers.checkpoints.repository import Repository, read_file
from analyzers.checkpoints.tensor_names.filters import compile_filter
from analyzers.core import limits
from analyzers.core.errors import InvalidCheckpoint, InvalidFilter, InvalidReference, UnsupportedWeights
from analyzers.core.untrusted_json import InvalidJson, parse_json

Kind = Literal["LoRA", "rsLoRA", "DoRA", "rsDoRA"]

FILE = "adapter_config.json"
_LARGEST_RANK = 1 << 16
_MOST_PATTERNS, _LONGEST_PATTERN = 20_000, 1_000
_PATTERN_SECONDS = 2  # Longest time that the patterns of one configuration may take over all modules.
# Settings with which the merged weights are not W + s B A.
_VARIANTS = (
    "alora_invocation_tokens", "use_qalora", "use_bdlora", "arrow_config", "kasa_config", "velora_config", "monteclora_config",
    "layer_replication", "trainable_token_indices", "megatron_config", "lora_bias",
)  # fmt: skip
# Settings that decide how weights change; null is the default of each.
_FLAGS = ("use_rslora", "use_dora", "fan_in_fan_out", "lora_bias", "use_qalora")
_TEXTS = ("peft_type", "bias", "revision")
_LISTS = ("target_parameters", "modules_to_save")
# Initializations that also change the weights of the base: the adapter is a change of weights that are stored nowhere.
_CHANGED_BASES = ("pissa", "olora", "corda", "loftq", "lora_ga", "mica")


@dataclass(frozen=True, slots=True)
class AdapterConfiguration:
    """The settings of an adapter on which its changes depend.

    rank, alpha: defaults, None if the file states none; ranks, alphas: patterns of module names -> values that replace them;
    fan_in_fan_out: whether layers hold (in, out) matrices; parameters: names of stacked parameters (``target_parameters``); saved: names of
    modules that are stored whole (``modules_to_save``); base: the id of the base, None unless it is one on the Hub; revision: of the base;
    stated_base: the text of the configuration.
    """

    rank: int | None = None
    alpha: float | None = None
    rslora: bool = False
    dora: bool = False
    fan_in_fan_out: bool = False
    ranks: Mapping[str, int] | None = None
    alphas: Mapping[str, float] | None = None
    parameters: tuple[str, ...] = ()
    saved: tuple[str, ...] = ()
    base: str | None = None
    revision: str | None = None
    stated_base: str | None = None

    @property
    def kind(self) -> Kind:
        """The name of the method."""
        return ("rsDoRA" if self.rslora else "DoRA") if self.dora else "rsLoRA" if self.rslora else "LoRA"

    def scale(self, rank: int, alpha: float) -> float:
        """Return alpha / rank, or alpha / sqrt(rank) for rsLoRA."""
        return alpha / (math.sqrt(rank) if self.rslora else rank)

    def base_reference(self) -> str:
        """Return the reference of the base. Raises UnsupportedWeights with the reason if the configuration names none on the Hub."""
        if self.base is None:
            named = "names no base"
            if self.stated_base:
                named = f"names {quoted(self.stated_base, 100)}, which is not the id of a model on the Hub and was not followed"
            raise UnsupportedWeights(f"Its {FILE} {named}: give the base yourself, as BASE+ADAPTER.")
        return f"{self.base}@{self.revision}" if self.revision else self.base


def read_configuration(repository: Repository, folder: str) -> AdapterConfiguration | None:
    """Read and validate the configuration in ``folder``, "" for the top; None if there is none. Raises as `configuration` does."""
    content = read_object(repository, f"{folder}/{FILE}".lstrip("/"))
    return None if content is None else configuration(content)


def read_object(repository: Repository, path: str) -> dict[str, Any] | None:
    """Read the JSON object in a small file; None if there is no such file. Raises InvalidCheckpoint for anything else in it."""
    if path not in repository.files:
        return None
    if repository.files[path] > limits.CONFIG_BYTES:
        raise InvalidCheckpoint(f"{quoted(path, 200)} has more than {limits.CONFIG_BYTES:,} bytes, which no configuration needs.")
    try:
        content = parse_json(read_file(repository, path), lenient=True)
    except InvalidJson as error:
        raise InvalidCheckpoint(f"{quoted(path, 200)} {error}.") from None
    if not isinstance(content, dict):
        raise InvalidCheckpoint(f"{quoted(path, 200)} is not a JSON object.")
    return content


def configuration(content: Mapping[str, Any]) -> AdapterConfiguration:
    """Validate the contents of adapter_config.json.

    Raises UnsupportedWeights, naming the method, if merged weights are not W + s B A; InvalidCheckpoint for values that cannot be used.
    """
    _check_types(content)
    _refuse_methods(content)
    stated = content.get("base_model_name_or_path")
    base = _on_hub(stated) if isinstance(stated, str) else None
    revision = content.get("revision")
    at = revision if base and revision and _on_hub(f"{base}@{revision}") else None
    return AdapterConfiguration(
        rank=_number(content, "r", True),
        alpha=_number(content, "lora_alpha", False),
        rslora=bool(content.get("use_rslora")),
        dora=bool(content.get("use_dora")),
        fan_in_fan_out=bool(content.get("fan_in_fan_out")),
        ranks={name: _checked(value, f"rank_pattern of {quoted(name)}", True) for name, value in _patterns(content, "rank_pattern")},
        alphas={name: _checked(value, f"alpha_pattern of {quoted(name)}", False) for name, value in _patterns(content, "alpha_pattern")},
        parameters=tuple(content.get("target_parameters") or ()),
        saved=tuple(content.get("modules_to_save") or ()),
        base=base,
        revision=at if at != "main" else None,
        stated_base=stated if isinstance(stated, str) and stated else None,
    )


def by_pattern(patterns: Mapping[str, Any] | None, modules: Iterable[str]) -> dict[str, Any]:
    """Return the value of each of ``modules`` that a pattern matches: the first one whose expression matches the end of its name.

    As in peft: the whole name, or all of it after a dot. Patterns are untrusted: together they have ``_PATTERN_SECONDS``, and the usual
    ones, plain names, cost nothing. Raises InvalidCheckpoint.
    """
    found: dict[str, Any] = {}
    if not patterns:
        return found
    modules = list(modules)
    order = {pattern: at for at, pattern in enumerate(patterns)}
    plain = {pattern for pattern in patterns if all(c.isalnum() or c in "_.-/" for c in pattern)}
    deadline = monotonic() + _PATTERN_SECONDS
    try:
        others = []
        for pattern in patterns.keys() - plain:
            others.append((pattern, compile_filter("pattern", rf"(.*\.)?({pattern})$")))
            _check_time(deadline)
        for module in modules:
            parts = module.split(".")
            ends = [".".join(parts[at:]) for at in range(len(parts))]
            matching = [order[end] for end in ends if end in plain]
            matching += [order[each] for each, compiled in others if compiled.match(module, timeout=_check_time(deadline))]
            if matching:
                found[module] = list(patterns.values())[min(matching)]
    except (InvalidFilter, TimeoutError):
        raise InvalidCheckpoint(f"A pattern of module names in {FILE} is not a valid regular expression.") from None
    return found


def _check_time(deadline: float) -> float:
    """Return the seconds until ``deadline``. Raises TimeoutError after it."""
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _check_types(content: Mapping[str, Any]) -> None:
    """Raise InvalidCheckpoint for settings of another type: the text "false" is true to some programs, and false to others."""
    wrong = [(key, "a list of names") for key in _LISTS if not _are_names(content.get(key))]
    wrong += [(key, "true or false") for key in _FLAGS if type(content.get(key)) not in (bool, type(None))]
    wrong += [(key, "a text") for key in _TEXTS if type(content.get(key)) not in (str, type(None))]
    for key, what in wrong:
        raise InvalidCheckpoint(f"{FILE}: {key} is {json.dumps(content[key])[:60]}, where {what} is expected.")


def _are_names(value: object) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(name, str) for name in value))


def _refuse_methods(content: Mapping[str, Any]) -> None:
    method = content.get("peft_type") or "LORA"
    unknown = method if method != "LORA" else next((key for key in _VARIANTS if content.get(key)), None)
    if unknown:
        raise UnsupportedWeights(
            f"This adapter uses {quoted(unknown)}, and not LoRA, rsLoRA or DoRA: merge it with merge_and_unload of peft."
        )
    start = content.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGED_BASES):
        raise UnsupportedWeights(
            f"This adapter was initialized with {quoted(start)}, which also changes weights of its base that are not stored: save it with "
            "peft's path_initial_model_for_weight_conversion, which makes it a plain LoRA."
        )


def _on_hub(text: str) -> str | None:
    """Return a Hub id, with its revision if it has one, or a sample; None for a path, another address, or anything else."""
    try:
        reference = parse_reference(text, local=False)
    except InvalidReference:
        return None
    name = f"{reference.name}@{reference.revision}" if reference.revision else reference.name
    return text if text == {"hub": name, "sample": f"sample:{name}"}.get(reference.kind) else None


def _number(content: Mapping[str, Any], key: str, whole: bool) -> Any:
    return None if content.get(key) is None else _checked(content[key], key, whole)


def _checked(value: object, what: str, whole: bool) -> Any:
    """Return a rank, or an alpha. Raises InvalidCheckpoint."""
    if whole and (type(value) is not int or not 0 < value <= _LARGEST_RANK):
        raise InvalidCheckpoint(f"{FILE}: {what} is {json.dumps(value)[:60]}, and a rank is a whole number from 1 to {_LARGEST_RANK:,}.")
    if not whole and (type(value) not in (int, float) or not abs(value) < 1e30):  # type: ignore[arg-type]
        raise InvalidCheckpoint(f"{FILE}: {what} is {json.dumps(value)[:60]}, which is not a usable number.")
    return value


def _patterns(content: Mapping[str, Any], key: str) -> Iterable[tuple[str, Any]]:
    value = content.get(key) or {}
    if not isinstance(value, dict) or len(value) > _MOST_PATTERNS or any(len(name) > _LONGEST_PATTERN for name in value):
        raise InvalidCheckpoint(f"{FILE}: {key} is not a mapping from at most {_MOST_PATTERNS:,} names of modules to numbers.")
    return list(value.items())
