"""The progress and the report of exit feedback. Field names are the JSON contract; fields may be added, never renamed."""

from typing import Any, Literal

from pydantic import Field, model_validator

from analyzers.base import CheckpointFacts, Progress, Report
from analyzers.exit_feedback.measurements import Cost, Exact, Head, Inputs, LayerRow, Method, OverSeeds, SweepRow  # fmt: skip
from analyzers.exit_feedback.request import ExitRequest

Stage = Literal["model", "methods", "layers", "sweep", "cost"]


class ExitProgress(Progress):
    """Progress in steps of very different lengths. cosines: mean cosine of each method measured so far, at the last layer."""

    stage: Stage
    cosines: dict[str, float | None] = Field(default_factory=dict)


class ExitReport(Report):
    """The alignment of each signal with the exact gradient. methods: by name, in the requested order, at the last layer.

    null: mean cosine of fresh random codes over seeds. layers: rows of the logit lens, including the last layer. statement: the findings in
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
        """Drop fields of earlier versions: ``buckets`` of version 1, and the training of a small transformer up to version 3."""
        version = value.get("analysis_version") if isinstance(value, dict) else None
        if isinstance(version, int) and version <= 3 and isinstance(value.get("request"), dict):
            fields = {name: setting for name, setting in value.items() if name not in ("trunk", "training_steps", "training")}
            options = {name: setting for name, setting in value["request"].items() if name not in ("buckets", "training_steps")}
            return fields | {"request": options}
        return value
