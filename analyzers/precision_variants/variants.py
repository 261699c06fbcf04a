"""What a variant is: a name and settings, chosen from presets or written as ``name: key=value,...``."""

import re
from difflib import get_close_matches
from typing import Any, Literal, Self, get_args

from pydantic import model_validator

from analyzers.base import Data

Dtype = Literal["fp32", "tf32", "bf16", "fp16"]
Part = Literal["residual", "lm_head", "norms", "router", "softmax"]
Implementation = Literal["eager", "sdpa", "flash"]
Quantization = Literal["int8", "fp8", "mxfp4"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}", re.ASCII)
_KEYS = ("dtype", "fp32", "autocast", "attention", "reductions", "weights")


class Settings(Data):
    """How a variant runs. What is not said is as in the reference.

    dtype: of weights and computation. "tf32" are fp32 tensors whose matrix products may round their factors to 10 bits (on a GPU).
    autocast: weights stay in fp32 and torch.autocast chooses which operations run in ``dtype``, instead of all of them.
    fp32: parts kept in fp32, in the order residual (the sum that runs through the layers), lm_head (also where its weights are tied to
    the embeddings, which are rounded all the same), norms, router (of experts), softmax (attention between its projections: rotation,
    scores, softmax, weighted values). Their weights are not rounded.
    attention: the implementation; null is that of the reference. reduced_reductions: let a GPU add up products of 16-bit matrices in 16
    bits, torch's own default. weights: those of the layers' linear maps, quantized and back, as torchao does it; null for as stored.
    """

    dtype: Dtype = "fp32"
    autocast: bool = False
    fp32: tuple[Part, ...] = ()
    attention: Implementation | None = None
    reduced_reductions: bool = True
    weights: Quantization | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        narrow = self.dtype in ("bf16", "fp16")
        if self.autocast and not narrow:
            raise ValueError(f"autocast is to bf16 or fp16, not to {self.dtype}")
        if self.fp32 and not narrow:
            raise ValueError(f"parts in fp32 are for variants in bf16 or fp16: in {self.dtype} there is nothing to keep")
        if self.attention == "flash" and not narrow:
            raise ValueError(f"flash attention is for bf16 and fp16, not for {self.dtype}")
        return self


def _preset(dtype: Dtype, *parts: Part, **others: Any) -> Settings:
    return Settings(dtype=dtype, fp32=parts, **others)


PARTS: tuple[Part, ...] = get_args(Part)

PRESETS: dict[str, Settings] = {
    "fp32": Settings(),
    "tf32": Settings(dtype="tf32"),
    "bf16": _preset("bf16"),
    "bf16_fp32_lm_head": _preset("bf16", "lm_head"),
    "bf16_fp32_residual": _preset("bf16", "residual"),
    "bf16_fp32_norms": _preset("bf16", "norms"),
    "bf16_fp32_softmax": _preset("bf16", "softmax"),
    "bf16_fp32_router": _preset("bf16", "router"),
    "bf16_max_precision": _preset("bf16", *PARTS, reduced_reductions=False),
    "bf16_autocast": _preset("bf16", autocast=True),
    "bf16_eager": _preset("bf16", attention="eager"),
    "bf16_int8": _preset("bf16", weights="int8"),
    "bf16_fp8": _preset("bf16", weights="fp8"),
    "bf16_mxfp4": _preset("bf16", weights="mxfp4"),
    "fp16": _preset("fp16"),
    "fp16_fp32_lm_head": _preset("fp16", "lm_head"),
    "fp16_fp32_residual": _preset("fp16", "residual"),
    "fp16_max_precision": _preset("fp16", *PARTS, reduced_reductions=False),
    "fp16_autocast": _preset("fp16", autocast=True),
}

DEFAULT = ("bf16", "bf16_fp32_lm_head", "bf16_fp32_residual", "bf16_max_precision", "fp16")


def parse_variant(text: str) -> tuple[str, Settings]:
    """A preset's name, or ``name: key=value,...``, for example ``mine: dtype=bf16, fp32=residual+lm_head, attention=eager``.

    Keys: dtype, fp32 (parts joined by +), autocast (true or false), attention, reductions (full or reduced), weights.
    Raises ValueError with what is allowed and what may have been meant.
    """
    name, colon, rest = (part.strip() for part in text.partition(":"))
    if not colon:
        if name not in PRESETS:
            raise ValueError(
                f"there is no variant {_shown(name)}{_nearest(name, PRESETS)}; presets are {', '.join(PRESETS)}, and your own are written "
                "as 'name: key=value, key=value'"
            )
        return name, PRESETS[name]
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"the name of a variant has 1 to 64 letters, digits and _ . + -, and begins with one of the first two: {_shown(name)}"
        )
    asked: dict[str, Any] = {}
    for setting in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = (part.strip() for part in setting.partition("="))
        if key not in _KEYS:
            raise ValueError(f"variant {name} has no setting {_shown(key)}{_nearest(key, _KEYS)}; settings are {', '.join(_KEYS)}")
        if not equals or not value:
            raise ValueError(f"variant {name} needs a value for {key}: write {key}=...")
        field, value_of = _field(name, key, value)
        if field in asked:
            raise ValueError(f"variant {name} sets {key} twice")
        asked[field] = value_of
    if not asked:
        raise ValueError(f"variant {name} has no settings: write for example '{name}: dtype=bf16, fp32=residual'")
    try:
        return name, Settings(**asked)
    except ValueError as error:
        raise ValueError(f"variant {name}: {_reason(error)}") from None


def described(settings: Settings) -> str:
    """The settings as they are written: ``dtype=bf16, fp32=residual``."""
    said = [f"dtype={settings.dtype}"]
    said += ["autocast=true"] if settings.autocast else []
    said += [f"fp32={'+'.join(settings.fp32)}"] if settings.fp32 else []
    said += [f"attention={settings.attention}"] if settings.attention else []
    said += [] if settings.reduced_reductions else ["reductions=full"]
    said += [f"weights={settings.weights}"] if settings.weights else []
    return ", ".join(said)


def _field(name: str, key: str, value: str) -> tuple[str, Any]:
    """Name and value of the field that ``key=value`` sets."""
    if key == "fp32":
        chosen = [_one_of(name, key, part.strip(), PARTS) for part in value.split("+")]
        return key, tuple(part for part in PARTS if part in chosen)
    if key == "autocast":
        return key, _one_of(name, key, value.lower(), ("true", "false")) == "true"
    if key == "reductions":
        return "reduced_reductions", _one_of(name, key, value, ("full", "reduced")) == "reduced"
    kinds: dict[str, Any] = {"dtype": Dtype, "attention": Implementation, "weights": Quantization}
    return key, _one_of(name, key, value, get_args(kinds[key]))


def _one_of(name: str, key: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"variant {name}: {key} cannot be {_shown(value)}{_nearest(value, allowed)}; it is one of {', '.join(allowed)}")
    return value


def _nearest(text: str, allowed: Any) -> str:
    found = get_close_matches(text.lower()[:64], list(allowed), 1, 0.5)
    return f" (did you mean {found[0]}?)" if found else ""


def _shown(text: str) -> str:
    return repr(text[:40])


def _reason(error: ValueError) -> str:
    """What a settings' own check says, without pydantic's frame."""
    errors: Any = getattr(error, "errors", None)
    return str(errors(include_url=False)[0]["msg"]).removeprefix("Value error, ") if errors else str(error)
