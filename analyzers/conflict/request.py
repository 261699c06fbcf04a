"""The request of gradient conflict. Field names are the JSON contract."""

import json
import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from analyzers.core import limits
from analyzers.core.options import Option
from analyzers.language_models.data_rows import RowSelection
from analyzers.language_models.model_request import Attention, DataName, Dtype, ModelRequest, Seed
from analyzers.language_models.prompts import Template

Selection = Literal["gate", "up", "abs-up", "product", "abs-product"]

# Incremented whenever the same request would give another result.
ANALYSIS_VERSION = 9

TOPK_OPTIONS = ("topk", "topk_share", "topk_layers", "select")
"""Fields of the request that only a top-k FFN uses."""


class ConflictRequest(ModelRequest):
    """A model, a text, and the gradients to compare. token_ids with answer_starts (`ModelRequest`) replace data."""

    data: DataName = "builtin"
    samples: int = Field(
        default=50,
        ge=2,
        le=limits.CONFLICT_SAMPLES,
        strict=True,
        description=f"Number of samples of the data, from 2 to {limits.CONFLICT_SAMPLES}.",
    )
    max_length: Annotated[int, Option("Longest sample")] = Field(
        default=512, ge=8, le=limits.CONFLICT_TOKENS, strict=True, description="Truncate samples to this many tokens."
    )
    ffn: Annotated[
        Literal["original", "topk"],
        Option("FFN", names=("original", "compare with top-k")),
    ] = Field(
        default="original",
        description="topk: also measure a top-k FFN, in which each token keeps only its largest neurons, on the same samples.",
    )
    topk: Annotated[float, Option("k, as a share of the width", example="12.5%")] = Field(
        default=0.125, gt=0, le=1, description="With a top-k FFN: the share of the neurons that each token keeps."
    )
    topk_share: Annotated[float | None, Option("Or smallest set covering", example="90%")] = Field(
        default=None,
        gt=0,
        le=1,
        description="With a top-k FFN, instead of topk: keep the smallest set of neurons that covers this share of the sum of |score|.",
    )
    topk_layers: Annotated[str, Option("In layers")] = Field(
        default="last", description="Layers with a top-k FFN: last, all, a number or a range such as 0-3 (both included), counted from 0."
    )
    select: Annotated[Selection, Option("Rank neurons by", names=("gate", "up", "|up|", "gate x up", "|gate x up|"))] = Field(
        default="gate", description="Score that ranks the neurons of a top-k FFN."
    )
    loss: Annotated[Literal["mean", "sum"], Option("Loss of a sample")] = Field(
        default="mean", description="Loss of a sample: the mean or the sum over its answer tokens."
    )
    gamma: Annotated[float, Option("Conflict below")] = Field(
        default=0.0, ge=-1, le=1, description="A pair of samples conflicts if its cosine is below this."
    )
    weights: Annotated[bool, Option("Measure individual weights too", info="", off="do not measure individual weights: faster")] = Field(
        default=True, description="Also measure individual weights, which takes longer (default true)."
    )
    dtype: Dtype = "auto"
    attention: Attention = "sdpa"
    seed: Seed = Field(default=0, description="Seed of the choice of samples, and of their halves and batches.")
    choice: Annotated[RowSelection, Option("Which samples", names=("at random, by the seed", "the first"))] = Field(
        default="random", description="Which samples: random, chosen by seed among all rows, or the first rows."
    )
    template: Annotated[
        Template,
        Option(
            "Prompt template",
            "Automatic: the tokenizer's chat template if it has one.",
            names=("automatic", "plain", "Alpaca", "Alpaca, always with an input", "chat"),
            dropdown=True,
        ),
    ] = Field(
        default="auto",
        description="Prompt template: plain; alpaca (Stanford Alpaca); alpaca-input, its form with an input for every sample; chat, the "
        "tokenizer's own; auto: chat if the tokenizer has a chat template, else plain.",
    )

    @field_validator("topk_layers")
    @classmethod
    def _known_layers(cls, layers: str) -> str:
        if not re.fullmatch(r"last|all|[0-9]{1,4}|[0-9]{1,4}-[0-9]{1,4}", layers):
            raise ValueError(f"topk_layers must be last, all, a number or a range such as 0-3, not {json.dumps(layers[:40])}")
        return layers

    @model_validator(mode="after")
    def _fits_together(self) -> "ConflictRequest":
        if self.token_ids and (self.data != "builtin" or len(self.token_ids) == 1):
            raise ValueError("conflict is between samples: give at least 2 of token_ids, which take the place of data")
        if "-" in self.topk_layers and int(self.topk_layers.split("-")[0]) > int(self.topk_layers.split("-")[1]):
            raise ValueError(f"the range of layers {self.topk_layers} ends before it begins")
        return self
