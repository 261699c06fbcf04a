"""The request of precision variants. Field names are the JSON contract; fields may be added, never renamed."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from analyzers.core import limits
from analyzers.core.options import Option
from analyzers.core.request import PASTED_DATASET
from analyzers.language_models.model_request import Attention, ModelRequest, Seed
from analyzers.precision.logprobs import EngineSequence, parse_logprobs, sequences
from analyzers.precision.variants import DEFAULT, PRESETS, Settings, parse_variant

Loss = Literal["ce", "gspo"]

CLIP = (3e-4, 4e-4)
"""GSPO's published clip range, below and above 1: arXiv 2507.18071, section 5.1."""
ADVANTAGE = 1_000_000
"""Largest |advantage|: larger ones would overflow gradients for any weights."""

# Incremented whenever the same request would give another result.
ANALYSIS_VERSION = 15


class PrecisionRequest(ModelRequest):
    """A model, the variants to run, and the tokens to run them on.

    A custom variant is ``name: key=value,...`` (`variants.parse_variant`). text, or token_ids with rows of equal length (`ModelRequest`),
    replaces data; every token but the first of a row is predicted. The policy loss is `losses.gspo`, with the
    reference as the sampling policy. With pre_rounded, only the rounding error of the computation remains.
    """

    variants: Annotated[tuple[str, ...], Option(suggested=tuple(PRESETS), each="variant")] = Field(
        default=DEFAULT,
        description=f"Presets ({', '.join(PRESETS)}), or your own such as mine: dtype=bf16, fp32=residual (default {', '.join(DEFAULT)}).",
    )
    data: Annotated[str, PASTED_DATASET] = Field(
        default="builtin",
        min_length=1,
        max_length=limits.REFERENCE_LENGTH,
        description="builtin, random (tokens drawn uniformly from the vocabulary), or the id of a dataset on the Hub; on the command line "
        "also FILE.txt, .jsonl, .json or .parquet.",
    )
    text: Annotated[str | None, Option(command=False, lines=True, word="--data=text.txt")] = Field(
        default=None, max_length=limits.PRECISION_CHARACTERS, description="Your own text instead of data."
    )
    sequences: int = Field(
        default=2,
        strict=True,
        ge=1,
        le=limits.PRECISION_SEQUENCES,
        description=f"Number of sequences, from 1 to {limits.PRECISION_SEQUENCES}.",
    )
    sequence_length: Annotated[int, Option("Tokens per sequence")] = Field(
        default=512,
        strict=True,
        ge=2,
        le=limits.PRECISION_TOKENS,
        description=f"Tokens per sequence, from 2 to {limits.PRECISION_TOKENS:,}.",
    )
    loss: Annotated[Loss, Option(names=("Cross-entropy", "GSPO"))] = Field(
        default="ce",
        description="Loss whose gradients are compared: ce, cross-entropy; or gspo, a policy gradient with a ratio per sequence.",
    )
    advantages: Annotated[tuple[float, ...], Option(example="1, -0.5")] = Field(
        default=(), description="For gspo: one number per sequence (default: drawn from a normal distribution)."
    )
    logprobs: Annotated[
        tuple[EngineSequence, ...],
        Option(
            "Log-probabilities of an engine",
            metavar="FILE",
            more="JSON lines as vLLM and OpenAI's API write them",
            added=True,
            parse=parse_logprobs,
            write=lambda sequences: "",  # never in a link: a file of them is too long
            word="--logprobs=logprobs.jsonl",
        ),
    ] = Field(
        default=(),
        max_length=limits.ENGINE_TOKENS,
        description="Log-probabilities that an inference engine or a trainer gave its tokens, which replace data, to tell whether bf16 "
        "rounding explains them.",
    )
    random_init: bool = Field(default=False, description="Random weights, as the architecture initializes them, not the checkpoint's.")
    pre_rounded: Annotated[bool, Option("Round the reference's weights too")] = Field(
        default=False, description="Round the reference's weights as each variant does, which leaves the error of the computation alone."
    )
    inside: Annotated[bool, Option("Look inside the layers")] = Field(
        default=False, description="Also compare the outputs of the modules within each layer."
    )
    attention: Attention = Field(
        default="sdpa", description="Implementation of attention in the reference, and in variants that do not set it."
    )
    seed: Seed = Field(default=0, description="Seed of random weights, tokens and advantages.")

    @field_validator("logprobs", mode="before")
    @classmethod
    def _forms(cls, given: Any) -> Any:
        """Read answers in any of the forms of an engine."""
        if isinstance(given, list | tuple) and any(isinstance(each, dict) and "form" not in each for each in given):
            return sequences(enumerate(given, 1))
        return given

    @field_validator("text")
    @classmethod
    def _not_blank(cls, text: str | None) -> str | None:
        return text if text is not None and text.strip() else None

    @model_validator(mode="after")
    def _fits_together(self) -> "PrecisionRequest":
        if self.text is not None and self.data != "builtin":
            raise ValueError("give either a text or the name of data, not both")
        if self.token_ids and (self.text is not None or self.data != "builtin" or self.answer_starts):
            raise ValueError("token_ids take the place of text and data, and every token but the first of a row is predicted")
        if self.logprobs and (self.token_ids or self.text is not None or self.data != "builtin" or self.random_init):
            raise ValueError("logprobs have tokens of their own, of trained weights: give no token_ids, text, data or random_init")
        if len({len(row) for row in self.token_ids}) > 1:
            raise ValueError("the rows of token_ids must be equally long, so that nothing is padded")
        if self.loss == "ce" and self.advantages:
            raise ValueError("advantages belong to the loss gspo")
        if self.advantages and len(self.advantages) != self.sequences:
            raise ValueError(f"each sequence needs one advantage: there are {self.sequences} and {len(self.advantages)}")
        if any(abs(advantage) > ADVANTAGE for advantage in self.advantages):
            raise ValueError(f"advantages must be between {-ADVANTAGE:,} and {ADVANTAGE:,}")
        if self.advantages and not any(self.advantages):
            raise ValueError("advantages that are all 0 leave no gradient to compare")
        return self

    @model_validator(mode="after")
    def _variants_parse(self) -> "PrecisionRequest":
        if not 1 <= len(self.variants) <= limits.PRECISION_VARIANTS:
            most = f"{limits.PRECISION_VARIANTS} variants can be run at once"
            raise ValueError(f"from 1 to {most}, not {len(self.variants):,}")
        names = [parse_variant(text)[0] for text in self.variants]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"there are two variants named {twice}: give one of them another name")
        return self

    def settings(self) -> dict[str, Settings]:
        """Return the settings by name, in the requested order."""
        return dict(parse_variant(text) for text in self.variants)
