"""The progress and the report of exit feedback. Field names are the JSON contract; fields may be added, never renamed."""

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from analyzers.base import CheckpointFacts, NextStep, Progress, Report
from analyzers.exit_feedback.headline import advice, closest
from analyzers.exit_feedback.request import ExitRequest
from analyzers.exit_feedback.results import (
    Cost,
    Exact,
    Head,
    Inputs,
    LayerRow,
    Method,
    OverSeeds,
    SweepRow,
    TrainingRow,
    Trunk,
)  # fmt: skip
from analyzers.exit_feedback.tables import tables

if TYPE_CHECKING:
    import pandas

Stage = Literal["model", "methods", "layers", "sweep", "cost", "training"]


class ExitProgress(Progress):
    """Progress in steps of very different length. cosines: the mean of each method measured so far, at the last layer; losses: the latest
    of the small transformer under each signal trained so far.
    """

    stage: Stage
    cosines: dict[str, float | None] = Field(default_factory=dict)
    losses: dict[str, float | None] = Field(default_factory=dict)


class ExitReport(Report):
    """How close each signal is to the exact gradient. methods: by name, in the order requested, at the last layer.

    null: the mean cosine of fresh random codes over seeds. layers: of the logit lens, the last layer included. training: exact and frozen
    first; empty, like ``trunk`` null, where there was none. statement: the findings in plain words.
    """

    analyzer: Literal["exit"] = "exit"
    schema_version: int = 1
    request: ExitRequest
    checkpoint: CheckpointFacts
    dtype: str
    head: Head
    inputs: Inputs
    exact: Exact
    methods: dict[str, Method]
    null: OverSeeds | None
    layers: tuple[LayerRow, ...]
    sweep: tuple[SweepRow, ...]
    trunk: Trunk | None
    training_steps: tuple[int, ...]
    training: tuple[TrainingRow, ...]
    cost: Cost
    statement: str
    notes: tuple[str, ...]

    @model_validator(mode="before")
    @classmethod
    def _of_version_1(cls, value: Any) -> Any:
        """Until analysis version 2 requests had ``buckets``, which hybrid no longer has."""
        if isinstance(value, dict) and value.get("analysis_version") == 1 and isinstance(value.get("request"), dict):
            return value | {"request": {name: setting for name, setting in value["request"].items() if name != "buckets"}}
        return value

    def headline(self) -> str:
        """See `base.Report.headline`."""
        return closest(self.methods)

    def next_step(self) -> NextStep:
        """`headline.advice`, and the page on how the samples' exact gradients conflict."""
        return NextStep(advice(self), "conflict", self.checkpoint.ref)

    def tables(self) -> "dict[str, pandas.DataFrame]":
        """See `tables.tables`."""
        return tables(self)
