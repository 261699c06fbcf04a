"""Compares checkpoints: which of them comes from the others (parents), and what changed on the way (sparsity), from the same sums."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from itertools import combinations
from time import perf_counter
from typing import Any

from analyzers.checkpoints import Access, Checkpoint, Matching, MergedCheckpoint, canonical_names, with_commits
from analyzers.comparison.compare.answers import advice, answer, best_copies, coverage, direction, of_others, ranked, says
from analyzers.comparison.compare.report import ANALYSIS_VERSION, CompareReport, CompareRequest, Relation
from analyzers.comparison.counting import Task
from analyzers.comparison.parents import ParentsReport, ParentsRequest
from analyzers.comparison.parents.analyze import report_of as parents_of
from analyzers.comparison.parents.candidates import Opened, check_different, find, side_names
from analyzers.comparison.parents.explain import Explanation
from analyzers.comparison.parents.likeness import Likeness
from analyzers.comparison.reading import Pass, every_copy, open_models
from analyzers.comparison.sparsity import SparsityReport, SparsityRequest
from analyzers.comparison.sparsity.adapters import AdapterMeter, merge_of
from analyzers.comparison.sparsity.analyze import report_of as changes_of
from analyzers.comparison.sparsity.spectral import Spectra
from analyzers.core.report import Timing, content_id, environment
from analyzers.core.request import Progress, WeightsRequest
from analyzers.numerics.blas_threads import one_blas_thread

# Most checkpoints of which every two are compared in the sizes of their updates, which takes memory.
_SIZED = 4


def analyze(request: CompareRequest, access: Access | None = None, *, largest: int | None = None) -> Iterator[Progress | CompareReport]:
    """Compare the models; yields progress in bytes, then the report.

    The last model is explained by the others. Weights may show that another one is the descendant: the model that resembles it most is
    explained too, from the same sums, and the verdict that says more is kept. access, largest: as in `parents.analyze`. Raises
    MantissaError.
    """
    start, access, number = perf_counter(), access or Access(), len(request.models)
    with ExitStack() as stack:
        stack.enter_context(one_blas_thread())
        names = [f"Model {i}" for i in range(1, number + 1)] if number > 1 else ["Model"]
        sides = yield from open_models(request.models, names, request, access, stack, into_first=True)
        check_different(sides, names)
        comparison = _Comparison(request, sides)
        if number == 1:
            yield from find(comparison.parents_request(0), access, stack, comparison.opened)
        yield from comparison.read(Matching(request.include, request.exclude), largest)
        yield from comparison.report(start)


def descent(model: str, base: str, access: Access) -> Iterator[Progress | tuple[ParentsReport, SparsityReport]]:
    """Compare all values of a model with those of its base; yields progress, then where they come from and what changed, from one pass."""
    start = perf_counter()
    asked = ParentsRequest(model=model, candidates=(base,), mode="exact")
    with ExitStack() as stack:
        stack.enter_context(one_blas_thread())
        names = ["Base", "Model"]
        sides = yield from open_models([base, model], names, asked, access, stack, into_first=True)
        task = Task([(0, 1)], sized=[(0, 1)], copies=[sides for sides in every_copy(sides) if sides[0] == 1])
        found = Pass(asked, sides, names, Matching(asked.include, asked.exclude), task)
        yield from found.read()
        origin = parents_of(Explanation(found, Likeness(found.table), 1, Opened(sides, names, ["named"])), asked, start)
        yield origin, changes_of(found, [0, 1], SparsityRequest(base=base, tuned=(model,), mode="exact"), start, "cpu")


class _Comparison:
    """Models, and what a pass over them says. last: the side that is explained by the others, unless another verdict says more."""

    def __init__(self, asked: CompareRequest, named: Sequence[Checkpoint]) -> None:
        self._asked, self._named, self._facts = asked, named, [side.facts() for side in named]
        # What is made of another model is explained by it; else the last one by the others.
        last = max(reversed(named), key=lambda side: isinstance(side, MergedCheckpoint))
        # Layers are numbered as those of the first side: the one that may repeat layers of the others, or mix them.
        first = max((last, *named), key=_layers)
        sides = [first, *(side for side in named if side is not first)]
        others = len(sides) - 1
        self.opened, self._last = Opened(sides, ["Model", *side_names(others)], ["named"] * others), sides.index(last)

    def read(self, matching: Matching, largest: int | None) -> Iterator[Progress]:
        """Read the models."""
        sides, asked = self.opened.sides, self._asked
        base, *tuned = self._in_order()
        merge = merge_of(sides[base], sides[tuned[0]]) if len(tuned) == 1 else None
        self._meter = AdapterMeter(merge, (base, tuned[0])) if merge is not None else None
        watch = self._meter.watch if self._meter is not None else None
        self._start = perf_counter()
        every = list(combinations(range(len(sides)), 2))
        task = Task(
            every,
            sized=every if len(sides) <= _SIZED else [(i, j) for i, j in every if self._last in (i, j)],
            copies=every_copy(sides),
            since=base,
            overlaps=tuned if len(tuned) > 1 else (),
            placed=tuned[-1],
            eta=asked.eta,
        )
        self._pass = Pass(asked, sides, self.opened.names, matching, task, largest=largest, watch=watch)
        yield from self._pass.read()
        self._likeness = Likeness(self._pass.table)

    def report(self, start: float) -> Generator[Progress | CompareReport, None, None]:
        """Explain one of the models and compose the report."""
        found, asked = self._pass, self._asked
        nearest, copies = ranked(sorted({side for side, _ in found.table.task.copies}), self._explanation)
        x, parents = self._explained() if nearest is None else (nearest, self._explain(nearest))
        order = self._order(x, parents)
        spectra = Spectra(found, [order[0], order[-1]], "cpu") if order and asked.spectral else None
        if spectra is not None:
            yield from spectra.read(found.nbytes)
        sparsity = self._changes(order, spectra) if order else None
        nbytes = found.nbytes + (spectra.nbytes if spectra else 0)
        named = [(each.ref, each.commit) for each in self._facts]
        named += [(row.ref, row.commit) for row in parents.candidates if row.source != "named"]
        resolved = asked.model_copy(update={"models": (), "suggested": ()}).resolved("cpu")
        counted = sparsity if parents.verdict == "derived" else None  # the answer rests on it
        codes = {note.code for note in parents.notes}
        yield CompareReport(
            id=content_id("compare", ANALYSIS_VERSION, resolved | {"models": named}),
            analysis_version=ANALYSIS_VERSION,
            request=asked.model_copy(update={"models": tuple(canonical_names(asked.models, self._named))}),
            models=tuple(self._facts),
            relation=Relation(
                kind=parents.verdict,
                model=parents.checkpoint.ref,
                sources=parents.parents,
                direction=direction(parents, x == self._last and len(self._facts) > 1, self._meter is not None),
                changed_share=sparsity.update_fraction if sparsity else None,
            ),
            parents=parents,
            sparsity=sparsity,
            copies=copies,
            mode=asked.mode,
            bytes_read=nbytes,
            answer=best_copies(parents, copies) if nearest is not None else answer(parents, sparsity),
            advice=advice(parents, sparsity),
            notes=(
                *of_others(parents, copies),
                *parents.notes,
                *(note for note in (counted.notes if counted else ()) if note.code not in codes),
            ),
            coverage=coverage([parents, counted] if counted else [parents]),
            timing=Timing.since(start, nbytes, found.seconds),
            environment=environment("cpu", ("numpy", "numba", "torch", "huggingface_hub", "pydantic")),
        )

    def parents_request(self, x: int) -> ParentsRequest:
        """Return the request for the parents of a side."""
        sides = self.opened.sides
        model, *others = [with_commits(side.ref, side.commit) for side in (sides[x], *sides[:x], *sides[x + 1 :])]
        named, suggested = (tuple(others), ()) if len(self._facts) > 1 else ((), self._asked.suggested)
        request: ParentsRequest = self._options(ParentsRequest, model=model, candidates=named, suggested=suggested)
        return request

    def _options(self, kind: Any, **fields: Any) -> Any:
        """Return a request of this kind, with the options that all analyses of weights share."""
        return kind(**{name: getattr(self._asked, name) for name in WeightsRequest.model_fields} | fields)

    def _in_order(self) -> list[int]:
        """Return the sides in the order in which they were named, those of a card before them, the one to explain last."""
        named = [self.opened.sides.index(side) for side in self._named]
        others = [side for side in range(len(self.opened.sides)) if side not in named]
        return [*(side for side in (*named, *others) if side != self._last), self._last]

    def _explained(self) -> tuple[int, ParentsReport]:
        """Explain the last model by the others, or the one that resembles it most if that says more; return its side, too."""
        last = self._last
        report = self._explain(last)
        nearest = self._nearest(report)
        if len(self._facts) == 1 or nearest is None:
            return last, report
        if report.verdict == "same-weights":  # the one that was rounded is explained
            wider = self._pass.table.digits(last) > self._pass.table.digits(nearest)
            return (nearest, self._explain(nearest)) if wider and report.answer.code == "same-rounded" else (last, report)
        if len(self._pass.sides) == 2 and not self._explanation(nearest).may_say_more:
            return last, report
        reverse = self._explain(nearest)
        # A checkpoint in the middle of a run is nearly a combination of the others, which does not make it a merge; and that others are the
        # same says less of the last one than what it comes from.
        between = report.verdict == "derived" and reverse.verdict in ("merge", "same-weights")
        return (nearest, reverse) if says(reverse) > says(report) and not between else (last, report)

    def _nearest(self, report: ParentsReport) -> int | None:
        """Return the side that may come from the others instead: with the largest weight, else the most similar.

        If M = a A + b B with positive weights, then B = M / b - (a / b) A: the merge has the largest weight wherever it stands.
        """
        weights = {each.ref: each.weight for each in report.fit.parents} if report.fit and report.verdict == "merge" else {}
        row = max(report.candidates, key=lambda each: weights.get(each.ref, float("-inf")))
        return self._side(row.ref, row.commit)

    def _explanation(self, x: int) -> Explanation:
        return Explanation(self._pass, self._likeness, x, self.opened)

    def _explain(self, x: int) -> ParentsReport:
        """Explain the model at side ``x`` by the others."""
        return parents_of(self._explanation(x), self.parents_request(x), self._start)

    def _side(self, ref: str, commit: str) -> int | None:
        return next((at for at, side in enumerate(self._pass.sides) if (side.ref, side.commit) == (ref, commit)), None)

    def _order(self, x: int, parents: ParentsReport) -> list[int]:
        """Return the sides on the way to the model explained, the base first; none if it is related to no other.

        They begin with the best candidate, or are all related ones in the order given: a trajectory.
        """
        if parents.verdict == "unrelated":
            return []
        best = parents.candidates[0]
        before = [self._side(best.ref, best.commit)]
        if parents.verdict == "derived" and len(self._facts) > 1:
            same = {(row.ref, row.commit) for row in parents.candidates if row.related} | {(best.ref, best.commit)}
            before = [self._side(each.ref, each.commit) for each in self._facts if (each.ref, each.commit) in same]
        known = [side for side in before if side is not None and side != x]
        table = self._pass.table
        sized = bool(known) and tuple(sorted((known[0], x))) in {tuple(sorted(pair)) for pair in table.task.sized}
        return [*known, x] if sized and table.sums(known[0], x, weighed=False)["values"] else []

    def _changes(self, order: Sequence[int], spectra: Spectra | None) -> SparsityReport:
        """Report what changed over the sides ``order``."""
        base, *tuned = [with_commits(self._pass.sides[side].ref, self._pass.sides[side].commit) for side in order]
        request = self._options(SparsityRequest, base=base, tuned=tuple(tuned), eta=self._asked.eta, spectral=self._asked.spectral)
        meter = self._meter if list(order) == self._in_order() else None
        return changes_of(self._pass, order, request, self._start, "cpu", spectra, meter)


def _layers(side: Checkpoint) -> int:
    return len({tensor.layer for tensor in side.tensors})
