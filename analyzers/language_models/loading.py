"""Determines, in a limited process, what transformers would load, from a model without weights and tensors without values."""

import gc
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
import transformers
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.core_model_loading import build_glob_alternation
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING
from transformers.quantizers.auto import AutoHfQuantizer
from transformers.utils import logging as messages

from analyzers.core.errors import MantissaError, MissingExtra, UnknownArchitecture
from analyzers.core.terminal import quoted
from analyzers.language_models.offload import names_in_model
from analyzers.language_models.untrusted_config import check_counts, safe_config

_NAME = re.compile(r"[A-Za-z0-9_]{1,120}")
_LANGUAGE_MODEL = re.compile(r"\w+(ForCausalLM|LMHeadModel)")
_NO_MEMORY = re.compile(r"allocate memory|out of memory", re.IGNORECASE)
_Stored = Sequence[tuple[str, Sequence[int]]]
_Result = TypeVar("_Result")


def load(config: dict[str, Any], tensors: _Stored, generation: Any) -> dict[str, Any]:
    """Load tensors of these names and shapes, on the meta device, into the model that ``config`` describes.

    generation: the contents of generation_config.json. Returns the fields of a `load_report.LoadReport`. Changes settings of transformers:
    call it in a process of its own.
    Raises LimitExceeded, MissingExtra, and UnknownArchitecture for a class that transformers does not have.
    """
    cast(Any, messages).set_verbosity(logging.CRITICAL)
    cast(Any, messages).disable_progress_bar()
    check_counts(config)
    described, refused = _attempt(lambda: (*_described(config), _quantization(config)))
    if described is None:
        return {"refused": refused, "by_config": True}
    model_class, settings, instead, method = described
    named = {"model": model_class.__name__, "instead": instead, "dtype": str(settings.dtype or "").removeprefix("torch.")}
    gc.disable()  # one request makes little garbage, and collecting it would take a fifth of the time
    state = {name: torch.empty(tuple(shape), device="meta") for name, shape in tensors}
    loaded, refused = (None, "") if method else _attempt(lambda: _loaded(model_class, settings, state))
    if loaded is None:  # find out whether the configuration or the tensors are at fault
        empty, by_config = _attempt(lambda: _loaded(model_class, settings, {"": torch.empty(0, device="meta")}))
        if method and empty is not None:
            return {**named, "quantized": method, **_modules(empty[0], list(state), True)}
        return {**named, "refused": by_config or refused, "by_config": bool(by_config)}
    model, info = loaded
    fault = _attempt(lambda: _check_rest(model, config, generation))[1].partition(". ")[0]
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return {
        **named,
        "fault": fault,
        "missing": tuple(sorted(name for name in info["missing_keys"] if name in parameters)),
        "buffers": tuple(sorted(name for name in info["missing_keys"] if name not in parameters)),
        # If config.json names no known class, an unexpected tensor may be a head.
        "unexpected": tuple(sorted(info["unexpected_keys"])) if config.get("architectures") and not instead else (),
        "mismatched": tuple(sorted((name, tuple(stored), tuple(expected)) for name, stored, expected in info["mismatched_keys"])),
        **_modules(model, list(state), False),
    }


def _attempt(make: Callable[[], _Result]) -> tuple[_Result | None, str]:
    """Return the result of ``make``, or the reason why transformers raises. Re-raises errors that depend on this machine."""
    try:
        return make(), ""
    except (MemoryError, RecursionError, MantissaError):
        raise
    except ImportError as error:
        raise _missing_library(_reason(error).partition(". ")[0]) from None
    except Exception as error:  # any error is possible: the library receives untrusted values
        if _NO_MEMORY.search(str(error)):
            raise MemoryError from None
        return None, _reason(error)


def _missing_library(which: str) -> MissingExtra:
    return MissingExtra(f"To build its model takes a library that is not installed: {quoted(which, 200)}.")


def _reason(error: Exception) -> str:
    """Return an error's message in one line, without the C++ trace that torch appends."""
    said = str(error.args[0] if isinstance(error, KeyError) and error.args else error).strip()
    said = " ".join(" ".join(said.split("\n")[:2]).partition("Exception raised from")[0].split())
    if isinstance(error, KeyError) and " " not in said:
        return f"it does not know {said!r}"
    return said or type(error).__name__


