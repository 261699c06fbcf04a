"""Builds a model outline from config.json: its architecture, whether it can be run, and its size."""

import re
from collections.abc import Mapping
from typing import Any, cast

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from analyzers.checkpoints import Checkpoint, MemoryRepository, quoted
from analyzers.core import limits
from analyzers.core.errors import InvalidCheckpoint, MantissaError, UnknownArchitecture, UnsupportedWeights
from analyzers.language_models.ffn import ffn_layers, unknown_family
from analyzers.language_models.memory_needs import activation_bytes
from analyzers.language_models.module_names import FAMILIES
from analyzers.language_models.untrusted_config import LABELS, check_counts, numbers, safe_config

_CHUNKS = re.compile(r"(\w+_)?chunk_size")
_PLACES = re.compile(r"max_seq_len")  # MPT: the model builds a table of this many positions per head at run time
_MOST_PLACES = 1 << 20
_FIELD = re.compile(r"field '(\w{1,80})'", re.IGNORECASE)
_HEADS = re.compile(r"\w+(ForCausalLM|LMHeadModel|ForConditionalGeneration)")
_MXFP4_FAMILIES = ("gpt_oss",)


def outline(checkpoint: Checkpoint, attention: str, weights: bool) -> PreTrainedModel:
    """Build the checkpoint's model without weights (on the "meta" device), with transformers' own implementation.

    attention: "sdpa" or "eager"; a family without sdpa gets eager, and its ``config._attn_implementation`` says so. weights: whether the
    checkpoint's weights will be loaded.
    Raises UnknownArchitecture if it is not a causal language model, needs code from its repository or belongs to an unsupported family;
    UnsupportedWeights for weights that are quantized or not safetensors; InvalidCheckpoint for an invalid config.json; LimitExceeded.
    """
    stated = _stated(checkpoint)
    kind = CONFIG_MAPPING[stated["model_type"]]
    _check_kind(kind)
    if weights:
        _check_weights(checkpoint, stated["model_type"])
    _check_sizes(stated)
    model_class = cast(Any, MODEL_FOR_CAUSAL_LM_MAPPING[kind])
    try:
        config: PreTrainedConfig = kind.from_dict(safe_config(stated, LABELS))
        if model_class.config_class is kind.sub_configs.get("text_config"):  # for a multimodal model, use the text model
            config = config.get_text_config()
        with torch.device("meta"), torch.random.fork_rng(devices=[]):  # some families draw random numbers on the CPU nevertheless
            chosen = attention if getattr(model_class, "_supports_sdpa", False) else "eager"
            model: PreTrainedModel = model_class._from_config(config, attn_implementation=chosen)
        if not ffn_layers(model):
            raise InvalidCheckpoint("config.json describes a model without layers, in which there is nothing to measure.")
        activation_bytes(model, torch.float32, [2])  # checks that the sizes derived from the configuration can be computed
    except MantissaError:
        raise
    except Exception as error:  # any error is possible: the library receives untrusted values
        raise InvalidCheckpoint(f"config.json describes no model that can be built: {_refused(error)}.") from None
    return model


def _stated(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Return config.json if it describes a causal language model of a type known to transformers."""
    stated = checkpoint.config
    if stated is None and isinstance(checkpoint.repository, MemoryRepository):
        raise UnknownArchitecture(
            f"{checkpoint.ref.removeprefix('memory:')} cannot be run: a model in memory must be a causal language model of transformers, "
            "as AutoModelForCausalLM gives it, with its config."
        )
    if stated is None:
        raise InvalidCheckpoint("The checkpoint has no config.json that can be read, which says what model it is.")
    kind = stated.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        name = quoted(kind) if isinstance(kind, str) else "none"
        if "auto_map" in stated:
            raise UnknownArchitecture(f"This model (of the type {name}) needs code from its repository to run, and such code is never run.")
        raise UnknownArchitecture(f"config.json names a type of model that is not known: {name}.")
    architectures = stated.get("architectures")
    if isinstance(architectures, list) and architectures and not any(_HEADS.fullmatch(str(name)) for name in architectures):
        name = quoted(str(architectures[0]))
        raise UnknownArchitecture(f"This is not a causal language model but a {name}: it has no head that predicts tokens.")
    return stated


def _check_kind(kind: type[PreTrainedConfig]) -> None:
    """Raise UnknownArchitecture unless this is a causal language model of a supported family, or a multimodal model with one."""
    name = getattr(kind.sub_configs.get("text_config", kind), "model_type", "")
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING or (name and name not in FAMILIES):  # without a name, config.json determines the text model
        raise unknown_family(kind.model_type)


def _refused(error: Exception) -> str:
    """Describe what is wrong with config.json, as far as the library's error tells."""
    field = _FIELD.search(str(error))
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], str):
        return f"{quoted(error.args[0], 80)} is not known"
    return f"its {quoted(field[1])} is not valid for such a model" if field else f"its values do not fit together ({type(error).__name__})"


def _check_weights(checkpoint: Checkpoint, kind: str) -> None:
    other = next((file.path for file in checkpoint.parts[0][0].files if not file.path.endswith(".safetensors")), None)
    if other is not None:
        raise UnsupportedWeights(f"Only safetensors are loaded to run a model, and this one has {quoted(other)}: convert it first.")
    if len({file.path.rpartition("/")[0] for file in checkpoint.files}) > 1:
        raise UnsupportedWeights("The weights are in several folders, so this is not a single language model.")
    method = checkpoint.quantization
    if method is not None and not (method == "mxfp4" and kind in _MXFP4_FAMILIES):
        raise UnsupportedWeights(f"The weights are quantized ({method}), and gradients need plain ones: name the original model.")


def _check_sizes(stated: Mapping[str, Any]) -> None:
    """Raise LimitExceeded for too many layers or experts, InvalidCheckpoint for chunks longer than any sample and for huge tables."""
    check_counts(stated)
    chunk, places = (max((value for name, value in numbers(stated) if kind.fullmatch(name)), default=0) for kind in (_CHUNKS, _PLACES))
    if places > _MOST_PLACES:
        raise InvalidCheckpoint(f"config.json states a sequence length of {places:,} tokens (max_seq_len): no such model is known.")
    if chunk > limits.CONFLICT_TOKENS:
        raise InvalidCheckpoint(f"config.json states chunks of {chunk:,} tokens (chunk_size): no such model is known.")
