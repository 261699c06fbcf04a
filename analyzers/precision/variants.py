"""Variants: a name and settings, from the presets or written as ``name: key=value,...``."""

import re
from typing import Any, Literal, Self, get_args

from pydantic import ValidationError, field_validator, model_validator

from analyzers.core.records import Record
from analyzers.core.request import request_error

Dtype = Literal["fp32", "tf32", "bf16", "fp16"]
Part = Literal["residual", "lm_head", "norms", "router", "softmax"]
Implementation = Literal["eager", "sdpa", "flash"]
Quantization = Literal["int8", "fp8", "mxfp4", "fp8_tensor"]
Rounded = Literal["loaded", "all"]

PARTS: tuple[Part, ...] = get_args(Part)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}", re.ASCII)
_KEYS = ("dtype", "fp32", "autocast", "attention", "reductions", "weights", "round")


class Settings(Record):
    """Settings in which a variant differs from the reference.

    dtype: of weights and computation, as ``from_pretrained(dtype=...)`` loads the model: it keeps some parameters and buffers in fp32.
    "tf32": fp32 tensors whose matrix products may round their operands to TF32 (on a GPU).
    autocast: weights stay in fp32 and torch.autocast chooses the operations that run in ``dtype``.
    fp32: parts kept in fp32, their weights included: residual (the residual stream), lm_head (also where its weights are tied to the
    embeddings, which are rounded nevertheless), norms, router (of experts), softmax (attention between its projections: rotary embeddings,
    scores, softmax, weighted sum of values).
    attention: the implementation; null for that of the reference. reduced_reductions: a GPU may accumulate 16-bit matrix products in 16
    bits, torch's default. weights: fake quantization of the layers' linear maps (`quantization.fake_quantized`); null for none.
    round: "all" also rounds the parameters that transformers keeps in fp32.
    """

    dtype: Dtype = "fp32"
    autocast: bool = False
    fp32: tuple[Part, ...] = ()
    attention: Implementation | None = None
    reduced_reductions: bool = True
    weights: Quantization | None = None
    round: Rounded = "loaded"

    @field_validator("fp32")
    @classmethod
    def _in_order(cls, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        return tuple(part for part in PARTS if part in parts)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        narrow = self.dtype in ("bf16", "fp16")
        if self.autocast and not narrow:
            raise ValueError(f"autocast is to bf16 or fp16, not to {self.dtype}")
        if self.fp32 and not narrow:
            raise ValueError(f"parts in fp32 are for variants in bf16 or fp16: {self.dtype} already runs in fp32")
        if self.round == "all" and (self.autocast or not narrow):
            raise ValueError("round=all is for weights in bf16 or fp16")
        if self.attention == "flash" and not narrow:
            raise ValueError(f"flash attention is for bf16 and fp16, not for {self.dtype}")
        return self


def _preset(dtype: Dtype, *parts: Part, **others: Any) -> Settings:
    return Settings(dtype=dtype, fp32=parts, **others)


# max_precision is residual stream and head in fp32, the setting published under this name.
_PRESETS: dict[str, tuple[str, Settings]] = {
    "fp32": ("the reference itself, as a check: all errors are 0", Settings()),
    "tf32": ("fp32 tensors; a GPU may compute matrix products in TF32", Settings(dtype="tf32")),
    "bf16": ("everything in bf16", _preset("bf16")),
    "bf16_fp32_lm_head": ("bf16, LM head in fp32", _preset("bf16", "lm_head")),
    "bf16_fp32_residual": ("bf16, residual stream in fp32", _preset("bf16", "residual")),
    "bf16_fp32_norms": ("bf16, norms in fp32", _preset("bf16", "norms")),
    "bf16_fp32_softmax": ("bf16, attention in fp32 except for its projections", _preset("bf16", "softmax")),
    "bf16_fp32_router": ("bf16, router of experts in fp32", _preset("bf16", "router")),
    "bf16_max_precision": (
        "bf16, residual stream and LM head in fp32 (the published setting of this name)",
        _preset("bf16", "residual", "lm_head"),
    ),
    "bf16_fp32_all_parts": (
        "bf16 linear layers and embeddings, everything else in fp32, full-precision reductions",
        _preset("bf16", *PARTS, reduced_reductions=False),
    ),
    "bf16_autocast": ("mixed-precision training: fp32 weights under torch.autocast to bf16", _preset("bf16", autocast=True)),
    "bf16_eager": ("bf16 with eager attention", _preset("bf16", attention="eager")),
    "bf16_int8": ("bf16 with the layers' linear weights quantized to int8", _preset("bf16", weights="int8")),
    "bf16_fp8": ("bf16 with the layers' linear weights quantized to fp8", _preset("bf16", weights="fp8")),
    "bf16_mxfp4": ("bf16 with the layers' linear weights quantized to MXFP4", _preset("bf16", weights="mxfp4")),
    "fp16": ("everything in fp16, with a loss scale", _preset("fp16")),
    "fp16_fp32_lm_head": ("fp16, LM head in fp32", _preset("fp16", "lm_head")),
    "fp16_fp32_residual": ("fp16, residual stream in fp32", _preset("fp16", "residual")),
    "fp16_max_precision": ("fp16, residual stream and LM head in fp32", _preset("fp16", "residual", "lm_head")),
    "fp16_fp32_all_parts": (
        "fp16 linear layers and embeddings, everything else in fp32, full-precision reductions",
        _preset("fp16", *PARTS, reduced_reductions=False),
    ),
    "fp16_autocast": ("mixed-precision training: fp32 weights under torch.autocast to fp16", _preset("fp16", autocast=True)),
}
PRESETS = {name: settings for name, (_, settings) in _PRESETS.items()}
ABOUT = {name: about for name, (about, _) in _PRESETS.items()}
"""What each preset is, as a phrase."""

DEFAULT = ("bf16", "bf16_fp32_lm_head", "bf16_fp32_residual", "bf16_max_precision", "fp16")


def parse_variant(text: str) -> tuple[str, Settings]:
    """A preset's name, or ``name: key=value,...``, for example ``mine: dtype=bf16, fp32=residual+lm_head, attention=eager``.

    Keys: dtype, fp32 (parts joined by +), autocast (true or false), attention, reductions (full or reduced), weights, round (loaded or
    all).
    Raises ValueError, which lists the valid names.
    """
    name, colon, definition = (part.strip() for part in text.partition(":"))
    if not colon and name in PRESETS:
        return name, PRESETS[name]
    if not colon:
        raise ValueError(
            f"there is no variant {name[:40]!r}; presets are {', '.join(PRESETS)}, and your own variants are written as "
            "'name: key=value, key=value'"
        )
    if not _NAME.fullmatch(name):
        raise ValueError(f"the name of a variant has 1 to 64 letters, digits and _ . + -, and begins with a letter or digit: {name[:40]!r}")
    given: dict[str, Any] = {}
    for setting in filter(None, map(str.strip, definition.split(","))):
        key, _, value = (part.strip() for part in setting.partition("="))
        if key not in _KEYS or key in given or not value:
            raise ValueError(f"variant {name}: {setting[:40]!r} is not a setting, or is one twice; settings are {', '.join(_KEYS)}")
        given[key] = value
    if not given:
        raise ValueError(f"variant {name} has no settings: write for example '{name}: dtype=bf16, fp32=residual'")
    if "fp32" in given:
        given["fp32"] = tuple(part.strip() for part in given["fp32"].split("+"))
    if "reductions" in given:
        given["reduced_reductions"] = {"full": False, "reduced": True}.get(given["reductions"], given["reductions"])
        del given["reductions"]
    try:
        return name, Settings(**given)
    except ValidationError as error:
        why = str(request_error(error)).removesuffix(".")
        raise ValueError(f"variant {name}: {why[:1].lower()}{why[1:]}") from None


def described(settings: Settings) -> str:
    """The settings as text: ``dtype=bf16, fp32=residual``."""
    parts = [f"dtype={settings.dtype}"]
    parts += ["autocast=true"] if settings.autocast else []
    parts += [f"fp32={'+'.join(settings.fp32)}"] if settings.fp32 else []
    parts += [f"attention={settings.attention}"] if settings.attention else []
    parts += [] if settings.reduced_reductions else ["reductions=full"]
    parts += [f"weights={settings.weights}"] if settings.weights else []
    parts += ["round=all"] if settings.round == "all" else []
    return ", ".join(parts)
