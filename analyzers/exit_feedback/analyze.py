"""Exit feedback of one model on one text."""

from collections.abc import Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any

from analyzers.core.report import Timing
from analyzers.core.request import Progress
from analyzers.exit_feedback.report import ExitReport
from analyzers.exit_feedback.request import ExitRequest

if TYPE_CHECKING:
    from analyzers.checkpoints import Access


def analyze(
    request: ExitRequest, access: "Access | None" = None, *, largest: int | None = None, lent: int = 0
) -> Iterator[Progress | ExitReport]:
    """Measure one model on one text. Yields progress, in bytes while the model is fetched and then in steps, and finally the report.

    access: what may be read; by default public Hub repositories and samples. largest: the limit of parameters x tokens, where products
    with the head count as if they were the model's (see `check_work`). lent: as in `OpenModel`; if set, only check the request and fetch
    the weights, without a report. Raises MantissaError, including LimitExceeded. Closing the generator stops after the current step and
    frees the model.
    """
    # Imported on call, so that forms can read the names of signals, and other programs use the heads, without loading everything.
    from analyzers.checkpoints import Access
    from analyzers.exit_feedback.pipeline import Pipeline
    from analyzers.language_models.instruction_data import instruction_pairs
    from analyzers.language_models.load import open_model
    from analyzers.language_models.model_failures import explaining_failures

    start = perf_counter()
    access = access or Access()
    yield Progress(done=0, total=0, unit="steps", note="reading model and text")
    settings: Any = request.model_dump(include={"dtype", "device", "offload", "adapter"})
    with explaining_failures(), open_model(request.model, access, **settings, lent=lent) as opened:
        text = request.instructions() if request.token_ids else instruction_pairs(request.data, access, request.samples)
        pipeline = Pipeline.of(request, opened, text)
        pipeline.check(opened, largest)
        yield from opened.fetch()
        if lent:
            return
        model = opened.load()
        reading = perf_counter()
        states, head = yield from pipeline.run(model)
        del model
        results = yield from pipeline.measure(head, states)
        now = perf_counter()
        yield pipeline.report(opened, results, Timing(seconds=now - start, reading_seconds=now - reading, bytes_per_second=None))
