"""Gradient conflict of one model on one text."""

from collections.abc import Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any

from analyzers.core.report import Timing
from analyzers.core.request import Progress
from analyzers.gradient_conflict.report import ConflictReport
from analyzers.gradient_conflict.request import ConflictRequest

if TYPE_CHECKING:
    from analyzers.checkpoints import Access


def analyze(
    request: ConflictRequest, access: "Access | None" = None, *, largest: int | None = None, lent: int = 0
) -> Iterator[Progress | ConflictReport]:
    """Measure one model on one text. Yields progress, in bytes while the model is fetched and then in layers, and finally the report.

    access: what may be read; by default public Hub repositories and samples. largest: the limit of parameters x tokens, including padding
    and both FFNs (see `check_work`). lent: as in `OpenModel`; if set, only check the request and fetch the weights, without a report.
    Raises MantissaError, including LimitExceeded. Closing the generator stops after the current layer and frees the model.
    """
    # Imported on call, so that forms and endpoints can read the request without torch.
    from analyzers.checkpoints import Access
    from analyzers.gradient_conflict.measure import every_neuron
    from analyzers.gradient_conflict.pipeline import Pipeline, text_of
    from analyzers.language_models.load import check_work, open_model
    from analyzers.language_models.model_failures import explaining_failures
    from analyzers.language_models.stages import check_stages, padded_tokens

    start = perf_counter()
    access = access or Access()
    yield Progress(done=0, total=0, unit="layers", note="reading model and text")
    text = text_of(request, access)
    settings: Any = request.model_dump(include={"dtype", "device", "attention", "offload", "adapter"})
    with explaining_failures(), open_model(request.model, access, **settings, lent=lent) as opened:
        pipeline = Pipeline.of(request, opened, text)
        passes = 1 if request.ffn == "original" else 2
        check_work(opened, passes * padded_tokens(pipeline.batch.lengths), largest, "fewer or shorter samples, a smaller model")
        yield from opened.fetch()
        if lent:
            return
        model = opened.load()
        reading = perf_counter()
        check_stages(model, pipeline.batch.token_ids)
        original, losses = yield from pipeline.measure(model, {}, 0)
        collected: dict[Any, Any] = {"original": original}
        if request.ffn == "topk":
            masks = dict.fromkeys(pipeline.converted, pipeline.mask)
            collected["topk"], losses = yield from pipeline.measure(model, masks, pipeline.layers + pipeline.measured)
        del model
        now = perf_counter()
        timing = Timing(seconds=now - start, reading_seconds=now - reading, bytes_per_second=None)
        report = pipeline.report(opened, text, collected, losses, timing)
        if access.local:  # The rows of all units are for --csv only: a server would hold them for nothing.
            report.keep_rows("neurons", lambda: every_neuron(collected))
        yield report
