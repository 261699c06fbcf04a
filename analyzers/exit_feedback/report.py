"""The progress and the report of exit feedback. Field names are the JSON contract; fields may be added, never renamed."""

from typing import Any, Literal

from pydantic import Field, model_validator

from analyzers.base import CheckpointFacts, Progress, Report
from analyzers.exit_feedback.measurements import Cost, Exact, Head, Inputs, LayerRow, Method, OverSeeds, SweepRow  # fmt: skip
from analyzers.exit_feedback.request import ExitRequest

Stage = Literal["model", "methods", "layers", "sweep", "cost"]


class ExitProgress(Progress):
    """Progress in steps of very different length. cosines: the mean of each method measured so far, at the last layer."""

    stage: Stage
    cosines: dict[str, float | None] = Field(default_factory=dict)


class ExitReport(Report):
    """How close each signal is to the exact gradient. methods: by name, in the order requested, at the last layer.

    null: the mean cosine of fresh random codes over seeds. layers: of the logit lens, the last layer included. statement: the findings in
    plain words.
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
    cost: Cost
    statement: str
    notes: tuple[str, ...]

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_versions(cls, value: Any) -> Any:
        """Drop what newer versions no longer have: ``buckets`` of version 1, and until version 3 the training of a small transformer."""
        version = value.get("analysis_version") if isinstance(value, dict) else None
        if isinstance(version, int) and version <= 3 and isinstance(value.get("request"), dict):
            kept = {name: setting for name, setting in value.items() if name not in ("trunk", "training_steps", "training")}
            asked = {name: setting for name, setting in value["request"].items() if name not in ("buckets", "training_steps")}
            return kept | {"request": asked}
        return value
