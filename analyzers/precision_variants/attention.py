"""The attention implementation of a variant, and whether this model and machine support it."""

from importlib.util import find_spec

from analyzers.checkpoints import quoted
from analyzers.errors import InvalidRequest
from analyzers.language_models.ffn import text_config
from analyzers.language_models.load import OpenModel
from analyzers.precision_variants.variants import Settings

# Families whose attention class is chosen at construction and cannot be changed afterwards.
_BUILT_IN = ("gptj", "gpt_neo", "falcon", "bloom")


def implementation(name: str, settings: Settings, opened: OpenModel) -> str:
    """Its name in transformers. Raises InvalidRequest where it is not available."""
    asked, kind = settings.attention or opened.attention, str(text_config(opened.outline).model_type)
    if asked == "sdpa" and opened.attention != "sdpa" and not getattr(opened.outline, "_supports_sdpa", False):
        raise InvalidRequest(f"Variant {name} asks for sdpa attention, which models of type {quoted(kind)} do not support: choose eager.")
    if asked != "flash":
        return asked
    if find_spec("flash_attn") is None:
        raise InvalidRequest(f"Variant {name} asks for flash attention, which is not installed: pip install flash-attn, or choose sdpa.")
    if opened.device != "cuda":
        raise InvalidRequest(f"Variant {name} asks for flash attention, which needs a GPU: choose sdpa.")
    if not getattr(opened.outline, "_supports_flash_attn", False) or kind in _BUILT_IN:
        raise InvalidRequest(f"Variant {name} asks for flash attention, which models of type {quoted(kind)} do not support: choose sdpa.")
    if "softmax" in settings.fp32:
        raise InvalidRequest(f"Variant {name} asks for flash attention in fp32, which does not exist: leave out softmax, or choose sdpa.")
    return "flash_attention_2"
