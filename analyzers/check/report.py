"""What `check` found. Field names are the JSON contract; fields may be added, never renamed."""

from typing import Literal

from analyzers.base import Data

Level = Literal["error", "warning", "info"]
LEVELS: tuple[Level, ...] = ("info", "warning", "error")
FailOn = Literal["error", "warning", "never"]

Rule = Literal[
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
    "extra",
    "base-mismatch",
]


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


class CheckReport(Data):
    """findings: the gravest first. saving_bytes: of all of them. notes: what could not be checked."""

    model: str
    commit: str
    base: str | None
    bytes: int
    saving_bytes: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    def fails(self, fail_on: FailOn) -> bool:
        """Whether a finding is of the level ``fail_on`` or graver."""
        return fail_on != "never" and any(LEVELS.index(each.level) >= LEVELS.index(fail_on) for each in self.findings)
