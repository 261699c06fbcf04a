"""The request of precision variants. Field names are the JSON contract; fields may be added, never renamed."""

import json
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from analyzers import limits
from analyzers.errors import InvalidData
from analyzers.language_models.given_tokens import TokensRequest
from analyzers.precision_variants.variants import DEFAULT, Settings, parse_variant

Loss = Literal["ce", "gspo", "grpo"]

CLIP: dict[str, tuple[float, float]] = {"gspo": (3e-4, 4e-4), "grpo": (0.2, 0.2)}
"""Published clip ranges (below 1, above 1). GSPO: arXiv 2507.18071, section 5.1. The GRPO paper (arXiv 2402.03300) names no value; 0.2 is
that of PPO (arXiv 1707.06347), which its objective takes over."""

ADVANTAGE = 1_000_000
"""Largest |advantage|: larger ones would overflow gradients, whatever the weights."""

_ROUNDING = 1e-3  # a log-probability may be above 0 by this much
_SMALLEST = -10_000.0


def check_old_logprobs(rows: tuple[tuple[float, ...], ...]) -> None:
    """Raise ValueError for numbers that are not log-probabilities."""
    wrong = next((value for row in rows for value in row if not _SMALLEST <= value <= _ROUNDING), None)
    if wrong is not None:
        raise ValueError(f"log-probabilities are natural logarithms between {_SMALLEST:,.0f} and 0, not {wrong:g}")


def parse_old_logprobs(text: str, source: str = "old log-probabilities") -> tuple[tuple[float, ...], ...]:
    """JSON lines: one list of numbers per sequence, the log-probabilities of its tokens but the first. Raises InvalidData."""
    if len(text) > limits.PRECISION_CHARACTERS:
        raise InvalidData(f"{len(text):,} characters are more than {limits.PRECISION_CHARACTERS:,} (MANTISSA_PRECISION_CHARACTERS).")
    return tuple(_row(number, line, source) for number, line in enumerate(text.splitlines(), 1) if line.strip())


def written(rows: tuple[tuple[float, ...], ...]) -> str:
    """The same as JSON lines."""
    return "\n".join(json.dumps(row) for row in rows)


def _row(number: int, line: str, source: str) -> tuple[float, ...]:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, list) or not row or any(isinstance(value, bool) or not isinstance(value, int | float) for value in row):
        raise InvalidData(f"Line {number} of {source} is not a JSON list of numbers, such as [-0.12, -3.4].")
    try:
        return tuple(map(float, row))
    except OverflowError:
        raise InvalidData(f"Line {number} of {source} has a number that is too large.") from None


# Raised whenever the same request would give another result.
ANALYSIS_VERSION = 2


