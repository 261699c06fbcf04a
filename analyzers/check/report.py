"""The request and the report of `check`. Field names are the JSON contract; fields may be added, never renamed."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from analyzers.base import CheckpointFacts, Reference, Report, Request
from analyzers.coverage import Coverage
from analyzers.records import Record

# Raised whenever the same request would give another result
ANALYSIS_VERSION = 4

Level = Literal["error", "warning", "info"]
LEVELS: tuple[Level, ...] = ("info", "warning", "error")
FailOn = Literal["error", "warning", "never"]

Rule = Literal[
    "loads",
    "empty",
    "not-read",
    "non-finite",
    "index",
    "upcast",
    "stored-twice",
    "config-dtype",
    "untouched",
    "zero-tensor",
    "pickled",
    "fp16-overflow",
    "fossil-rows",
    "missing",
    "misshapen",
    "unchanged",
    "replaced",
    "extra",
    "base-mismatch",
]


class CheckRequest(Request):
    """Options of a check, which reads all values."""

    model: Reference
    base: str | None = Field(
        default=None, description="The checkpoint that it was trained from (default: none, and the model is checked alone)."
    )

    @field_validator("base")
    @classmethod
    def _none_if_empty(cls, base: str | None) -> str | None:
        return base or None

    @model_validator(mode="after")
    def _not_itself(self) -> "CheckRequest":
        if self.model == self.base:
            raise ValueError("the base is the model itself: name the checkpoint that it was trained from")
        return self


class Finding(Record):
    """One finding.

    title: the fault; detail: the numbers, and the remedy; saving_bytes: bytes that the remedy saves; tensors: names of the tensors at
    fault, at most `limits.REPORT_TENSORS`.
    """

    rule: Rule
    level: Level
    title: str
    detail: str
    saving_bytes: int = 0
    tensors: tuple[str, ...] = ()


class CheckReport(Report):
    """Result of a check.

    findings: the gravest first; saving_bytes: of all findings together; notes: what could not be checked; adapter: whether the checkpoint
    is an adapter alone; loading_judged: whether loading by transformers was judged in full.
    """

    names_files = False

    analyzer: Literal["check"] = "check"
    schema_version: int = 1
    request: CheckRequest
    checkpoint: CheckpointFacts
    adapter: bool = False
    base: CheckpointFacts | None
    saving_bytes: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    loading_judged: bool = True
    coverage: tuple[Coverage, ...] = ()

    def fails(self, fail_on: FailOn) -> bool:
        """Return whether a finding is of the level ``fail_on`` or graver."""
        return fail_on != "never" and any(LEVELS.index(each.level) >= LEVELS.index(fail_on) for each in self.findings)

    def count(self, level: Level) -> int:
        """Count the findings of a level."""
        return sum(each.level == level for each in self.findings)

    def unread(self) -> tuple[Finding, ...]:
        """Return the remarks on files that by their names repeat the weights and were not read."""
        return tuple(each for each in self.findings if each.rule == "not-read" and each.level == "info")
