"""What is asked of exit feedback. Field names are the JSON contract; fields may be added, never renamed."""

import json
import re
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from analyzers import limits
from analyzers.base import Request

MethodName = Literal["dense", "hybrid", "parallel", "parallel_gold", "parallel_topmass", "span", "svd", "true_rows"]
METHODS: tuple[MethodName, ...] = ("dense", "hybrid", "parallel", "parallel_gold", "parallel_topmass", "span", "svd", "true_rows")
RANDOM: tuple[MethodName, ...] = ("dense", "hybrid", "parallel_gold", "parallel_topmass")
"""Methods with random codes: what they give depends on the seed."""
CEILINGS: tuple[MethodName, ...] = ("svd", "true_rows")
"""Methods that read the head's weight on the way back, as backpropagation does: what less of it could at best bring."""


class ExitRequest(Request):
    """Which model, which signals, on what.

    model: a reference (``org/name``, ``name``, either with ``@revision``; ``sample:NAME``; a local path where allowed).
    methods: signals to measure, of `METHODS`. rank: of random codes and of the svd; k: rows taken for themselves; anchors: hidden states
    that span; buckets: of the sketch of what the k rows leave (hybrid). Left out they are 128, 16, 64 and 512, or less where the model is
    small (see `settings`). residual: weight lambda of the random-code residual beside the parallel component.
    seeds: how many draws of random codes, from ``seed`` on, the spread is taken over. sweep: also other ranks, ks and anchors.
    layers: of the logit lens: "auto" (up to six, evenly spread), "all", "final", or numbers and ranges such as "0,4-6", counted from 0.
    training_steps: of the small trunk under each signal; 0 leaves training out.
    data: "builtin", the id of a Hub dataset, or where local paths are allowed a file of instruction data. samples: how many, the first
    ones; sequence_length: tokens after which a sample is cut off; tokens: the most tokens of answers that are measured.
    seed: of random codes, anchors, the tokens drawn where there are more, the trunk's weights and its batches.
    """

    model: str
    methods: tuple[MethodName, ...] = METHODS
    rank: int | None = Field(default=None, strict=True)
    k: int | None = Field(default=None, strict=True)
    anchors: int | None = Field(default=None, strict=True)
    buckets: int | None = Field(default=None, strict=True)
    residual: float = Field(default=1.0, ge=0, le=1e6)
    seeds: int = Field(default=8, strict=True)
    sweep: bool = True
    layers: str = "auto"
    training_steps: int = Field(default=80, strict=True)
    data: str = Field(default="builtin", min_length=1, max_length=limits.REFERENCE_LENGTH)
    samples: int = Field(default=32, strict=True)
    sequence_length: int = Field(default=256, strict=True)
    tokens: int = Field(default=512, strict=True)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    seed: int = Field(default=0, ge=0, lt=2**62, strict=True)

    @field_validator("methods")
    @classmethod
    def _each_once(cls, methods: tuple[MethodName, ...]) -> tuple[MethodName, ...]:
        if not methods:
            raise ValueError(f"methods: name at least one of {', '.join(METHODS)}")
        twice = next((name for name in methods if methods.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"methods: {twice} is named twice")
        return methods

    @field_validator("rank", "k", "buckets")
    @classmethod
    def _positive(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and not 1 <= value <= limits.EXIT_SIZE:
            raise ValueError(f"{info.field_name} must be from 1 to {limits.EXIT_SIZE:,} (MANTISSA_EXIT_SIZE), not {value:,}")
        return value

    @field_validator("anchors")
    @classmethod
    def _some_anchors(cls, anchors: int | None) -> int | None:
        if anchors is not None and anchors < 1:
            raise ValueError(f"anchors must be at least 1, not {anchors:,}: without any there is nothing to project on")
        if anchors is not None and anchors > limits.EXIT_TOKENS:
            raise ValueError(f"anchors must be at most {limits.EXIT_TOKENS:,} (MANTISSA_EXIT_TOKENS), not {anchors:,}")
        return anchors

    @field_validator("seeds")
    @classmethod
    def _seeds_in_range(cls, seeds: int) -> int:
        if not 1 <= seeds <= limits.EXIT_SEEDS:
            raise ValueError(f"seeds must be from 1 to {limits.EXIT_SEEDS} (MANTISSA_EXIT_SEEDS), not {seeds:,}")
        return seeds

    @field_validator("training_steps")
    @classmethod
    def _steps_in_range(cls, steps: int) -> int:
        if not 0 <= steps <= limits.EXIT_STEPS:
            raise ValueError(f"training_steps must be from 0 (none) to {limits.EXIT_STEPS:,} (MANTISSA_EXIT_STEPS), not {steps:,}")
        return steps

    @field_validator("samples")
    @classmethod
    def _samples_in_range(cls, samples: int) -> int:
        if not 1 <= samples <= limits.EXIT_SAMPLES:
            raise ValueError(f"samples must be from 1 to {limits.EXIT_SAMPLES} (MANTISSA_EXIT_SAMPLES), not {samples:,}")
        return samples

    @field_validator("sequence_length")
    @classmethod
    def _length_in_range(cls, length: int) -> int:
        if not 8 <= length <= limits.EXIT_LENGTH:
            raise ValueError(f"sequence_length must be from 8 to {limits.EXIT_LENGTH:,} tokens (MANTISSA_EXIT_LENGTH), not {length:,}")
        return length

    @field_validator("tokens")
    @classmethod
    def _tokens_in_range(cls, tokens: int) -> int:
        if not 2 <= tokens <= limits.EXIT_TOKENS:
            raise ValueError(f"tokens must be from 2 to {limits.EXIT_TOKENS:,} (MANTISSA_EXIT_TOKENS), not {tokens:,}")
        return tokens

    @field_validator("layers")
    @classmethod
    def _known_layers(cls, layers: str) -> str:
        if not re.fullmatch(r"auto|all|final|[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?){0,63}", layers):
            raise ValueError(f"layers must be auto, all, final, or numbers and ranges such as 0,4-6, not {json.dumps(layers[:40])}")
        for part in layers.split(","):
            low, _, high = part.partition("-")
            if high and int(low) > int(high):
                raise ValueError(f"the range of layers {part} ends before it begins")
        return layers
