"""Precision variants of one model on one text."""

from collections.abc import Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any

from analyzers.core.report import Timing
from analyzers.core.request import Progress
from analyzers.precision_variants.report import PrecisionReport
from analyzers.precision_variants.request import PrecisionRequest

if TYPE_CHECKING:
    from analyzers.checkpoints import Access


def analyze(
    request: PrecisionRequest, access: "Access | None" = None, *, largest: int | None = None, lent: int = 0
) -> Iterator[Progress | PrecisionReport]:
    """Run one model in fp32 and in every variant. Yields progress, in bytes while fetching and then in layers, and last the report.

    access: what may be read; by default public Hub repositories and samples. largest: the limit of parameters x tokens over all references
    and variants (see `check_work`). lent: as of `OpenModel`: only check the request and fetch the weights, without a report.
    Raises MantissaError, LimitExceeded among them. Closing the generator stops after the current layer and frees the model.
    """
    # Imported here, so that forms can read presets without torch.
    from contextlib import ExitStack

    from analyzers.checkpoints import Access
    from analyzers.language_models.load import check_work, open_model
    from analyzers.language_models.model_failures import explaining_failures
    from analyzers.language_models.stages import check_stages
    from analyzers.precision_variants.casts import RunnableModel
    from analyzers.precision_variants.lockstep import Steps
    from analyzers.precision_variants.pipeline import Models, Pipeline

    start = perf_counter()
    access = access or Access()
    yield Progress(done=0, total=0, unit="layers", note="reading model and text")
    settings: Any = {**request.model_dump(include={"device", "attention", "offload"}), "dtype": "float32", "lent": lent}
    with explaining_failures(), ExitStack() as stack:
        opened = stack.enter_context(open_model(request.model, access, **settings, weights=not request.random_init))
        beside = stack.enter_context(open_model(request.model, access, **settings, adapter="beside")) if request.has_beside else None
        pipeline = Pipeline.of(request, opened, access)
        check_work(opened, pipeline.work, largest, "fewer variants, fewer or shorter sequences, a smaller model")
        others = 0
        if beside is not None:
            beside.check(pipeline.batch)
            others = beside.loaded_bytes
        opened.check(pipeline.largest, runs=1 + len(pipeline.variants), extra=pipeline.extra_bytes(opened) + others)
        if lent:
            if not request.random_init:
                yield from opened.fetch()
                if beside is not None:
                    yield from beside.fetch()
            return
        if request.random_init:
            model = opened.initialize(request.seed)
        else:
            yield from opened.fetch()
            model = opened.load()
        check_stages(model, pipeline.batch.token_ids)
        models = Models(RunnableModel(model))
        if beside is not None:
            yield from beside.fetch()
            models = Models(models.model, RunnableModel(beside.load()))
        reading = perf_counter()
        steps = Steps(2 * models.model.layers * pipeline.runs)
        results = yield from pipeline.run(models, steps)
        engine = None if pipeline.engine is None else (yield from pipeline.engine.compare(models.model, steps))
        del model, models
        now = perf_counter()
        timing = Timing(seconds=now - start, reading_seconds=now - reading, bytes_per_second=None)
        yield pipeline.report(opened, results, engine, timing)
