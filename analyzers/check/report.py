"""The request and the report of `check`. Field names are the JSON contract; fields may be added, never renamed."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator, model_validator

from analyzers.base import CheckpointFacts, Data, NextStep, Reference, Report, Request
from analyzers.coverage import Coverage
from analyzers.formatting import plural, size

if TYPE_CHECKING:
    import pandas

# Raised whenever the same request would give another result.
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
    """What to check; all of it is read."""

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


class Finding(Data):
    """One finding. title: what it is; detail: the numbers, and what to do; saving_bytes: what doing so would save; tensors: whose it is.

    tensors ends after `limits.REPORT_TENSORS` names.
    """

    rule: Rule
    level: Level
    title: str
    detail: str
    saving_bytes: int = 0
    tensors: tuple[str, ...] = ()


class CheckReport(Report):
    """findings: the gravest first. saving_bytes: of all of them. notes: what could not be checked. adapter: whether it is one, alone.
    loading_judged: whether it was judged in full how transformers loads it.
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
        """Whether a finding is of the level ``fail_on`` or graver."""
        return fail_on != "never" and any(LEVELS.index(each.level) >= LEVELS.index(fail_on) for each in self.findings)

    def count(self, level: Level) -> int:
        """The number of findings of a level."""
        return sum(each.level == level for each in self.findings)

    def _beside(self) -> tuple[Finding, ...]:
        """What is said of files that repeat the weights by their names."""
        return tuple(each for each in self.findings if each.rule == "not-read" and each.level == "info")

    def headline(self) -> str:
        """How many findings of each level, the bytes that could be saved, and how far that reaches."""
        reach, beside = self.reach(), self._beside()
        if self.findings == beside and reach:
            return f"Nothing found in what was read, which is not all. {reach}"
        if self.findings == beside:
            limit = "" if self.loading_judged else "; how transformers loads it was not judged in full"
            what = f"{plural(self.checkpoint.tensors, 'tensor')}{' of an adapter' if self.adapter else ''}{limit}."
            if not beside:
                return f"Nothing found in {what}"
            others = plural(len(beside[0].tensors), "other file that may hold weights was", "other files that may hold weights were")
            return f"Nothing found in what was read, {what} {others} not judged."
        words = {"error": "error", "warning": "warning", "info": "remark"}
        found = ", ".join(plural(self.count(level), words[level]) for level in LEVELS[::-1] if self.count(level))
        saved = f" {self.saving_bytes:,} of {self.checkpoint.bytes:,} bytes could be saved." if self.saving_bytes else ""
        return f"{found}{' in an adapter' if self.adapter else ''}.{saved}{f' {reach}' if reach else ''}"

    def next_step(self) -> NextStep:
        """What to do about the gravest findings, and the passport of the model."""
        upcast = [each for each in self.findings if each.rule == "upcast"]
        if self.count("error"):
            advice = "Fix the errors before anybody loads this checkpoint; each finding says how."
        elif upcast:
            advice = f"Save it with mantissa shrink: {size(upcast[0].saving_bytes)} less, and every value stays what it is."
        elif self.count("warning"):
            advice = "Each warning says what to change before you publish it."
        elif not self.loading_judged:
            advice = "Load it before you rely on it: a note says what was not judged of that."
        elif not self.whole:
            advice = "Look at what was left out before you rely on it: nothing needs to be changed in the rest."
        elif self._beside():
            advice = "Nothing needs to be changed in what was read; other files that may hold weights were not judged."
        else:
            advice = "Nothing needs to be changed."
        return NextStep(advice, "dtype", self.checkpoint.ref)

    def tables(self) -> "dict[str, pandas.DataFrame]":
        """``summary`` (one row) and ``findings``, with the number of tensors in place of their names."""
        from analyzers.check.tables import tables

        return tables(self)
