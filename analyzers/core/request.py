"""Requests and progress: what every analyzer takes, and what it tells while it runs.

An analyzer exports ``analyze(request, access)``, a generator of `Progress` whose last item is a `report.Report`. Closing it cancels the
work and frees its memory.
"""

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from analyzers.core import limits
from analyzers.core.errors import InvalidRequest
from analyzers.core.formatting import parse_bytes
from analyzers.core.options import Option
from analyzers.core.pasted_text import folder_in, plain_or_same
from analyzers.core.records import Record

_MAX_BUDGET_BYTES = 4_000_000_000  # The largest sample in quick mode; exact mode reads everything.


class Progress(Record):
    """Progress of a run: ``done`` of ``total``, counted in ``unit`` ("bytes", "tensors", "samples")."""

    done: int
    total: int
    unit: str
    note: str = ""


class Request(Record):
    """The input of an analyzer. It validates everything, for page, command line, API and MCP alike."""


REFERENCE = (
    "org/name, org/name@revision, its address on the Hub, sample:NAME (sample:tiny-bf16), or BASE+ADAPTER of these; "
    "on the command line also ./folder"
)
# For fields that name a checkpoint, several, or a dataset: what is pasted becomes the id that it means.
PASTED = AfterValidator(lambda value: tuple(map(plain_or_same, value)) if isinstance(value, tuple) else value and plain_or_same(value))
PASTED_DATASET = AfterValidator(lambda value: plain_or_same(value, "dataset"))
Reference = Annotated[str, PASTED, Field(description=f"A checkpoint: {REFERENCE} or /file.")]


class WeightsRequest(Request):
    """Options of the analyzers that read weights."""

    mode: Annotated[Literal["quick", "exact"], Option("Mode", info="", names=("Quick: a sample", "Exact: every byte"))] = Field(
        default="quick", description="quick: read a seeded sample of each checkpoint; exact: read everything."
    )
    budget: Annotated[int, Option("Budget of quick mode", info="", example="64MB", metavar="SIZE", more="also written 64MB")] = Field(
        default=limits.DEFAULT_BUDGET_BYTES,
        ge=1,
        le=_MAX_BUDGET_BYTES,
        strict=True,
        description="Bytes of weights to sample from each checkpoint, in quick mode.",
    )
    include: Annotated[str | None, Option("Only tensors whose name matches (regular expression)", info="", example="mlp", metavar="RE")] = (
        Field(default=None, description="Only tensors whose name matches this regular expression (default: all).")
    )
    exclude: Annotated[str | None, Option("Exclude tensors whose name matches", info="", example="embed", metavar="RE")] = Field(
        default=None, description="No tensors whose name matches this regular expression."
    )
    subfolder: Annotated[str | None, Option("Folder inside the repository", info="", example="unet")] = Field(
        default=None, description="Only the weights in this folder of the repository."
    )
    seed: Annotated[int, Option("Seed of the sample", info="")] = Field(
        default=0, ge=0, lt=2**63, strict=True, description="Seed of the sample."
    )
    device: Annotated[Literal["auto", "cpu", "cuda"], Option(site=False)] = Field(
        default="auto", description="Where to count; auto: the CPU."
    )

    @model_validator(mode="before")
    @classmethod
    def _folder_of_address(cls, fields: Any) -> Any:
        """Take the folder that pasted addresses name as the subfolder, unless one is given."""
        if not isinstance(fields, dict):
            return fields
        # After this, strict validation of JSON takes no list for a tuple.
        fields = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
        if fields.get("subfolder"):
            return fields
        named = [value for name, value in fields.items() if name in cls.model_fields and PASTED in cls.model_fields[name].metadata]
        texts = [text for value in named for text in (value if isinstance(value, tuple) else [value]) if isinstance(text, str)]
        folders = set(map(folder_in, texts)) or {""}
        if len(folders) > 1:
            raise ValueError("these addresses name different folders, or only one of them does: give ids, and the folder as subfolder")
        folder = folders.pop()
        return fields | {"subfolder": folder} if folder else fields

    @field_validator("budget", mode="before")
    @classmethod
    def _budget_in_bytes(cls, budget: Any) -> Any:
        return parse_bytes(budget) if isinstance(budget, str) else budget

    @field_validator("include", "exclude", "subfolder")
    @classmethod
    def _short(cls, text: str | None) -> str | None:
        if text is not None and len(text) > limits.FILTER_LENGTH:
            raise ValueError(f"a filter may have at most {limits.FILTER_LENGTH:,} characters, not {len(text):,}")
        return text or None

    @model_validator(mode="after")
    def _exact_has_no_budget(self) -> Self:
        if self.mode == "exact" and self.budget != limits.DEFAULT_BUDGET_BYTES:
            raise ValueError("exact mode reads everything: give either --exact or a budget")
        return self

    def resolved(self, device: str) -> dict[str, Any]:
        """Return the options that enter a report's id: the mode, and those not at their default. device: where the run counts."""
        options = self.model_dump(exclude={"model", "base", "tuned", "device"}, exclude_defaults=True)
        return options | {"mode": self.mode} | ({"device": device} if device != "cpu" else {})


# What a value has to be, by pydantic's type of error, or by the first word of it.
_NEEDED = {
    "literal_error": "{expected}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "finite_number": "a finite number",
    "too_short": "a list that is not empty",
    "too_long": "a list of at most {max_length}",
    "string_too_short": "a text that is not empty",
    "string_too_long": "a text of at most {max_length} characters",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string_type": "a text",
    "tuple": "a list",
    "dict": "an object",
    "model": "an object",
}


def request_error(error: ValidationError, named: Callable[[str], str] = str) -> InvalidRequest:
    """Convert a request model's validation error to one sentence for the user. named: what the user calls a field."""
    first = error.errors(include_url=False)[0]
    name = ""
    for part in first["loc"]:  # ("pairs", 0, "output") -> "output of entry 1 of pairs"
        name = f"entry {part + 1} of {name}" if isinstance(part, int) else f"{part} of {name}" if name else named(part)
    message, kind = first["msg"].removeprefix("Value error, "), first["type"]
    if needed := _NEEDED.get(kind) or _NEEDED.get(kind.partition("_")[0]):
        bounds = {key: _written(value) for key, value in first.get("ctx", {}).items()}
        given = _written(repr(first["input"][:40]) if isinstance(first["input"], str) else first["input"])
        needed = needed.format(**bounds).replace("'", "")
        return InvalidRequest(f"{name} must be {needed}{given and f', not {given}'}.")
    if kind == "extra_forbidden":
        return InvalidRequest(f"{name} is not known here.")
    if kind != "value_error":
        return InvalidRequest(f"{name} is missing." if kind == "missing" else f"{name} cannot be used as it is.")
    if name:
        message, named_in_it = re.subn(rf"\b{first['loc'][0]}\b", lambda _: name, message, count=1)
        if not named_in_it:
            return InvalidRequest(f"{name}: {message}.")
    return InvalidRequest(f"{message}." if name and message.startswith(name) else f"{message[:1].upper()}{message[1:]}.")


def _written(value: object) -> str:
    """Write a text, a number or a switch; "" for anything else, and for what is too long to be shown."""
    if isinstance(value, bool | str):
        return str(value).lower() if isinstance(value, bool) else value
    if isinstance(value, int):
        return f"{value:,}" if value.bit_length() <= 64 else ""
    return f"{value:,.12g}" if isinstance(value, float) else ""
