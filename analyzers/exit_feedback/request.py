"""The request of exit feedback. Field names are the JSON contract; fields may be added, never renamed."""

import json
import re
from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from analyzers import limits
from analyzers.exit_feedback.signals import METHODS, MethodName, TopkBy, rank_conflict
from analyzers.language_models.given_tokens import TokensRequest

# Raised whenever the same request would give another result.
ANALYSIS_VERSION = 3

_TRAINING_SEEDS = 3
# Limits of whole numbers: the smallest, and the name of the largest.
_LIMITS = {
    **dict.fromkeys(("rank", "rank_exact", "rank_tail", "k"), (1, "EXIT_SIZE")),
    "anchors": (1, "EXIT_TOKENS"),
    "seeds": (1, "EXIT_SEEDS"),
    "training_steps": (0, "EXIT_STEPS"),
    "samples": (1, "EXIT_SAMPLES"),
    "sequence_length": (8, "EXIT_LENGTH"),
    "tokens": (2, "EXIT_TOKENS"),
}


class ExitRequest(TokensRequest):
    """Which model, which signals, on what.

    methods: signals to measure, of `METHODS`. rank, rank_exact, rank_tail, k, topk_by, alpha, residual (lambda), mass_threshold, anchors:
    see `signals.HeadSettings`, which has the defaults of those that are None; anchors are 64 by default, at most half the width.
    seeds: draws of random codes, from ``seed`` on, that the spread is taken over. sweep: also measure other ranks, ks and anchors.
    layers: of the logit lens: "auto" (up to six, evenly spread), "all", "final", or numbers and ranges such as "0,4-6", counted from 0.
    training_steps: of the small transformer under each signal, with the first three of ``seeds``; 0 skips training.
    data: "builtin", the id of a Hub dataset, or where local paths are allowed a file of instruction data; token_ids with answer_starts
    (`TokensRequest`): given here instead, which leaves out training, whose text needs a tokenizer. samples: how many, the first
    ones; sequence_length: tokens after which a sample is truncated; tokens: the most answer tokens that are measured.
    seed: of random codes, anchors, the choice of tokens where there are more, the small transformer's weights and its batches.
    """

    methods: tuple[MethodName, ...] = METHODS
    rank: int | None = Field(default=None, strict=True)
    rank_exact: int | None = Field(default=None, strict=True)
    rank_tail: int | None = Field(default=None, strict=True)
    k: int | None = Field(default=None, strict=True)
    anchors: int | None = Field(default=None, strict=True)
    topk_by: TopkBy = "value"
    alpha: float = Field(default=1.0, gt=0, le=1e6, strict=True)
    residual: float = Field(default=0.1, ge=0, le=1e6, strict=True)
    mass_threshold: float = Field(default=0.95, ge=0, le=1, strict=True)
    seeds: int = Field(default=8, strict=True)
    sweep: bool = True
    layers: str = "auto"
    training_steps: int = Field(default=30, strict=True)
    data: str = Field(default="builtin", min_length=1, max_length=limits.REFERENCE_LENGTH)
    samples: int = Field(default=32, strict=True)
    sequence_length: int = Field(default=256, strict=True)
    tokens: int = Field(default=512, strict=True)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    seed: int = Field(default=0, ge=0, lt=2**62, strict=True)

    @property
    def training_seeds(self) -> int:
        """How many of the seeds the small transformer is trained with, under each signal."""
        return min(_TRAINING_SEEDS, self.seeds)

    @field_validator("methods")
    @classmethod
    def _each_once(cls, methods: tuple[MethodName, ...]) -> tuple[MethodName, ...]:
        if not methods:
            raise ValueError(f"methods: name at least one of {', '.join(METHODS)}")
        twice = next((name for name in methods if methods.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"methods: {twice} is named twice")
        return methods

    @field_validator(*_LIMITS)
    @classmethod
    def _in_range(cls, value: int | None, info: ValidationInfo) -> int | None:
        least, limit = _LIMITS[str(info.field_name)]
        most = getattr(limits, limit)
        if value is not None and not least <= value <= most:
            instead = f", not {value:,}" if value.bit_length() <= 64 else ""
            raise ValueError(f"{info.field_name} must be from {least} to {most:,} (MANTISSA_{limit}){instead}")
        return value

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

    @model_validator(mode="after")
    def _ranks_fit_together(self) -> Self:
        if "hybrid" in self.methods and (conflict := rank_conflict(self.rank, self.rank_exact, self.rank_tail)):
            raise ValueError(conflict)
        if self.token_ids and (self.data != "builtin" or self.training_steps):
            raise ValueError("token_ids take the place of data, and training needs text: leave out data, and give training_steps=0")
        return self
