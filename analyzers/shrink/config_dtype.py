"""Adapts the dtype that config.json states when the weights below it become narrower."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from analyzers.checkpoints.stated_dtype import TORCH_NAMES, plain_dtype
from analyzers.checkpoints.tensor import DTYPE_BITS
from analyzers.core.untrusted_json import InvalidJson, parse_json

_BITS = {name: DTYPE_BITS[dtype] for dtype, name in TORCH_NAMES.items()}
_KEYS = ("dtype", "torch_dtype")


def holding_dtype(dtypes: Iterable[str]) -> str | None:
    """Return the narrowest dtype that holds values of all ``dtypes``, by its name in torch; float32 for BF16 together with F16."""
    names = {TORCH_NAMES[dtype] for dtype in dtypes if dtype in TORCH_NAMES}
    if names == {"bfloat16", "float16"}:
        return "float32"
    return max(names, key=_BITS.__getitem__, default=None)


def stated_config(text: bytes, dtype: str, changes: Mapping[str, Any]) -> bytes | None:
    """Return config.json with ``dtype``, also in nested parts that state one, and with ``changes``; None if it is not a JSON object."""
    try:
        config: Any = parse_json(text, lenient=True)
    except InvalidJson:
        return None
    if not isinstance(config, dict):
        return None
    for part in (config, *config.values()):
        for key in _KEYS if isinstance(part, dict) else ():
            if key in part:
                part[key] = dtype
    for key, value in changes.items():
        holder = next((part for part in (config, config.get("text_config")) if isinstance(part, dict) and key in part), config)
        holder[key] = value
    if not any(key in config for key in _KEYS):
        config["dtype"] = dtype
    return json.dumps(config, indent=2).encode() + b"\n"


def narrowed_config(text: bytes, dtype: str) -> tuple[bytes, str] | None:
    """Replace each dtype wider than ``dtype`` in config.json, also in nested parts; return the text and the dtype that it then states.

    If none is stated, ``dtype`` is added: a loader would use that of the first tensor for all. None if it is not a JSON object.
    """
    try:
        config: Any = parse_json(text, lenient=True)
    except InvalidJson:
        return None
    if not isinstance(config, dict):
        return None
    for part in (config, *config.values()):
        for key in _KEYS if isinstance(part, dict) else ():
            if _BITS.get(plain_dtype(part.get(key)), 0) > _BITS[dtype]:
                part[key] = dtype
    if not any(key in config for key in _KEYS):
        config["dtype"] = dtype
    stated = next(config[key] for key in _KEYS if key in config)
    return json.dumps(config, indent=2).encode() + b"\n", plain_dtype(stated)