class PrecisionRequest(TokensRequest):
    """Which model, in which variants, on which tokens.

    variants: each the name of a preset or ``name: key=value,...`` (see `variants.parse_variant`).
    data: "builtin", "random" (tokens drawn uniformly from the vocabulary), the id of a Hub dataset, or where local paths are allowed a file
    of instruction data (.jsonl, .json, .parquet) or plain text (.txt); text, or token_ids, equally long rows (`TokensRequest`): instead of
    data.
    sequences, sequence_length: the text is cut into this many rows of this many tokens; every token but the first of a row is predicted.
    random_init: random weights as the architecture initializes them, instead of the checkpoint's.
    loss: "ce", the mean cross-entropy of the tokens, or a policy gradient: "gspo" (`losses.gspo`, one ratio per sequence) or "grpo"
    (`losses.grpo`, one ratio per token, without KL penalty). advantages: one per sequence; drawn from a normal distribution if empty.
    old_logprobs: for each sequence the log-probabilities (natural logarithm) of its predicted tokens under the policy that sampled them;
    if empty those of the reference, whose ratios are then 1. clip_low, clip_high: ratios are clipped to 1 - clip_low ... 1 + clip_high;
    null for the published range of the loss (`policy.CLIP`). 1 and 1e6 clip nothing.
    pre_rounded: compare each variant with a reference whose weights were rounded like the variant's, which leaves the rounding error of the
    computation alone. inside: also compare the outputs of the modules within each layer. attention: of the reference.
    seed: for random weights, tokens and advantages.
    """

    variants: tuple[str, ...] = DEFAULT
    data: str = Field(default="builtin", min_length=1, max_length=limits.REFERENCE_LENGTH)
    text: str | None = Field(default=None, max_length=limits.PRECISION_CHARACTERS)
    sequences: int = Field(default=2, strict=True)
    sequence_length: int = Field(default=512, strict=True)
    random_init: bool = False
    loss: Loss = "ce"
    advantages: tuple[float, ...] = ()
    old_logprobs: tuple[tuple[float, ...], ...] = ()
    clip_low: float | None = Field(default=None, ge=0, le=1)
    clip_high: float | None = Field(default=None, ge=0, le=1e6)
    pre_rounded: bool = False
    inside: bool = False
    attention: Literal["sdpa", "eager"] = "sdpa"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    seed: int = Field(default=0, ge=0, lt=2**63, strict=True)

    @field_validator("text")
    @classmethod
    def _not_blank(cls, text: str | None) -> str | None:
        return text if text is not None and text.strip() else None

    @field_validator("sequences")
    @classmethod
    def _sequences_in_range(cls, sequences: int) -> int:
        if not 1 <= sequences <= limits.PRECISION_SEQUENCES:
            raise ValueError(f"from 1 to {limits.PRECISION_SEQUENCES} sequences (MANTISSA_PRECISION_SEQUENCES), not {sequences:,}")
        return sequences

    @field_validator("sequence_length")
    @classmethod
    def _length_in_range(cls, length: int) -> int:
        if not 2 <= length <= limits.PRECISION_TOKENS:
            raise ValueError(f"a sequence may have 2 to {limits.PRECISION_TOKENS:,} tokens (MANTISSA_PRECISION_TOKENS), not {length:,}")
        return length

    @model_validator(mode="after")
    def _fits_together(self) -> "PrecisionRequest":
        if self.text is not None and self.data != "builtin":
            raise ValueError("give either a text or the name of data, not both")
        if self.token_ids and (self.text is not None or self.data != "builtin" or self.answer_starts):
            raise ValueError("token_ids take the place of text and data, and every token but the first of a row is predicted")
        if len({len(row) for row in self.token_ids}) > 1:
            raise ValueError("the rows of token_ids must be equally long, so that nothing is padded")
        if self.loss == "ce" and (self.advantages or self.old_logprobs or self.clip_low is not None or self.clip_high is not None):
            raise ValueError("advantages, old log-probabilities and clipping belong to the losses gspo and grpo")
        if self.advantages and len(self.advantages) != self.sequences:
            raise ValueError(f"each sequence needs one advantage: there are {self.sequences} and {len(self.advantages)}")
        if any(abs(advantage) > ADVANTAGE for advantage in self.advantages):
            raise ValueError(f"advantages must be between {-ADVANTAGE:,} and {ADVANTAGE:,}")
        if self.advantages and not any(self.advantages):
            raise ValueError("advantages that are all 0 leave no gradient to compare")
        if self.old_logprobs and len(self.old_logprobs) != self.sequences:
            raise ValueError(
                f"each sequence needs its old log-probabilities: there are {self.sequences} and {len(self.old_logprobs)} lists"
            )
        check_old_logprobs(self.old_logprobs)
        return self

    @model_validator(mode="after")
    def _variants_parse(self) -> "PrecisionRequest":
        if not 1 <= len(self.variants) <= limits.PRECISION_VARIANTS:
            most = f"{limits.PRECISION_VARIANTS} variants can be run at once (MANTISSA_PRECISION_VARIANTS)"
            raise ValueError(f"from 1 to {most}, not {len(self.variants):,}")
        names = [parse_variant(text)[0] for text in self.variants]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"there are two variants named {twice}: give one of them another name")
        return self

    def settings(self) -> dict[str, Settings]:
        """Name -> settings, in the order requested."""
        return dict(parse_variant(text) for text in self.variants)
