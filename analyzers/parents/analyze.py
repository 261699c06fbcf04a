"""Analyzes parents: checkpoints -> layers matched by content -> the same values of all -> sums, fit, proof -> verdict."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from analyzers.checkpoints import (
    Access,
    Alignment,
    Checkpoint,
    Matching,
    Plan,
    SharedPlan,
    adapter_rank,
    base_coverage,
    canonical_names,
    stream,
    tuned_coverage,
)
from analyzers.core.coverage import Coverage
from analyzers.core.errors import InvalidRequest
from analyzers.core.report import Timing, check_size, content_id, environment, first_rows
from analyzers.core.request import Progress
from analyzers.numerics.blas_threads import one_blas_thread
from analyzers.parents.candidates import Opened, open_all, side_names
from analyzers.parents.collect import Collector, Layer, Sums, candidate_row
from analyzers.parents.combination import Fitted, fit_rows
from analyzers.parents.construction import made
from analyzers.parents.conversion import Examination
from analyzers.parents.count import Chance, Counter, is_matrix
from analyzers.parents.difference_rank import Differences, measure
from analyzers.parents.evidence import evidence, notes, reading_notes
from analyzers.parents.facts import RELATED_LAYER, Facts, is_odd, proven, related
from analyzers.parents.proof import Monotone, is_step_function
from analyzers.parents.report import (
    ANALYSIS_VERSION,
    FAITHFUL,
    Candidate,
    Conversion,
    Difference,
    Fit,
    MovedLayer,
    Parent,
    ParentsReport,
    ParentsRequest,
)
from analyzers.parents.stacked_layers import Stack, exact_stack, fitted_stack
from analyzers.parents.verdict import advise, judge, named_candidates
from analyzers.parents.words import WORDS

# Most candidates that are fitted together; if there are more, the best in a small sample are chosen.
FITTED = 8
_SCREENED = 16  # the small sample takes this fraction of each candidate's budget
_KEPT_NUMBERS = 2_000_000  # values of all sides together, in float32
_RELATED = 0.5  # least cosine for examining tensors that differ, if one candidate explains the model
_MUCH = 0.02  # share of values; if this many are in tensors of the best candidate, each tensor is accounted for


def analyze(request: ParentsRequest, access: Access | None = None, *, largest: int | None = None) -> Iterator[Progress | ParentsReport]:
    """Compare a model with its candidates and explain its weights by them; yield progress in bytes, then the report.

    access: what may be read; by default public Hub repositories and samples. largest: refuse to read more bytes of weights, of all
    checkpoints together, than this (the page's limit). Raises MantissaError, whose sentence begins with the side that it concerns, if any.
    Closing the generator cancels the reads and closes every checkpoint.
    """
    start = perf_counter()
    access = access or Access()
    yield Progress(done=0, total=0, unit="bytes", note="reading headers")
    with ExitStack() as stack:
        stack.enter_context(one_blas_thread())
        opened = yield from open_all(request, access, stack)
        search = Search(request, opened, largest)
        yield from search.screen()
        yield from search.read()
        yield search.report(start)


@dataclass(slots=True)
class Pass:
    """What is read of the model and the candidates ``numbers``, and what counts it.

    shared: whether it is read by the plan of another comparison.
    """

    numbers: Sequence[int]
    alignment: Alignment
    plan: Plan
    counter: Counter
    collector: Collector
    shared: bool


@dataclass(slots=True)
class _Read:
    """The result of one pass. numbers: of the candidates read; chance: of equal values, for each candidate."""

    numbers: list[int]
    sums: Sums
    chance: list[Chance]


class Search:
    """The model ``sides[0]`` and its candidates, the values read from them, and the conclusions.

    matching: of the sides, if others use it too. nbytes, requests: what was read so far, by others too where they count the same pass.
    """

    def __init__(self, request: ParentsRequest, opened: Opened, largest: int | None, matching: Matching | None = None) -> None:
        self._request, self._sides, self._sources, self._notes, self._largest = request, opened.sides, opened.sources, opened.notes, largest
        self._names = ["Model", *side_names(len(opened.sources))]
        self._numbers = list(range(1, len(opened.sides)))
        self._matching = matching or Matching(request.include, request.exclude)
        self._rows: dict[int, Candidate] = {}
        self._coverage: dict[int, tuple[Coverage, Coverage]] = {}
        self._stack: Stack | None = None
        self._examination: Examination | None = None
        self._much = False  # whether a substantial share of the values is the best candidate's
        self._difference: Difference | None = None
        self.nbytes = self.requests = 0
        self.start, self._reading = perf_counter(), 0.0
        self._read: _Read | None = None
        self._fit: Fitted | None = None

    def screen(self) -> Iterator[Progress]:
        """Choose the candidates that are most similar in a small sample, if there are many."""
        if len(self._numbers) <= FITTED:
            return
        screening = self._prepare(self._numbers, "quick", max(1, self._request.budget // _SCREENED))
        yield from self._stream(screening, "comparing all candidates")
        self._rows |= self._candidate_rows(self._finish(screening))
        self._numbers = [
            number for number in sorted(self._numbers, key=lambda number: _rank(self._rows[number])) if self._rows[number].compared
        ]
        left = len(self._numbers) - FITTED
        self._numbers = sorted(self._numbers[:FITTED])
        if left > 0:
            self._notes.append(WORDS.note("screened", candidates=left))

    def prepare(self, budget: int | None = None, shared: SharedPlan | None = None) -> Pass:
        """Match layers and plan what to read of the chosen candidates.

        budget: in bytes, by default what `measure` leaves of that of the request; shared: to read by, if it fits.
        """
        request = self._request
        return self._prepare(self._numbers, request.mode, max(1, request.budget * 7 // 8) if budget is None else budget, shared)

    def read(self, planned: Pass | None = None) -> Iterator[Progress]:
        """Match layers, read, and conclude. planned: what `prepare` returned, if it was called."""
        counted = None
        if self._numbers:
            yield self._progress(self.nbytes, "matching tensors")
            counted = planned or self.prepare()
            yield from self._stream(counted, "reading weights")
        self.take(counted)
        yield from self.conclude()

    def take(self, counted: Pass | None) -> None:
        """Take what was counted of the chosen candidates, if there are any. Raises InvalidRequest if nothing can be compared."""
        if counted is not None:
            self._read = self._finish(counted)
            self._rows |= self._candidate_rows(self._read)
        if self._read is None or not any(row.compared or row.vectors_equal is not None for row in self._rows.values()):
            raise InvalidRequest(_nothing_shared(self._sides))

    def may_be_more(self) -> Generator[Progress, None, bool]:
        """Return whether the model may be more than derived from its only candidate: its weights, its layers stacked, or quantized.

        Examines the tensors that differ for it, but fits nothing.
        """
        assert self._read is not None
        steps, (best,) = self._steps(1), self._order()
        if (
            self._find_stack(self._read) is not None
            or self._read.sums.cast(0) is not None
            or (steps is not None and is_step_function(steps))
        ):
            return True
        yield from self._examine(best)
        return self._examination is not None and bool(self._examination.on_grids)

    def conclude(self) -> Iterator[Progress]:
        """Fit, examine what differs, and decompose the difference from the only parent."""
        assert self._read is not None
        if any(row.cosine is not None for row in self._rows.values()) and self._read.sums.grams:
            self._fit = Fitted(self._read.sums, self._dtype())
        best = self._order()[0]
        self._stack = self._find_stack(self._read)
        if self._examination is None:
            yield from self._examine(best)
        if self._examination is not None:
            self._examination.search([self._matching.reader(self._sides[i], self._names[i]) for i in (0, best)])
        alone = self._fit is None or len(self._fit.parents) < 2
        row = self._rows[best]
        if alone and best in self._numbers and related(row) and (row.cosine_without or 0.0) > _RELATED and row.equal_share != 1:
            yield from self._decompose(best)

    def _prepare(self, numbers: Sequence[int], mode: str, budget: int, shared: SharedPlan | None = None) -> Pass:
        """Match the model and the candidates ``numbers``, and plan what to read at the same positions of all."""
        sides, names = [self._sides[number] for number in (0, *numbers)], [self._names[number] for number in (0, *numbers)]
        alignment = self._matching.align(sides, names, mode == "exact")
        if not alignment.groups:
            raise InvalidRequest(_nothing_shared(self._sides))
        plan = shared.of(alignment) if shared is not None else None
        is_shared = plan is not None
        if plan is None:
            budget = self._matching.remaining_budget(budget, sides)
            plan = Plan.of(sides, alignment.sides, mode, budget, self._request.seed)
        check_size(self.nbytes + plan.nbytes, self._largest)
        fit = len(numbers) <= FITTED
        elements = sum(span.count for span in plan.spans)
        keep = min(1.0, _KEPT_NUMBERS / len(sides) / max(1, elements)) if fit else 0.0
        counter = Counter(alignment, len(numbers), fit, keep, elements)
        return Pass(numbers, alignment, plan, counter, Collector(alignment, plan, len(numbers)), is_shared)

    def _stream(self, planned: Pass, note: str) -> Iterator[Progress]:
        """Read the model and the candidates at the same positions and count."""
        plan = planned.plan
        before, requests, reading = self.nbytes, self.requests, perf_counter() - self._reading
        yield self._progress(plan.nbytes, note)
        sides, names = [self._sides[number] for number in (0, *planned.numbers)], [self._names[number] for number in (0, *planned.numbers)]
        with closing(stream(sides, plan.spans, planned.counter, names)) as steps:  # type: ignore[type-var]
            for step in steps:
                if step.span is not None and step.result is not None:
                    planned.collector.add(step.span, step.result)
                self.nbytes, self.requests = before + step.bytes_read, requests + step.requests
                self._reading = perf_counter() - reading
                yield self._progress(before + plan.nbytes, note)

    def add_read(self, nbytes: int, requests: int, seconds: float) -> None:
        """Add to what was read: a pass that others counted too."""
        self.nbytes, self.requests, self._reading = self.nbytes + nbytes, self.requests + requests, self._reading + seconds

    def _finish(self, counted: Pass) -> _Read:
        """Combine what was counted."""
        self._alignment, self._plan, numbers = counted.alignment, counted.plan, counted.numbers
        filters = self._request.include, self._request.exclude
        for column, number in enumerate(numbers):
            model = base_coverage(self._sides[0], counted.alignment, [column], *filters)
            self._coverage[number] = model, tuned_coverage(self._sides[number], counted.alignment, column, *filters)
        return _Read(list(numbers), counted.collector.sums(), [counted.counter.chance(i) for i in range(len(numbers))])

    def _conversion(self) -> list[Conversion]:
        """Return a row for each tensor if much of the model is the best candidate's, else only rows of unusual tensors."""
        if self._examination is None:
            return []
        rows = self._examination.rows(self._sides[0])
        return list(rows) if self._much else [row for row in rows if row.relation not in (*FAITHFUL, "unmatched") and is_odd(row)]

    def _find_stack(self, read: _Read) -> Stack | None:
        """Find out whether the model is a stack of layers of several candidates, or of renumbered layers."""
        stack = exact_stack(self._alignment, read.sums.tensors, len(read.numbers))
        if stack is not None and not self._covered_by(stack.parents.values()).whole:
            return None
        if stack is None and self._fit is not None and len(self._fit.chosen) > 1:
            stack = fitted_stack(self._fit.layers, self._fit.chosen)
            stack = stack if stack is not None and stack.several else None
        return stack

    def _examine(self, best: int) -> Iterator[Progress]:
        """Read the remaining tensors again to tell what happened to them, if much of the model is the best candidate's."""
        assert self._read is not None
        if best not in self._read.numbers:
            return
        column, sums, steps = self._read.numbers.index(best), self._read.sums, self._steps(best)
        stepwise = steps is not None and is_step_function(steps)
        examination = Examination(self._alignment, column, sums.tensors, sums.moments, stepwise, self._request.mode == "exact")
        equal, number = examination.equal_values
        alone = self._fit is None or len(self._fit.parents) < 2
        self._much = equal >= _MUCH * number or stepwise
        row = self._rows[best]
        if not self._much and not (alone and related(row) and (row.cosine_without or 0.0) > _RELATED):
            return
        self._examination = examination
        names = [self._names[i] for i in (0, best)]
        before, requests = self.nbytes, self.requests
        for step in examination.examine([self._sides[0], self._sides[best]], names):
            self.nbytes, self.requests = before + step.bytes_read, requests + step.requests
            yield self._progress(self.nbytes, "examining what differs")
        self._much = self._much or any(counts.compared == counts.nearest for counts in examination.on_grids.values())

    def _decompose(self, best: int) -> Iterator[Progress]:
        assert self._read is not None
        column = self._read.numbers.index(best)
        differences = Differences.of(self._alignment, column, self._request.budget // 8)
        sides = [self._sides[number] for number in (0, *self._read.numbers)]
        before, requests = self.nbytes, self.requests
        for step in measure(differences, sides, ["Model", *(self._names[number] for number in self._read.numbers)]):
            self.nbytes, self.requests = before + step.bytes_read, requests + step.requests
            yield self._progress(before + differences.nbytes, "decomposing the difference")
        self._difference = differences.found(self._sides[best].ref)

    def _progress(self, total: int, note: str) -> Progress:
        return Progress(done=self.nbytes, total=max(total, self.nbytes), unit="bytes", note=note)

    def _dtype(self) -> str | None:
        """Return the single dtype of the model's matrices; None if there are several."""
        dtypes = {group.base.counted_as for group in self._alignment.groups if is_matrix(group.base.shape, group.base.role)}
        return dtypes.pop() if len(dtypes) == 1 else None

    def _candidate_rows(self, read: _Read) -> dict[int, Candidate]:
        return {
            number: candidate_row(self._sides[number], self._sources[number - 1], read.sums, column, self._alignment, read.chance[column])
            for column, number in enumerate(read.numbers)
        }

    def _order(self) -> list[int]:
        return sorted(self._rows, key=lambda number: _rank(self._rows[number]))

    def report(self, start: float) -> ParentsReport:
        """Assemble the report."""
        request, order = self._request, self._order()
        named = canonical_names([request.model, *request.candidates], self._sides)
        fit, parents = self._fitted()
        candidates = tuple(self._rows[number] for number in order)
        facts = self._facts(order[0], candidates, fit, parents)
        verdict, answer = judge(facts)
        stack = self._stack if verdict == "stack" else None
        unseen, explained = self._unseen(), self._stacked_from(stack) if stack else named_candidates(verdict, facts)
        compared = [(self._sides[number].ref, self._alignment.unmatched[i]) for i, number in enumerate(self._numbers_read())]
        conversion = tuple(facts.conversion) if not stack else ()
        report = ParentsReport(
            id=content_id("parents", ANALYSIS_VERSION, self._resolved()),
            analysis_version=ANALYSIS_VERSION,
            request=request.model_copy(update={"model": named[0], "candidates": tuple(named[1:])}),
            checkpoint=self._sides[0].facts(),
            mode=request.mode,
            bytes_read=self.nbytes,
            answer=answer,
            advice=advise(verdict, explained, facts, unseen is not None),
            verdict=verdict,
            parents=explained,
            construction=facts.construction,
            evidence=tuple(evidence(facts, verdict)) if answer.code != "few-values" else (),
            candidates=candidates,
            fit=fit,
            layer_map=tuple(self._layer_map(order[0], stack)),
            difference=self._difference,
            notes=(*self._notes, *notes(facts, verdict, unseen), *reading_notes(self._sides, compared, self._fit is not None)),
            blocks=unseen[0] if unseen else None,
            unseen=unseen[1] if unseen else None,
            coverage=self._coverages(order[0], stack),
            conversion=tuple(first_rows(conversion)),
            timing=Timing.since(start, self.nbytes, self._reading),
            environment=environment("cpu", ("numpy", "numba", "huggingface_hub", "pydantic")),
        )
        if len(conversion) > len(report.conversion):
            report.keep_rows("conversion", lambda: conversion)
        return report

    def _numbers_read(self) -> Sequence[int]:
        return () if self._read is None else self._read.numbers

    def _fitted(self) -> tuple[Fit | None, list[Parent]]:
        """Return the fit, and the rows of the parents that it needs."""
        if self._fit is None or self._read is None:
            return None, []
        fit = fit_rows(self._fit, self._read.sums, [self._sides[number].ref for number in self._read.numbers])
        return fit, [row for i, row in zip(self._fit.chosen, fit.parents, strict=True) if i in self._fit.parents]

    def _coverages(self, best: int, stack: Stack | None) -> tuple[Coverage, ...]:
        """Return the coverage of the model against the best candidate or a stack's candidates, then that of each candidate in order."""
        model = self._coverage[best][0] if stack is None else self._covered_by(stack.parents.values())
        return (model, *(self._coverage[number][1] for number in sorted(self._coverage)))

    def _covered_by(self, columns: Iterable[int]) -> Coverage:
        """Return the coverage of the model by several candidates together."""
        filters = self._request.include, self._request.exclude
        return base_coverage(self._sides[0], self._alignment, sorted(set(columns)), *filters)

    def _layer_map(self, best: int, stack: Stack | None) -> Iterator[MovedLayer]:
        """Yield every layer of a stack with its parent, else the layers that have other numbers in a candidate."""
        if self._read is None:
            return
        moved = {
            (column, layer): source
            for column, found in enumerate(self._alignment.unmatched)
            for each in found.layers
            for layer, source in each.moved.items()
        }
        if stack is None:
            for (column, layer), source in sorted(moved.items()):
                if source is not None:
                    ref = self._sides[self._read.numbers[column]].ref
                    yield MovedLayer(layer=layer, ref=ref, source=source, equal_share=self._equal_share(layer, column))
            return
        for home, column in sorted(stack.parents.items(), key=lambda item: (item[0] is None, item[0] or 0)):
            origin = None if home is None else moved.get((column, home), home)
            ref = self._sides[self._read.numbers[column]].ref
            yield MovedLayer(layer=home, ref=ref, source=origin, equal_share=self._equal_share(home, column))

    def _equal_share(self, layer: Layer, column: int) -> float | None:
        """Return the share of a layer's values read that equal the candidate's, once both have the same dtype."""
        assert self._read is not None
        groups = [group for group in self._alignment.groups if group.base.layer == layer]
        counts = sum((self._read.sums.tensors[g.base.name][column] for g in groups if g.base.name in self._read.sums.tensors), np.zeros(1))
        return float(max(counts[1:]) / counts[0]) if counts[0] else None

    def _stacked_from(self, stack: Stack) -> tuple[str, ...]:
        assert self._read is not None
        return tuple(self._sides[self._read.numbers[column]].ref for column in dict.fromkeys(stack.parents.values()))

    def _steps(self, best: int) -> Monotone | None:
        read = self._read
        return None if read is None or best not in read.numbers else read.sums.steps(read.numbers.index(best), self._dtype() or "")

    def _unseen(self) -> tuple[int, float] | None:
        """Return the number of blocks read in incompletely read strata, and the share of all blocks that may be of an unseen kind."""
        sample = None if self._read is None else self._read.sums.sample
        return None if sample is None else sample.unseen()

    def _facts(self, best: int, candidates: tuple[Candidate, ...], fit: Fit | None, parents: list[Parent]) -> Facts:
        read = self._read
        assert read is not None
        column = read.numbers.index(best) if best in read.numbers else None
        sums, through = read.sums, None if column is None else read.sums.cast(column)
        return Facts(
            model=self._sides[0].facts(),
            candidates=candidates,
            fit=fit,
            parents=parents,
            layers=0.0 if column is None else sums.related_layers(column, RELATED_LAYER),
            akin=(0, 0.0) if column is None else sums.akin(column, self._alignment, RELATED_LAYER),
            unlike=() if column is None else sums.unlike_roles(column, RELATED_LAYER),
            through=through,
            values=0 if column is None else sums.values(column),
            lost=0 if column is None else sums.lost(column),
            stepwise=self._steps(best) if through is None else None,
            at_rounding=self._fit is not None and self._fit.at_rounding,
            moved=list(self._layer_map(best, None)),
            difference=self._difference,
            coverage=self._coverage[best],
            stack=list(self._layer_map(best, self._stack)) if self._stack is not None and self._stack.several else [],
            exact_stack=self._stack is not None and self._stack.exact,
            conversion=self._conversion(),
            constant=sums.constant(self._alignment),
            adapters=[adapter_rank(self._sides[number].tensors) for number in (0, best)],
            construction=made(self._sides[0], self._sides[best]),
            on_grids=self._examination.on_grids if self._examination is not None else {},
        )

    def _resolved(self) -> dict[str, Any]:
        """Return the content of the report's id: resolved commits and the options that differ from their defaults."""
        named = [{"ref": side.ref, "commit": side.commit} for side in self._sides]
        source = "+".join(sorted(set(self._sources)))
        options = self._request.model_copy(update={"suggested": ()}).resolved("cpu")
        return options | {"model": named[0], "candidates": named[1:], "source": source}


def _rank(row: Candidate) -> tuple[float, float, float, str]:
    """Sort related candidates first, the closest before others, then the others by agreement of signs, which structure does not affect."""
    if row.cosine is None:
        return (2.0, 0.0, 0.0, row.ref)
    distance = row.distance_without
    if distance is not None and (related(row) or proven(row)):
        return (0.0, distance, -(row.equal_share or 0.0), row.ref)
    return (1.0, -round(row.agreement or 0.0, 2), -row.cosine, row.ref)


def _nothing_shared(sides: Sequence[Checkpoint]) -> str:
    others = sides[1].ref if len(sides) == 2 else f"the {len(sides) - 1} candidates"
    return f"There is nothing to compare: no tensor of {others} has the name and shape of one of {sides[0].ref}."
