"""Validates adapter_config.json: how the matrices of an adapter change a base. Nothing that it names is followed or executed."""

import json
import math
from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from analyzers.checkpoints.reference import parse_reference, quoted
from analyzers.checkpoints.repository import Repository, read_json
from analyzers.checkpoints.tensor_names.filters import compile_filter
from analyzers.core import limits
from analyzers.core.errors import InvalidCheckpoint, InvalidFilter, InvalidReference, UnsupportedWeights
from analyzers.core.untrusted_json import InvalidJson

Kind = Literal["LoRA", "rsLoRA", "DoRA", "rsDoRA"]

FILE = "adapter_config.json"
_PATTERN_SECONDS = 2  # Longest time that the patterns of one configuration may take over all modules.
# Settings with which the merged weights are not W + s B A.
_VARIANTS = (
    "alora_invocation_tokens", "use_qalora", "use_bdlora", "arrow_config", "kasa_config", "velora_config", "monteclora_config",
    "layer_replication", "trainable_token_indices", "megatron_config", "lora_bias", "target_parameters",
)  # fmt: skip
# Initializations that also change the weights of the base: the adapter is a change of weights that are stored nowhere.
_CHANGED_BASES = ("pissa", "olora", "corda", "loftq", "lora_ga", "mica")

Rank = Annotated[int, Field(ge=1, le=1 << 16)]
Alpha = Annotated[float, Field(gt=-1e30, lt=1e30)]
Pattern = Annotated[str, Field(max_length=1_000)]


class AdapterConfiguration(BaseModel):
    """The settings of an adapter on which its changes depend, of the types that peft writes: "false" is true to some programs.

    ranks, alphas: patterns of module names -> values that replace ``rank`` and ``alpha``; fan_in_fan_out: whether layers hold (in, out)
    matrices; stated_base: the base as the file names it.
    """

    model_config = ConfigDict(strict=True, frozen=True)

    rank: Rank | None = Field(None, alias="r")
    alpha: Alpha = Field(8, alias="lora_alpha")  # peft's default
    rslora: bool = Field(False, alias="use_rslora")
    dora: bool = Field(False, alias="use_dora")
    fan_in_fan_out: bool = False
    ranks: dict[Pattern, Rank] = Field({}, alias="rank_pattern", max_length=20_000)
    alphas: dict[Pattern, Alpha] = Field({}, alias="alpha_pattern", max_length=20_000)
    stated_base: Any = Field(None, alias="base_model_name_or_path")
    revision: str | None = None

    @property
    def kind(self) -> Kind:
        """The name of the method."""
        return ("rsDoRA" if self.rslora else "DoRA") if self.dora else "rsLoRA" if self.rslora else "LoRA"

    def scale(self, rank: int, alpha: float) -> float:
        """Return alpha / rank, or alpha / sqrt(rank) for rsLoRA."""
        return alpha / (math.sqrt(rank) if self.rslora else rank)

    @property
    def base(self) -> str | None:
        """The id of the base on the Hub, or a sample; None for anything else, which is not followed."""
        return self.stated_base if isinstance(self.stated_base, str) and _on_hub(self.stated_base) else None

    def base_reference(self) -> str:
        """Return the reference of the base. Raises UnsupportedWeights with the reason if the configuration names none on the Hub."""
        if self.base is None:
            stated = f"{quoted(str(self.stated_base), 100)}, which was not followed" if self.stated_base else "nothing"
            raise UnsupportedWeights(f"Its {FILE} names no base on the Hub, but {stated}: give the base yourself, as BASE+ADAPTER.")
        at = f"{self.base}@{self.revision}"
        return at if self.revision and self.revision != "main" and _on_hub(at) else self.base


def read_configuration(repository: Repository, folder: str) -> AdapterConfiguration | None:
    """Read and validate the configuration in ``folder``, "" for the top; None if there is none.

    Raises UnsupportedWeights, naming the method, if merged weights are not W + s B A; InvalidCheckpoint for anything that cannot be used.
    """
    path = f"{folder}/{FILE}".lstrip("/")
    if path not in repository.files:
        return None
    try:
        content = read_json(repository, path, limits.CONFIG_BYTES)
    except InvalidJson as error:
        raise InvalidCheckpoint(f"{quoted(path, 200)} {error}.") from None
    if not isinstance(content, dict):
        raise InvalidCheckpoint(f"{quoted(path, 200)} is not a JSON object.")
    _refuse_methods(content)
    try:
        return AdapterConfiguration.model_validate({key: value for key, value in content.items() if value is not None})
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False)[0]
        at, value = ".".join(map(str, wrong["loc"])), json.dumps(wrong["input"])
        raise InvalidCheckpoint(f"{FILE}: {quoted(at)} is {quoted(value, 60)}: {wrong['msg']}.") from None


def _refuse_methods(content: Mapping[str, Any]) -> None:
    method = content.get("peft_type") or "LORA"
    unknown = method if method != "LORA" else next((key for key in _VARIANTS if content.get(key)), None)
    if unknown:
        raise UnsupportedWeights(
            f"This adapter uses {quoted(str(unknown))}, and not LoRA, rsLoRA or DoRA: merge it with merge_and_unload of peft."
        )
    start = content.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGED_BASES):
        raise UnsupportedWeights(
            f"This adapter was initialized with {quoted(start)}, which also changes weights of its base that are not stored: save it with "
            "peft's path_initial_model_for_weight_conversion, which makes it a plain LoRA."
        )


def by_pattern(patterns: Mapping[str, Any], modules: Iterable[str]) -> dict[str, Any]:
    """Return the value of each of ``modules`` that a pattern matches: the first one whose expression matches the end of its name.

    As in peft: the whole name, or all of it after a dot. Patterns are untrusted: together they have ``_PATTERN_SECONDS``. Raises
    InvalidCheckpoint.
    """
    deadline, compiled, found = monotonic() + _PATTERN_SECONDS, list[tuple[Any, Any]](), dict[str, Any]()
    try:
        for pattern, value in patterns.items():
            compiled.append((compile_filter("pattern", rf"(.*\.)?({pattern})$"), value))
            _seconds_until(deadline)
        for module in modules if patterns else ():
            matching = (value for each, value in compiled if each.match(module, timeout=_seconds_until(deadline)))
            if (value := next(matching, None)) is not None:
                found[module] = value
    except (InvalidFilter, TimeoutError):
        raise InvalidCheckpoint(f"A pattern of module names in {FILE} is not a valid regular expression, or takes too long.") from None
    return found


def _seconds_until(deadline: float) -> float:
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _on_hub(text: str) -> bool:
    """Return whether ``text`` is a Hub id, with its revision if it has one, or a sample: no path, no other address."""
    try:
        reference = parse_reference(text, local=False)
    except InvalidReference:
        return False
    name = f"{reference.name}@{reference.revision}" if reference.revision else reference.name
    return text == {"hub": name, "sample": f"sample:{name}"}.get(reference.kind)
