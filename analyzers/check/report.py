"""The request and the report of `check`. Field names are the JSON contract; fields may be added, never renamed."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from analyzers.core.columns import Column, Table
from analyzers.core.notes import Value
from analyzers.core.options import Option
from analyzers.core.records import Record
from analyzers.core.report import CheckpointFacts, Report
from analyzers.core.request import PASTED, Reference, Request
from analyzers.core.rows import Shown, columns

# Raised whenever the same request would give another result
ANALYSIS_VERSION = 17
# Tensors that a finding names for people
_NAMED = 3

Level = Literal["error", "warning", "info"]
LEVELS: tuple[Level, ...] = ("info", "warning", "error")
FailOn = Literal["error", "warning", "never"]

RULES = {
    "loads": "What transformers refuses, and tensors that are missing, ignored or of the wrong shape for its model.",
    "empty": "A checkpoint or tensors without a single value.",
    "not-read": "Files that may hold weights and were not read; for information if by name they repeat others.",
    "non-finite": "Weights that are NaN or infinite, and quantized ones that cannot be decoded.",
    "index": "A shard index that disagrees with the files.",
    "upcast": "fp32 tensors whose values all fit a narrower format, if one is proven to come from it.",
    "stored-twice": "Matrices that repeat another, byte for byte or in another layout.",
    "config-dtype": "A dtype in config.json other than that of most parameters.",
    "untouched": "Norms with at least half of their entries at the initial value, and tensors of one value.",
    "zero-tensor": "Tensors of zeros, other than biases.",
    "pickled": "Weights in files that can run code when loaded.",
    "fp16-overflow": "Weights that become infinite in fp16: a warning if config.json asks for it.",
    "fossil-rows": "Rows exact in a narrower format while the rest of their tensor is not: never trained.",
    "grid": "Tensors whose values all lie on the scaled grid of a quantizer, and need fewer bits.",
    "scales": "Codes with scales, parts or settings missing, unfit or unusable; halves scaled apart.",
    "unscaled": "Floats that are all codes of fp8, fp4 or integers: the scale was never applied.",
    "ignore-list": "Entries of quantization settings without a tensor, and plain linear layers without an entry.",
    "promises": "Parts and shards that config.json or file names promise and nobody stored.",
    "keep-fp32": "Tensors stored narrower than fp32, in which transformers keeps them.",
    "load-dtype": "Weights that transformers loads in another dtype than stored, or in one that its version decides.",
    "companions": "End and chat tokens whose rows were never trained; with a base, other tokenizer or settings.",
    "missing": "Tensors of the base that the model lacks.",
    "misshapen": "Tensors of another shape than in the base.",
    "unchanged": "Values that all equal the base's, up to rounding.",
    "replaced": "Tensors or layers that lost their relation to the base, while the others kept it.",
    "extra": "Tensors that the base does not have.",
    "base-mismatch": "A card's base_model that the weights do not come from.",
}
"""What each rule looks for."""
WITH_BASE = frozenset({"missing", "misshapen", "unchanged", "replaced", "extra", "base-mismatch"})


class CheckRequest(Request):
    """Options of a check, which reads all values."""

    model: Reference
    base: Annotated[str | None, PASTED, Option("Base model that it was trained from (optional)", example="org/name")] = Field(
        default=None, description="The checkpoint it was trained from (default: none, the model is checked alone)."
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

    code: names the fault, and the template of its words; values: fill the template; title: the fault; detail: the numbers, and the remedy;
    saving_bytes: bytes that the remedy saves; tensors: names of the tensors or files at fault, at most `limits.REPORT_TENSORS`.
    """

    level: Annotated[Level, Shown("Level")]
    rule: Annotated[str, Shown("Rule")]
    code: str
    title: str
    detail: str
    values: dict[str, Value] = Field(default_factory=dict)
    saving_bytes: int = 0
    tensors: tuple[str, ...] = ()

    def names(self) -> str:
        """Write the names of the first tensors, and how many more there are."""
        more = len(self.tensors) - _NAMED
        return ", ".join(self.tensors[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _told(row: Finding) -> str:
    return f"{row.title}: {row.detail}" + (f" [{row.names()}]" if row.tensors else "")


def _rules(report: "CheckReport") -> Iterator[dict[str, str]]:
    """Yield each rule with the gravest level that it found."""
    for rule, about in RULES.items():
        levels = [each.level for each in report.findings if each.rule == rule]
        nothing = "no base" if rule in WITH_BASE and report.base is None else "nothing"
        yield {"rule": rule, "outcome": levels[0] if levels else nothing, "about": about}


class CheckReport(Report):
    """Result of a check.

    findings: the gravest first; saving_bytes: of all findings together; notes: what could not be checked; loading_judged: whether loading
    by transformers was judged in full. coverage: of the model, then of the base if they were compared.
    """

    DERIVED: ClassVar[tuple[Table, ...]] = (
        Table(
            "findings",
            lambda report: report.findings,
            (*columns(Finding), Column("told", "Finding", cell=_told, only="people", longest=1_000)),
            title="Findings",
        ),
        Table(
            "rules",
            _rules,
            (
                Column("rule", "Rule"),
                Column("outcome", "Found", help="The gravest level that the rule found, if there was a base to compare with."),
                Column("about", "Looks for"),
            ),
            title="Rules",
        ),
    )

    analyzer: Literal["check"] = "check"
    schema_version: int = 1
    request: CheckRequest
    checkpoint: CheckpointFacts
    base: CheckpointFacts | None
    saving_bytes: int
    findings: tuple[Finding, ...]
    loading_judged: bool = True

    def fails(self, fail_on: FailOn) -> bool:
        """Return whether a finding is of the level ``fail_on`` or graver."""
        return fail_on != "never" and any(LEVELS.index(each.level) >= LEVELS.index(fail_on) for each in self.findings)

    def count(self, level: Level) -> int:
        """Count the findings of a level."""
        return sum(each.level == level for each in self.findings)
