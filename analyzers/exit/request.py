"""The request of exit feedback. Field names are the JSON contract; fields may be added, never renamed."""

from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from analyzers.core import limits
from analyzers.core.options import Option
from analyzers.exit.signals import ANCHORS, GOLD_RANK, METHODS, RANK, RANK_EXACT, K, MethodName, TopkBy, rank_conflict
from analyzers.language_models.model_request import DataName, Dtype, ModelRequest, Seed

# Incremented whenever the same request would give another result.
ANALYSIS_VERSION = 10


class ExitRequest(ModelRequest):
    """A model, the signals to measure, and a text.

    The signals' settings are defined in `signals.HeadSettings`. token_ids with answer_starts (`ModelRequest`) replace data.
    """

    methods: Annotated[
        tuple[MethodName, ...],
        Option(
            "Signals",
            "Each replaces the gradient that backpropagation sends into the model; svd and true_rows are ceilings. "
            "Point at a name, or tap it, for its meaning.",
        ),
    ] = Field(default=METHODS, description=f"Names of the signals to measure (default all: {', '.join(METHODS)}).")
    data: DataName = "builtin"
    rank: int | None = Field(
        default=None,
        strict=True,
        ge=1,
        le=65_536,
        description=f"Rank of random codes and svd (default {RANK}, of parallel_gold and parallel_topmass {GOLD_RANK}; at most half the "
        "width).",
    )
    k: Annotated[int | None, Option("k")] = Field(
        default=None, strict=True, ge=1, le=65_536, description=f"Vocabulary rows of hybrid and true_rows for each token (default {K})."
    )
    anchors: int | None = Field(
        default=None,
        strict=True,
        ge=1,
        le=limits.EXIT_TOKENS,
        description=f"Anchor hidden states of span (default {ANCHORS}; at most half the width).",
    )
    rank_exact: Annotated[int | None, Option("Exact rank")] = Field(
        default=None,
        strict=True,
        ge=1,
        le=65_536,
        description=f"Columns of hybrid's rank that hold exact codes (default {RANK_EXACT}; at most a quarter of the rank).",
    )
    topk_by: Annotated[TopkBy, Option("Top-k by")] = Field(
        default="value", description="How hybrid ranks logit gradients: by value, positive ones first, or by magnitude."
    )
    alpha: float = Field(default=1.0, gt=0, le=1e6, strict=True, description="Scale of dense and hybrid.")
    residual: Annotated[float, Option("Lambda", alias="--lambda")] = Field(
        default=0.1,
        ge=0,
        le=1e6,
        strict=True,
        description="lambda, the weight of the codes orthogonal to the hidden state in parallel_gold and parallel_topmass.",
    )
    mass_threshold: float = Field(
        default=0.95, ge=0, le=1, strict=True, description="Probability mass of the tokens that parallel_topmass codes."
    )
    seeds: int = Field(
        default=8,
        strict=True,
        ge=1,
        le=limits.EXIT_SEEDS,
        description=f"Draws of random codes for the spread over seeds, up to {limits.EXIT_SEEDS}.",
    )
    sweep: Annotated[bool, Option("Sweep other ranks, ks and anchors", off="skip other ranks, ks and anchors: faster")] = Field(
        default=True, description="Also measure other ranks, ks and anchors, which takes longer (default true)."
    )
    samples: int = Field(
        default=32,
        strict=True,
        ge=1,
        le=limits.EXIT_SAMPLES,
        description=f"Number of samples, from 1 to {limits.EXIT_SAMPLES}, taken from the start of the data.",
    )
    sequence_length: Annotated[int, Option("Maximum length")] = Field(
        default=256, strict=True, ge=8, le=8_192, description="Truncate samples to this many tokens."
    )
    tokens: Annotated[int, Option("Measured tokens")] = Field(
        default=512, strict=True, ge=2, le=limits.EXIT_TOKENS, description="Maximum number of answer tokens to measure, chosen at random."
    )
    dtype: Dtype = "auto"
    seed: Seed = Field(default=0, description="Seed of codes, anchors and the choice of tokens.")

    @field_validator("methods")
    @classmethod
    def _each_once(cls, methods: tuple[MethodName, ...]) -> tuple[MethodName, ...]:
        if not methods:
            raise ValueError(f"methods: name at least one of {', '.join(METHODS)}")
        twice = next((name for name in methods if methods.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"methods: {twice} is named twice")
        return methods

    @model_validator(mode="after")
    def _ranks_fit_together(self) -> Self:
        if "hybrid" in self.methods and (conflict := rank_conflict(self.rank, self.rank_exact)):
            raise ValueError(conflict)
        if self.token_ids and self.data != "builtin":
            raise ValueError("token_ids take the place of data: leave out data")
        return self