def _loaded(model_class: type[PreTrainedModel], settings: PreTrainedConfig, state: Mapping[str, torch.Tensor]) -> tuple[Any, Any]:
    loaded: tuple[Any, Any] = cast(Any, model_class).from_pretrained(
        None,
        config=settings,
        state_dict=dict(state),
        device_map="meta",
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    return loaded


def _modules(model: Any, stored: Sequence[str], quantized: bool) -> dict[str, Any]:
    """Return which stored tensors the model keeps in fp32, loaded in any dtype or in fp16 only, and which are weights of linear layers.

    The latter only of ``quantized`` weights: to name every tensor as the model does takes time.
    """
    always, in_fp16 = model._keep_in_fp32_modules_strict or (), model._keep_in_fp32_modules or ()
    if not always and not in_fp16 and not quantized:
        return {}
    state = model.state_dict()
    names = {name: own for name, own, _, _ in names_in_model(model, stored)}
    kept = {}
    for field, patterns in (("fp32", always), ("fp32_in_fp16", in_fp16)):
        found = build_glob_alternation(sorted(patterns))[0] if patterns else None
        kept[field] = tuple(name for name, own in names.items() if found is not None and own in state and found.search(own))
    linear = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)} if quantized else set()
    return {**kept, "linears": tuple(name for name, own in names.items() if own.rpartition(".")[0] in linear)}


def _check_rest(model: Any, stated: Mapping[str, Any], generation: Any) -> None:
    """Raise transformers' errors for unknown implementations and for the contents of generation_config.json.

    Known implementations are not tried: they may need another library.
    """
    attention, experts = (stated.get(f"{kind}_implementation", stated.get(f"_{kind}_implementation")) for kind in ("attn", "experts"))
    known = cast(Any, ALL_ATTENTION_FUNCTIONS).valid_keys()
    # With a slash or a bar, it names kernels of a repository.
    if isinstance(attention, str) and attention not in known and "/" not in attention and "|" not in attention:
        model.get_correct_attn_implementation(attention)
    if isinstance(experts, str):
        model.get_correct_experts_implementation(experts)
    if generation is not None and model.can_generate():
        try:
            GenerationConfig.from_dict(safe_config(generation))
        except Exception as error:
            raise ValueError(f"generation_config.json: {_reason(error)}") from None


def _described(stated: Mapping[str, Any]) -> tuple[type[PreTrainedModel], PreTrainedConfig, str]:
    """Return the class that ``architectures`` names and its configuration.

    If it names no class that fits ``model_type``, returns the class that an AutoModel takes, and as third the name that this class
    replaces. Raises UnknownArchitecture, MissingExtra, and the errors of transformers.
    """
    kind = stated.get("model_type")
    if kind == "mistral" and "layer_types" in stated:  # AutoConfig does the same
        kind = "ministral"
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        codes = stated.get("auto_map")
        if isinstance(codes, dict) and "AutoConfig" in codes:
            raise UnknownArchitecture("Its model is code of the repository (auto_map in config.json), which is never run.")
        if kind is None:
            raise ValueError("it names no model_type")
        version = transformers.__version__
        raise ValueError(f"transformers {version} does not know the model_type {kind!r:.80}; a newer release, or the model's own code, may")
    config_class = CONFIG_MAPPING[kind]
    config = config_class.from_dict(safe_config(stated))
    named = stated.get("architectures")
    first = named[0] if isinstance(named, list) and named else named
    name = first if isinstance(first, str) and _NAME.fullmatch(first) else ""
    model_class = getattr(transformers, name, None) if name else None
    if isinstance(model_class, type) and "_backends" in vars(model_class):
        raise _missing_library(f"{name} requires {', '.join(vars(model_class)['_backends'])}")
    if isinstance(model_class, type) and issubclass(model_class, PreTrainedModel) and model_class.config_class:
        part = _part(model_class, config)
        if part is not None:
            return model_class, part, ""
    models = cast(Any, MODEL_FOR_CAUSAL_LM_MAPPING if _LANGUAGE_MODEL.fullmatch(name) else MODEL_MAPPING)
    if config_class not in models:
        raise UnknownArchitecture(f"transformers has no {quoted(name or kind, 100)}.")
    taken = models[config_class]
    taken = taken[0] if isinstance(taken, tuple) else taken
    return taken, _part(taken, config) or config, str(first or "")[:100]


def _part(model_class: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedConfig | None:
    """Return the configuration of a class: ``config`` or the part of it that the class implements; None without one."""
    own = cast(type[PreTrainedConfig], model_class.config_class)
    if isinstance(config, own):
        return config
    name = next((name for name, sub in config.sub_configs.items() if sub is own), None)
    return cast(PreTrainedConfig, getattr(config, name)) if name else None


def _quantization(stated: Mapping[str, Any]) -> str:
    """Return the method by which transformers would load quantized weights, "" for none. Raises transformers' errors for its settings."""
    text = stated.get("text_config")
    asked = stated.get("quantization_config")
    if isinstance(text, dict):
        asked = asked or text.get("quantization_config")
    if asked is None:
        return ""
    quantizers: Any = AutoHfQuantizer
    asked = safe_config(asked)
    if not quantizers.supports_quant_method(asked):
        return ""  # transformers ignores it with a warning
    try:
        made = quantizers.merge_quantization_configs(asked, None)
    except ImportError:  # the method needs a library, and nothing is loaded here
        return str(asked.get("quant_method"))
    return str(getattr(made.quant_method, "value", made.quant_method))
