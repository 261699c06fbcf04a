"""The request and the report of `check`. Field names are the JSON contract; fields may be added, never renamed."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from analyzers.core.columns import Column, Table
from analyzers.core.notes import Value
from analyzers.core.records import Record
from analyzers.core.report import CheckpointFacts, Report
from analyzers.core.request import PASTED, Reference, Request
from analyzers.core.rows import Shown, columns

# Raised whenever the same request would give another result
ANALYSIS_VERSION = 14
# Tensors that a finding names for people
_NAMED = 3

Level = Literal["error", "warning", "info"]
LEVELS: tuple[Level, ...] = ("info", "warning", "error")
FailOn = Literal["error", "warning", "never"]

RULES = {
    "loads": "What transformers refuses, and tensors that are missing, ignored or misshapen for its model.",
    "empty": "A checkpoint or tensors without a single value.",
    "not-read": "Files that may hold weights and were not read; for information if by name they repeat others.",
    "non-finite": "Weights that are NaN or infinite.",
    "index": "A shard index that disagrees with the files.",
    "upcast": "fp32 tensors whose values all fit a narrower format, if one is proven to come from it.",
    "stored-twice": "Matrices that repeat another byte for byte; for information if they make up whole layers.",
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
    "adapter-upload": "Whole weights stored as an adapter, an adapter stored as a model, or both in one file.",
    "adapter-config": "No adapter_config.json that can be used, or matrices of another rank than it states.",
    "adapter-empty": "Modules that change nothing, because A or B is 0: an error if that is all of them.",
    "adapter-base": "An adapter of which nothing fits its base.",
    "adapter-unmatched": "Modules that match nothing in the base, or that peft does not load; as a warning, those that work only unmerged.",
}
"""What each rule looks for."""
WITH_BASE = frozenset({"missing", "misshapen", "unchanged", "replaced", "extra", "base-mismatch"})
# Rules about how a model was trained and stored. In an adapter B begins at 0, A may be drawn alike in all modules, and whole tensors are
# copies of the base's: `adapter-empty` tells what that means. Of BASE+ADAPTER, they are about the base.
_OF_MODELS = {"zero-tensor", "untouched", "stored-twice", "fossil-rows"}
_OF_ENGINES = {"scales", "unscaled", "ignore-list", "promises", "keep-fp32", "load-dtype", "companions"}
NOT_OF_ADAPTERS = frozenset({*_OF_MODELS, *_OF_ENGINES, *WITH_BASE, "loads", "empty"})
NOT_OF_MERGED = frozenset({*_OF_MODELS, *_OF_ENGINES, "upcast", "config-dtype"})


class CheckRequest(Request):
    """Options of a check, which reads all values."""

    model: Reference
    base: Annotated[str | None, PASTED] = Field(
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
        if rule in report.not_applied:
            outcome = "not applied"
        elif rule in WITH_BASE and report.base is None:
            outcome = "no base"
        else:
            outcome = levels[0] if levels else "nothing"
        yield {"rule": rule, "outcome": outcome, "about": about}


class CheckReport(Report):
    """Result of a check.

    findings: the gravest first; saving_bytes: of all findings together; notes: what could not be checked; adapter: whether the checkpoint
    is an adapter alone; base: the one named in the request, for an adapter alone that of its configuration if it could be read;
    loading_judged: whether loading by transformers was judged in full, for an adapter how it fits its base; not_applied: rules that say
    nothing about an adapter, or about a base with one. coverage: of the model, then of the base if they were compared.
    """

    DERIVED: ClassVar[tuple[Table, ...]] = (
        Table(
            "findings",
            lambda report: report.findings,
            (*columns(Finding), Column("told", "Finding", cell=_told, only="people")),
            title="Findings",
        ),
        Table(
            "rules",
            _rules,
            (
                Column("rule", "Rule"),
                Column("outcome", "Found", help="The gravest level that the rule found, or why it was not applied."),
                Column("about", "Looks for"),
            ),
            title="Rules",
        ),
    )

    analyzer: Literal["check"] = "check"
    schema_version: int = 1
    request: CheckRequest
    checkpoint: CheckpointFacts
    adapter: bool = False
    base: CheckpointFacts | None
    saving_bytes: int
    findings: tuple[Finding, ...]
    loading_judged: bool = True
    not_applied: tuple[str, ...] = ()

    def fails(self, fail_on: FailOn) -> bool:
        """Return whether a finding is of the level ``fail_on`` or graver."""
        return fail_on != "never" and any(LEVELS.index(each.level) >= LEVELS.index(fail_on) for each in self.findings)

    def count(self, level: Level) -> int:
        """Count the findings of a level."""
        return sum(each.level == level for each in self.findings)
