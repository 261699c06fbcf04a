"""The request of precision variants. Field names are the JSON contract; fields may be added, never renamed."""

import json
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from analyzers.core import limits
from analyzers.core.errors import InvalidData
from analyzers.core.options import Option
from analyzers.core.request import PASTED_DATASET
from analyzers.core.untrusted_json import InvalidJson, parse_json
from analyzers.language_models.model_request import Device, ModelRequest
from analyzers.precision.logprobs import EngineSequence, parse_logprobs, sequences
from analyzers.precision.variants import DEFAULT, PRESETS, Settings, parse_variant

Loss = Literal["ce", "gspo", "grpo"]

CLIP: dict[str, tuple[float, float]] = {"gspo": (3e-4, 4e-4), "grpo": (0.2, 0.2)}
"""Published clip ranges (below 1, above 1). GSPO: arXiv 2507.18071, section 5.1. The GRPO paper (arXiv 2402.03300) states no value; 0.2
is that of PPO (arXiv 1707.06347), whose objective GRPO adopts."""

ADVANTAGE = 1_000_000
"""Largest |advantage|: larger ones would overflow gradients for any weights."""

_ROUNDING = 1e-3  # Rounding may put a log-probability above 0 by this much.
_SMALLEST = -10_000.0


def check_old_logprobs(rows: tuple[tuple[float, ...], ...]) -> None:
    """Raise ValueError if a number is not a log-probability."""
    wrong = next((value for row in rows for value in row if not _SMALLEST <= value <= _ROUNDING), None)
    if wrong is not None:
        raise ValueError(f"log-probabilities are natural logarithms between {_SMALLEST:,.0f} and 0, not {wrong:g}")


def parse_old_logprobs(text: str, source: str = "old log-probabilities") -> tuple[tuple[float, ...], ...]:
    """Parse JSON lines, one list per sequence with the log-probabilities of all tokens but the first. Raises InvalidData."""
    if len(text) > limits.PRECISION_CHARACTERS:
        raise InvalidData(f"{len(text):,} characters are more than {limits.PRECISION_CHARACTERS:,}.")
    return tuple(_row(number, line, source) for number, line in enumerate(text.splitlines(), 1) if line.strip())


def written(rows: tuple[tuple[float, ...], ...]) -> str:
    """Write log-probabilities as JSON lines, the format of `parse_old_logprobs`."""
    return "\n".join(json.dumps(row) for row in rows)


def _row(number: int, line: str, source: str) -> tuple[float, ...]:
    try:
        row: Any = parse_json(line, lenient=True)
    except InvalidJson:
        row = None
    if not isinstance(row, list) or not row or any(isinstance(value, bool) or not isinstance(value, int | float) for value in row):
        raise InvalidData(f"Line {number} of {source} is not a JSON list of numbers, such as [-0.12, -3.4].")
    try:
        return tuple(map(float, row))
    except OverflowError:
        raise InvalidData(f"Line {number} of {source} has a number that is too large.") from None


def _clips(side: int) -> str:
    return ", ".join(f"{loss} {bounds[side]:g}" for loss, bounds in CLIP.items())


# Incremented whenever the same request would give another result.
ANALYSIS_VERSION = 13


class PrecisionRequest(ModelRequest):
    """A model, the variants to run, and the tokens to run them on.

    A custom variant is ``name: key=value,...`` (`variants.parse_variant`). text, or token_ids with rows of equal length (`ModelRequest`),
    replaces data; every token but the first of a row is predicted. The policy losses are `losses.gspo` and `losses.grpo`, the latter
    without KL penalty; without old_logprobs, which are natural logarithms, the ratios of the reference are 1. With pre_rounded, only the
    rounding error of the computation remains.
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
    loss: Annotated[Loss, Option(names=("Cross-entropy", "GSPO", "GRPO"))] = Field(
        default="ce",
        description="Loss whose gradients are compared: ce, cross-entropy; or a policy gradient, gspo (a ratio per sequence) "
        "or grpo (a ratio per token).",
    )
    advantages: Annotated[tuple[float, ...], Option(example="1, -0.5")] = Field(
        default=(), description="For gspo and grpo: one number per sequence (default: drawn from a normal distribution)."
    )
    old_logprobs: Annotated[
        tuple[tuple[float, ...], ...],
        Option(
            metavar="FILE",
            more="JSON lines, one list per sequence",
            parse=parse_old_logprobs,
            write=written,
            word="--old-logprobs=old-logprobs.jsonl",
        ),
    ] = Field(
        default=(),
        description="For gspo and grpo: for each sequence the log-probabilities of its tokens but the first under the sampling policy "
        "(default: the reference's).",
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
    against: tuple[EngineSequence, ...] = ()
    clip_low: Annotated[float | None, Option("Clip below 1 by", example=_clips(0).upper())] = Field(
        default=None, ge=0, le=1, description=f"Clip ratios below 1 - clip_low (default {_clips(0)}; 1 clips nothing)."
    )
    clip_high: Annotated[float | None, Option("Clip above 1 by", example=_clips(1).upper())] = Field(
        default=None, ge=0, le=1e6, description=f"Clip ratios above 1 + clip_high (default {_clips(1)}; 1e6 clips nothing)."
    )
    random_init: bool = Field(default=False, description="Random weights, as the architecture initializes them, not the checkpoint's.")
    pre_rounded: Annotated[bool, Option("Round the reference's weights too")] = Field(
        default=False, description="Round the reference's weights as each variant does, which leaves the error of the computation alone."
    )
    inside: Annotated[bool, Option("Look inside the layers")] = Field(
        default=False, description="Also compare the outputs of the modules within each layer."
    )
    attention: Literal["sdpa", "eager"] = Field(
        default="sdpa", description="Implementation of attention in the reference, and in variants that do not set it."
    )
    device: Device = "auto"
    seed: int = Field(default=0, ge=0, lt=2**63, strict=True, description="Seed of random weights, tokens and advantages.")

    @field_validator("logprobs", "against", mode="before")
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
        if self.logprobs and (self.token_ids or self.text is not None or self.data != "builtin" or self.random_init or self.old_logprobs):
            raise ValueError(
                "logprobs have tokens of their own, of trained weights: give no token_ids, text, data, random_init or old_logprobs"
            )
        if self.against and not self.logprobs:
            raise ValueError("against needs logprobs of the same tokens: give logprobs too")
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
