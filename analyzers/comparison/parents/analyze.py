"""Analyzes parents: checkpoints -> tensors matched -> one pass over the same values of all -> the model explained by its candidates."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import combinations
from time import perf_counter

from analyzers.checkpoints import Access, Matching, canonical_names
from analyzers.comparison.counting import Task
from analyzers.comparison.parents.candidates import Opened, check_different, find, side_names
from analyzers.comparison.parents.copies import first_tensors
from analyzers.comparison.parents.explain import Explanation
from analyzers.comparison.parents.likeness import Likeness
from analyzers.comparison.parents.report import ANALYSIS_VERSION, ParentsReport, ParentsRequest
from analyzers.comparison.parents.verdict import advise, judge, named_candidates, notes, proof
from analyzers.comparison.reading import Pass, every_copy, open_models
from analyzers.core.report import Timing, content_id, environment, first_rows
from analyzers.core.request import Progress
from analyzers.numerics.blas_threads import one_blas_thread


def analyze(request: ParentsRequest, access: Access | None = None, *, largest: int | None = None) -> Iterator[Progress | ParentsReport]:
    """Compare a model with its candidates and explain its weights by them; yield progress in bytes, then the report.

    access: what may be read; by default public Hub repositories and samples. largest: refuse to read more bytes of weights, of all
    checkpoints together, than this (the page's limit). Raises MantissaError, whose sentence begins with the side that it concerns, if any.
    Closing the generator cancels the reads and closes every checkpoint.
    """
    start, access = perf_counter(), access or Access()
    yield Progress(done=0, total=0, unit="bytes", note="reading headers")
    with ExitStack() as stack:
        stack.enter_context(one_blas_thread())
        names = ["Model", *side_names(len(request.candidates))]
        sides = yield from open_models([request.model, *request.candidates], names, request, access, stack)
        check_different(sides, names)
        opened = Opened([*sides], names, ["named"] * len(request.candidates))
        if not request.candidates:
            yield from find(request, access, stack, opened)
        matching = Matching(request.include, request.exclude)
        yield Progress(done=0, total=0, unit="bytes", note="matching tensors")
        task = Task(list(combinations(range(len(opened.sides)), 2)), copies=[sides for sides in every_copy(opened.sides) if sides[0] == 0])
        found = Pass(request, opened.sides, opened.names, matching, task, largest=largest)
        yield from found.read()
        model, *candidates = canonical_names([request.model, *request.candidates], sides)
        request = request.model_copy(update={"model": model, "candidates": tuple(candidates)})
        yield report_of(Explanation(found, Likeness(found.table), 0, opened), request, start)


def report_of(facts: Explanation, request: ParentsRequest, start: float) -> ParentsReport:
    """Build the report on a model. request: with canonical references."""
    found, opened, x = facts.found, facts.opened, facts.x
    verdict, answer = judge(facts)
    stack = facts.any_stack if verdict == "stack" else None
    explained = facts.refs(stack.sides) if stack is not None else named_candidates(verdict, facts)
    conversion = tuple(facts.rows_of(stack)) if stack is not None else () if verdict == "merge" else tuple(facts.conversion)
    quantized = facts.quantized if stack is None else None
    by, unseen = stack.sides if stack is not None else [facts.best], facts.table.unseen()
    options = request.model_copy(update={"suggested": ()}).resolved("cpu")
    model, *others = [{"ref": side.ref, "commit": side.commit} for side in (found.sides[x], *(found.sides[p] for p in facts.others))]
    resolved = options | {"model": model, "candidates": others, "source": "+".join(sorted(set(map(facts.source, facts.others))))}
    report = ParentsReport(
        id=content_id("parents", ANALYSIS_VERSION, resolved),
        analysis_version=ANALYSIS_VERSION,
        request=request,
        checkpoint=facts.model,
        mode=request.mode,
        bytes_read=found.nbytes,
        answer=answer,
        advice=advise(verdict, explained, facts, unseen is not None),
        verdict=verdict,
        parents=explained,
        proof=proof(facts, verdict, answer),
        candidates=facts.candidates,
        fit=facts.fit,
        layer_map=tuple(facts.layer_map(stack)),
        notes=(*opened.notes, *notes(facts, verdict)),
        blocks=facts.table.unread_blocks() if unseen is not None else None,
        unseen=unseen,
        coverage=(found.coverage(x, by), *(found.coverage(side, [x]) for side in facts.others)),
        quantized=quantized and first_tensors(quantized),
        conversion=tuple(first_rows(conversion)),
        timing=Timing.since(start, found.nbytes, found.seconds),
        environment=environment("cpu", ("numpy", "numba", "huggingface_hub", "pydantic")),
    )
    if len(conversion) > len(report.conversion):
        report.keep_rows("conversion", lambda: conversion)
    if quantized != report.quantized:
        report.keep_rows("quantized", lambda: quantized)
    return report
