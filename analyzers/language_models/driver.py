"""The steps that all analyses of a running model share: open, check, fetch, load, measure, report."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from time import perf_counter
from typing import Any, ClassVar

from torch import autocast, enable_grad, inference_mode, nn

from analyzers import analyzer_of
from analyzers.checkpoints import Access
from analyzers.core.report import Report, Timing, content_id, environment
from analyzers.core.request import Progress
from analyzers.language_models.batch import Batch
from analyzers.language_models.load import OpenModel, check_work
from analyzers.language_models.model_failures import explaining_failures
from analyzers.language_models.stages import check_stages

LIBRARIES = ("numpy", "torch", "torchao", "transformers", "tokenizers", "accelerate", "pydantic")


class Job(ABC):
    """One analyzer's part of an analysis. Its constructor takes the request, the opened model and the `Access`, and sets the attributes.

    batch: the batch that needs the most memory; tokens: of all passes together, with padding; runs: passes side by side; extra: bytes
    needed in addition. source, commit: of the data, which the report's request names unless it has the samples themselves (``given``).
    less: what to reduce if the work is too much.
    """

    less: ClassVar[str]
    unit: ClassVar[str] = "layers"
    opening: ClassVar[tuple[str, ...]] = ("device", "attention", "dtype")
    """Fields of the request with which the model is opened."""
    batch: Batch
    tokens: int
    runs: int = 1
    extra: int = 0
    source: str
    commit: str | None
    given: bool

    def __init__(self, request: Any, opened: OpenModel, access: Access) -> None:
        self.request = request
        self.opened = opened

    @classmethod
    def settings(cls, request: Any) -> dict[str, Any]:
        """Return the options with which the model is opened."""
        found: dict[str, Any] = request.model_dump(include=set(cls.opening))
        return found

    def fetch(self) -> Iterator[Progress]:
        """Fetch the weights."""
        yield from self.opened.fetch()

    def load(self) -> nn.Module:
        """Load the model."""
        return self.opened.load()

    @abstractmethod
    def resolved(self) -> dict[str, Any]:
        """Return what determines the report: the content of its id."""

    @abstractmethod
    def measure(self, model: nn.Module) -> Generator[Progress, None, Any]:
        """Measure the model; the result goes to `fields`."""

    @abstractmethod
    def fields(self, measured: Any) -> Mapping[str, Any]:
        """Return the report's own fields, its answer, advice and notes among them; under "every", functions for `Report.keep_rows`."""


def run_model(
    job: type[Job], kind: type[Report], request: Any, access: Access | None, largest: int | None, lent: int
) -> Iterator[Progress | Report]:
    """Analyze a model. Yields progress, in bytes while it is fetched, and finally the report, of class ``kind``.

    access: what may be read; by default public Hub repositories and samples. largest: the limit of parameters x tokens of all passes
    together (see `check_work`). lent: as in `OpenModel`; if set, only check the request and fetch the weights, without a report.
    Raises MantissaError, including LimitExceeded. Closing the generator stops after the current layer and frees the model.
    """
    with closing(_steps(job, kind, request, access or Access(), largest, lent)) as steps:
        while True:
            # The caller's modes, which belong to the thread, would change what is measured. Between steps they are the caller's again.
            with inference_mode(False), enable_grad(), autocast("cpu", enabled=False), autocast("cuda", enabled=False):
                item = next(steps, None)
            if item is None:
                return
            yield item


def _steps(
    job: type[Job], kind: type[Report], request: Any, access: Access, largest: int | None, lent: int
) -> Generator[Progress | Report, None, None]:
    """Do as `run_model` says, in the modes that torch begins with."""
    start = perf_counter()
    yield Progress(done=0, total=0, unit=job.unit, note="reading model and text")
    with explaining_failures(), OpenModel(request.model, access, **job.settings(request), lent=lent) as opened:
        todo = job(request, opened, access)
        check_work(opened, todo.tokens, largest, todo.less)
        opened.check(todo.batch, runs=todo.runs, extra=todo.extra)
        yield from todo.fetch()
        if lent:
            return
        model = todo.load()
        reading = perf_counter()
        check_stages(model, todo.batch.token_ids)
        measured = yield from todo.measure(model)
        del model
        took = timing(start, reading)
        fields = dict(todo.fields(measured))
        every = fields.pop("every", {})
        canonical = request.canonical(opened, None if todo.given else todo.source)
        report = kind(**header(canonical, todo.resolved(), opened.device, took), **fields | {"checkpoint": opened.facts})
        for name, rows in every.items() if access.local else ():  # they are for --csv only: a server would hold them for nothing
            report.keep_rows(name, rows)
        yield report


def timing(start: float, reading: float) -> Timing:
    """Return the timing of a run, by when it began (`perf_counter`), and when its model did."""
    now = perf_counter()
    return Timing(seconds=now - start, reading_seconds=now - reading, bytes_per_second=None)


def header(request: Any, resolved: dict[str, Any], device: str, took: Timing) -> dict[str, Any]:
    """Return the fields that all reports have. request: as the report states it; resolved: what determines the report."""
    analyzer = analyzer_of(request)
    version = analyzer.analysis_version()
    return {
        "id": content_id(analyzer.name, version, resolved),
        "analysis_version": version,
        "request": request,
        "timing": took,
        "environment": environment(device, LIBRARIES),
    }
