"""Defines what all requests to run a model share: the model, and samples given as token ids, which need no tokenizer."""

import hashlib
from collections.abc import Set
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

from pydantic import Field, field_validator, model_validator

from analyzers.core import limits
from analyzers.core.errors import InvalidData
from analyzers.core.options import Option
from analyzers.core.request import PASTED, PASTED_DATASET, REFERENCE, Request

if TYPE_CHECKING:  # a request must import neither torch nor the readers of weights
    from analyzers.language_models.instruction_data import Instructions
    from analyzers.language_models.load import OpenModel
    from analyzers.language_models.prompts import Encoded

SOURCE = "tokens"
"""Name that reports give to the source of such samples."""

# Types of fields that several requests share.
DataName = Annotated[
    str,
    PASTED_DATASET,
    Field(
        min_length=1,
        max_length=limits.REFERENCE_LENGTH,
        description="builtin, or the id of a dataset on the Hub; on the command line also FILE.jsonl, .json or .parquet.",
    ),
]
Attention = Annotated[Literal["sdpa", "eager"], Field(description="Implementation of attention.")]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    Field(description="Run the model in this type; auto: float32 on a CPU, as stored on a GPU."),
    Option("Run the model in", names=("automatic", "float32", "bfloat16", "float16")),
]
Seed = Annotated[int, Field(ge=0, lt=2**63, strict=True)]


class ModelRequest(Request):
    """A request to run ``model``, whose samples may be given as tokens instead of data.

    token_ids: one list per sample, used unchanged. answer_starts: index of the first token with a loss in each sample; by default 1, so
    that every token but the first has a loss.
    """

    token_ids: tuple[tuple[int, ...], ...] = Field(default=(), max_length=limits.CONFLICT_SAMPLES)
    answer_starts: tuple[int, ...] = ()
    model: Annotated[str, PASTED] = Field(description=f"A model: {REFERENCE}.")
    device: Annotated[Literal["auto", "cpu", "cuda"], Option(site=False)] = Field(
        default="auto", description="Where to run; auto: a GPU if there is one."
    )

    @field_validator("token_ids")
    @classmethod
    def _usable(cls, token_ids: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        for number, sample in enumerate(token_ids):
            if not 2 <= len(sample) <= limits.CONFLICT_TOKENS:
                most = f"{limits.CONFLICT_TOKENS:,} tokens"
                raise ValueError(f"sample {number} of token_ids must have from 2 to {most}, not {len(sample):,}")
            if min(sample) < 0:
                raise ValueError(f"sample {number} of token_ids holds {min(sample)}, and token ids are not negative")
        return token_ids

    @model_validator(mode="after")
    def _starts_fit(self) -> Self:
        if self.answer_starts and len(self.answer_starts) != len(self.token_ids):
            raise ValueError(
                f"answer_starts must be one per sample: there are {len(self.answer_starts)} for {len(self.token_ids)} of token_ids"
            )
        for number, (start, sample) in enumerate(zip(self.answer_starts, self.token_ids, strict=False)):
            if not 1 <= start < len(sample):
                raise ValueError(f"the answer of sample {number} must start at 1 to {len(sample) - 1}, not {start}")
        return self

    def canonical(self, opened: "OpenModel", data: str | None) -> Self:
        """Return the request as a report states it: with the opened model, and the name of the ``data`` unless tokens were given."""
        named = {"model": opened.name}
        return self.model_copy(update=named if data is None else named | {"data": data})

    def resolved(self, opened: "OpenModel", data: str, commit: str | None, options: Set[str]) -> dict[str, Any]:
        """Return what determines a report: commits in place of names, and those ``options`` that differ from their default."""
        named: dict[str, Any] = {"model": opened.ref, "commit": opened.commit, "data": data, "data_commit": commit}
        named |= self.model_dump(mode="json", include=set(options), exclude_defaults=True)
        named |= {"dtype": opened.dtype} if opened.dtype != "float32" else {}
        return named | ({"device": opened.device} if opened.device != "cpu" else {})

    def encoded(self, opened: "OpenModel") -> "list[Encoded]":
        """Return the given samples. Raises InvalidData for a token without an embedding."""
        from analyzers.language_models.prompts import Encoded

        known = int(cast(Any, opened.outline).get_input_embeddings().weight.shape[0])
        starts = self.answer_starts or (1,) * len(self.token_ids)
        for number, sample in enumerate(self.token_ids):
            if max(sample) >= known:
                raise InvalidData(
                    f"Sample {number} of token_ids holds {max(sample):,}, and the last embedding of this model is {known - 1:,}."
                )
        return [Encoded(sample, start, "", False) for sample, start in zip(self.token_ids, starts, strict=True)]

    def instructions(self) -> "Instructions":
        """Return the source that represents the given tokens in a report, without pairs of text."""
        from analyzers.language_models.instruction_data import Instructions

        digest = hashlib.sha256(repr((self.token_ids, self.answer_starts)).encode()).hexdigest()
        count = len(self.token_ids)
        return Instructions((), SOURCE, digest, tuple(range(count)), count)
