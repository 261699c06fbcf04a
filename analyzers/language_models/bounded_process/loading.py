"""The request of a bounded process that says what transformers would load: a model without weights, and tensors without values."""

import gc
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING
from transformers.utils import logging as messages

from analyzers.errors import LimitExceeded
from analyzers.language_models.bounded_process import ProgramFailed
from analyzers.language_models.untrusted import check_counts, cleaned

_NAME = re.compile(r"[A-Za-z0-9_]{1,120}")
_DTYPES = re.compile(r"(torch_)?dtype")  # nothing here depends on them
_Stored = Sequence[tuple[str, Sequence[int]]]


class Programs:
    """Each method is a request; arguments and results are JSON."""

    def __init__(self) -> None:
        quiet: Any = messages
        quiet.set_verbosity(logging.CRITICAL)
        quiet.disable_progress_bar()

    def load(self, config: dict[str, Any], tensors: _Stored) -> dict[str, Any]:
        """Load tensors of these names and shapes, on the meta device, into the model that ``config`` describes.

        Returns the name of the ``class`` and its report: names of ``missing`` parameters and ``buffers``, ``unexpected`` names,
        ``mismatched`` names with the stored and the expected shape; or ``refused``, if it raises for these tensors. Names are those of the
        model, after transformers' own renaming. Raises ProgramFailed if the class is not known ("unknown") or cannot be built ("said").
        """
        try:
            check_counts(config)
        except LimitExceeded as error:
            raise ProgramFailed("said", str(error)) from None
        model_class, settings = _described(config)
        gc.disable()  # nothing but garbage of one request, and a fifth of its time
        state = {name: torch.empty(tuple(shape), device="meta") for name, shape in tensors}
        try:
            model, info = cast(Any, model_class).from_pretrained(
                None,
                config=settings,
                state_dict=state,
                dtype=torch.float32,
                device_map="meta",
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
        except MemoryError:
            raise
        except Exception as error:
            _build(model_class, settings)  # raises where the configuration is at fault, not the tensors
            return {"class": model_class.__name__, "refused": str(error).split("\n")[0] or type(error).__name__}
        parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        return {
            "class": model_class.__name__,
            "missing": sorted(name for name in info["missing_keys"] if name in parameters),
            "buffers": sorted(name for name in info["missing_keys"] if name not in parameters),
            "unexpected": sorted(info["unexpected_keys"]) if config.get("architectures") else [],  # else it may be a head
            "mismatched": sorted((name, list(stored), list(expected)) for name, stored, expected in info["mismatched_keys"]),
        }


def _described(stated: Mapping[str, Any]) -> tuple[type[PreTrainedModel], PreTrainedConfig]:
    """The class that ``architectures`` names, else that of AutoModel, and its configuration. Raises ProgramFailed."""
    kind, named = stated.get("model_type"), stated.get("architectures")
    kind_class = CONFIG_MAPPING[kind] if isinstance(kind, str) and kind in CONFIG_MAPPING else None
    if isinstance(named, list) and named:
        name = str(named[0])
        found = getattr(transformers, name, None) if _NAME.fullmatch(name) else None
        if not (isinstance(found, type) and issubclass(found, PreTrainedModel) and found.config_class):
            raise ProgramFailed("unknown", name)
    elif kind_class is None or kind_class not in cast(Any, MODEL_MAPPING):
        raise ProgramFailed("unknown", str(kind))
    else:
        found = cast(Any, MODEL_MAPPING)[kind_class]
        found = found[0] if isinstance(found, tuple) else found
    model_class = cast(type[PreTrainedModel], found)
    return model_class, _configured(model_class, kind_class, stated)


def _configured(model_class: type[PreTrainedModel], kind: type[PreTrainedConfig] | None, stated: Mapping[str, Any]) -> PreTrainedConfig:
    """The configuration of a class; of a multimodal ``kind``, that of the part that the class implements."""
    own = cast(type[PreTrainedConfig], model_class.config_class)
    settings = cleaned(stated, _DTYPES)
    if kind is None or issubclass(kind, own):
        return (kind or own).from_dict(settings)
    part = next((name for name, sub in kind.sub_configs.items() if sub is own), None)
    if part is None:
        raise ProgramFailed("unknown", f"{model_class.__name__} of the type {kind.model_type}")
    return cast(PreTrainedConfig, getattr(kind.from_dict(settings), part))


def _build(model_class: type[PreTrainedModel], settings: PreTrainedConfig) -> None:
    with torch.device("meta"):
        cast(Any, model_class)(settings)
