"""Defines an analyzer for tests, which counts the tensors of a checkpoint. Only `ENTRY` in the registry adds it to the product."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from analyzers import Analyzer
from analyzers.checkpoints import Access, open_checkpoint
from analyzers.core.records import Record
from analyzers.core.report import CheckpointFacts, Report, Timing, content_id, environment, first_rows
from analyzers.core.request import Progress, Reference, WeightsRequest
from analyzers.core.rows import Rows, Shown
from tests.toy.words import WORDS

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


class ToyRow(Record):
    """One tensor."""

    name: Annotated[str, Shown("Name")]
    elements: Annotated[int, Shown("Elements", "count")]


class ToyReport(Report):
    """The number of tensors."""

    analyzer: str = "toy"
    schema_version: int = 1
    request: ToyRequest
    checkpoint: CheckpointFacts
    counted: int
    tensors: Annotated[tuple[ToyRow, ...], Rows("Tensors")]


def analyze(request: ToyRequest, access: Access | None = None, largest: int | None = None) -> Iterator[Progress | ToyReport]:
    """Count the tensors."""
    yield Progress(done=0, total=1, unit="tensors", note="counting")
    with open_checkpoint(request.model, access or Access()) as checkpoint:
        facts = checkpoint.facts()
        counted = [ToyRow(name=tensor.name, elements=tensor.elements) for tensor in checkpoint.tensors if tensor.elements >= request.least]
    yield ToyReport(
        analysis_version=ANALYSIS_VERSION,
        id=content_id("toy", ANALYSIS_VERSION, {"model": facts.ref, "commit": facts.commit}),
        timing=Timing(seconds=0.1, reading_seconds=0.1, bytes_per_second=None),
        environment=environment("cpu", ()),
        request=request,
        checkpoint=facts,
        counted=len(counted),
        tensors=tuple(first_rows(counted)),
        answer=WORDS.note("counted", tensors=len(counted)),
        advice=WORDS.advice("again", "toy", facts.ref),
    )
