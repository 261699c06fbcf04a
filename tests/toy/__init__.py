"""Defines an analyzer for tests, which counts the tensors of a checkpoint. Only `ENTRY` in the registry adds it to the product."""

from collections.abc import Iterator

from pydantic import Field

from analyzers import Analyzer
from analyzers.base import CheckpointFacts, Progress, Reference, Report, Timing, WeightsRequest, content_id, environment
from analyzers.checkpoints import Access, open_checkpoint

ENTRY = Analyzer(
    name="toy",
    question="how many tensors a checkpoint has",
    package="tests.toy",
    title="Tensor count",
    short="Count",
    components="tests.toy",
)
ANALYSIS_VERSION = 1


class ToyRequest(WeightsRequest):
    """Which checkpoint."""

    model: Reference
    least: int = Field(default=0, ge=0, description="Count only tensors with at least this many elements.")


class ToyReport(Report):
    """The number of tensors."""

    analyzer: str = "toy"
    schema_version: int = 1
    request: ToyRequest
    checkpoint: CheckpointFacts
    tensors: int


def analyze(request: ToyRequest, access: Access | None = None, largest: int | None = None) -> Iterator[Progress | ToyReport]:
    """Count the tensors."""
    yield Progress(done=0, total=1, unit="tensors", note="counting")
    with open_checkpoint(request.model, access or Access()) as checkpoint:
        facts = checkpoint.facts()
        counted = sum(tensor.elements >= request.least for tensor in checkpoint.tensors)
    yield ToyReport(
        analysis_version=ANALYSIS_VERSION,
        id=content_id("toy", ANALYSIS_VERSION, {"model": facts.ref, "commit": facts.commit}),
        timing=Timing(seconds=0.1, reading_seconds=0.1, bytes_per_second=None),
        environment=environment("cpu", ()),
        request=request,
        checkpoint=facts,
        tensors=counted,
    )
