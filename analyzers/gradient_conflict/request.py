"""The request of gradient conflict. Field names are the JSON contract; fields may be added, never renamed."""

import json
import re
from typing import Literal

from pydantic import Field, field_validator, model_validator

from analyzers import limits
from analyzers.base import Data
from analyzers.language_models.given_tokens import TokensRequest
from analyzers.language_models.row_choice import Choice
from analyzers.language_models.templates import Template

Selection = Literal["gate", "up", "abs-up", "product", "abs-product"]

# Raised whenever the same request would give another result.
ANALYSIS_VERSION = 2

FFN_BLOCKS = ("gate", "up", "down")
COMBINED_BLOCKS = {"gate_up": ("gate", "up"), "gate_down": ("gate", "down"), "up_down": ("up", "down")}
"""Two blocks of a gated FFN as one gradient, by the field of the report. Without a gate, up and down are the whole gradient."""
TOPK_OPTIONS = ("topk", "topk_share", "topk_layers", "select")
"""Fields of the request that concern a top-k FFN alone."""
ATTENTION_BLOCKS = ("q", "q_a", "q_b", "g", "k", "v", "kv_a", "kv_b", "o")


class TextPair(Data):
    """One instruction with its answer. input: the text that the instruction is about, may be empty."""

    instruction: str = Field(min_length=1, max_length=limits.PAIR_CHARACTERS)
    input: str = Field(default="", max_length=limits.PAIR_CHARACTERS)
    output: str = Field(min_length=1, max_length=limits.PAIR_CHARACTERS)


class ConflictRequest(TokensRequest):
    """Which model, on what text, and which gradients.

    data: "builtin", the id of a Hub dataset, or where local paths are allowed a .jsonl, .json or .parquet file; pairs, or token_ids with
    answer_starts (`TokensRequest`): given here instead.
    samples: how many. choice: which, a "random" choice among all rows of the data by ``seed`` or the "first" (`row_choice`).
    template: how instruction and answer are laid out (`templates`). max_length: tokens after which a sample is truncated.
    loss: of a sample, the "mean" or the "sum" over its answer tokens.
    gamma: a pair conflicts where its cosine is smaller. floor: smallest norm that counts, in medians of the nonzero norms of all units
    of the layer. epsilon: only norms above it count, in the units of the loss's gradients.
    unit: "ffn" neurons or rows of "attention" projections. ffn: "topk" measures both the original and the FFN in which each token keeps
    only its largest neurons by ``select``: the share ``topk`` of the width or, if ``topk_share`` is given, the smallest set that covers
    that share of the sum of |score|; in ``topk_layers``: "last", "all", one number or a range "A-B" (both included).
    weights: also measure each weight. checkpointing: recompute activations in the backward pass: less memory, more time; also done
    where there is too little memory to keep them.
    seed: of the choice of samples, and of halves and batches of samples.
    """

    data: str = Field(default="builtin", min_length=1, max_length=limits.REFERENCE_LENGTH)
    pairs: tuple[TextPair, ...] = ()
    samples: int = Field(default=50, strict=True)
    choice: Choice = "random"
    template: Template = "auto"
    max_length: int = Field(default=512, strict=True)
    loss: Literal["mean", "sum"] = "mean"
    gamma: float = Field(default=0.0, ge=-1, le=1)
    floor: float = Field(default=0.0, ge=0, le=1e6)
    epsilon: float = Field(default=0.0, ge=0, le=1e30)
    unit: Literal["ffn", "attention"] = "ffn"
    ffn: Literal["original", "topk"] = "original"
    topk: float = Field(default=0.125, gt=0, le=1)
    topk_share: float | None = Field(default=None, gt=0, le=1)
    topk_layers: str = "last"
    select: Selection = "gate"
    weights: bool = True
    attention: Literal["sdpa", "eager"] = "sdpa"
    checkpointing: bool = False
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    seed: int = Field(default=0, ge=0, lt=2**63, strict=True)

    @field_validator("samples")
    @classmethod
    def _samples_in_range(cls, samples: int) -> int:
        if not 2 <= samples <= limits.CONFLICT_SAMPLES:
            raise ValueError(
                f"conflict is between samples: from 2 to {limits.CONFLICT_SAMPLES} of them (MANTISSA_CONFLICT_SAMPLES), not {samples:,}"
            )
        return samples

    @field_validator("max_length")
    @classmethod
    def _length_in_range(cls, length: int) -> int:
        if not 8 <= length <= limits.CONFLICT_TOKENS:
            raise ValueError(f"a sample may have 8 to {limits.CONFLICT_TOKENS:,} tokens (MANTISSA_CONFLICT_TOKENS), not {length:,}")
        return length

    @field_validator("pairs")
    @classmethod
    def _not_too_many_pairs(cls, pairs: tuple[TextPair, ...]) -> tuple[TextPair, ...]:
        if len(pairs) == 1 or len(pairs) > limits.CONFLICT_SAMPLES:
            raise ValueError(f"conflict is between samples: give from 2 to {limits.CONFLICT_SAMPLES} pairs, not {len(pairs):,}")
        return pairs

    @field_validator("topk_layers")
    @classmethod
    def _known_layers(cls, layers: str) -> str:
        if not re.fullmatch(r"last|all|[0-9]{1,4}|[0-9]{1,4}-[0-9]{1,4}", layers):
            raise ValueError(f"topk_layers must be last, all, a number or a range such as 0-3, not {json.dumps(layers[:40])}")
        return layers

    @model_validator(mode="after")
    def _fits_together(self) -> "ConflictRequest":
        if (self.pairs or self.token_ids) and self.data != "builtin":
            raise ValueError("give either pairs or the name of a dataset, not both")
        if len(self.token_ids) == 1 or (self.pairs and self.token_ids):
            raise ValueError("conflict is between samples: give at least 2 of token_ids, and no pairs with them")
        if self.ffn == "topk" and self.unit == "attention":
            raise ValueError("a top-k FFN is measured on its neurons: choose the unit ffn")
        if "-" in self.topk_layers and int(self.topk_layers.split("-")[0]) > int(self.topk_layers.split("-")[1]):
            raise ValueError(f"the range of layers {self.topk_layers} ends before it begins")
        return self
