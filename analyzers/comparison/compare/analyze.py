"""Compares checkpoints: which of them comes from the others (parents), and what changed on the way (sparsity), from the same sums."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from time import perf_counter
from typing import Any

from analyzers.checkpoints import Access, Checkpoint, Matching, MergedCheckpoint, canonical_names, with_commits
from analyzers.comparison.compare.answers import advice, answer, coverage, direction, of_others, says
from analyzers.comparison.compare.report import ANALYSIS_VERSION, CompareReport, CompareRequest, Relation
from analyzers.comparison.counting import Task
from analyzers.comparison.parents import ParentsReport, ParentsRequest
from analyzers.comparison.parents.analyze import report_of as parents_of
from analyzers.comparison.parents.analyze import screen
from analyzers.comparison.parents.candidates import Opened, check_different, find, side_names
from analyzers.comparison.parents.explain import Explanation
from analyzers.comparison.parents.likeness import Likeness
from analyzers.comparison.reading import Pass, every_pair, open_models
from analyzers.comparison.sparsity import SparsityReport, SparsityRequest
from analyzers.comparison.sparsity.adapters import AdapterMeter, merge_of
from analyzers.comparison.sparsity.analyze import report_of
from analyzers.comparison.sparsity.matrices import Spectra
from analyzers.core.report import Timing, content_id, environment
from analyzers.core.request import Progress, WeightsRequest
from analyzers.numerics.blas_threads import one_blas_thread

# Most checkpoints of which every two are compared in the sizes of their updates, which takes memory.
_SIZED = 4


def analyze(request: CompareRequest, access: Access | None = None, *, largest: int | None = None) -> Iterator[Progress | CompareReport]:
    """Compare the models; yields progress in bytes, then the report.

    The last model is explained by the others. Weights may show that another one is the descendant: the model that resembles it most is
    explained too, from the same sums, and the verdict that says more is kept. If layers moved and that model was not the first side, all
    are read once more with it as the first: layers are numbered as those of the first side. access, largest: as in `parents.analyze`, of
    each pass. Raises MantissaError.
    """
    start, access, number = perf_counter(), access or Access(), len(request.models)
    with ExitStack() as stack:
        stack.enter_context(one_blas_thread())
        names = [f"Model {i}" for i in range(1, number + 1)] if number > 1 else ["Model"]
        sides = yield from open_models(request.models, names, request, access, stack, into_first=True)
        check_different(sides, names)
        models = _Models(request, sides)
        if number == 1:
            yield from find(models.request, access, stack, models.opened)
        matching = Matching(request.include, request.exclude)
        comparison = yield from _compare(models, matching, largest)
        if (first := comparison.first) is not None:
            models.put_first(first, comparison)
            again = yield from _compare(models, matching, largest, given=True)
            # Another side is explained, whose verdict has to say as much as the one before; more if that one had a choice.
            better, worse = says(again.parents), says(comparison.parents)
            comparison = again if better > worse or (comparison.x and better == worse) else comparison
        yield from comparison.report(start)


def _compare(models: "_Models", matching: Matching, largest: int | None, given: bool = False) -> Generator[Progress, None, "_Comparison"]:
    """Read the models and explain one of them, by default the one of which more can be said. given: explain the first side."""
    opened = yield from screen(models.request, models.opened, matching, largest)
    sides, last = opened.sides, len(opened.sides) - 1
    merge = merge_of(sides[1], sides[0]) if last == 1 else None
    meter = AdapterMeter(merge, (1, 0)) if merge is not None else None
    base, *tuned = models.in_order()
    task = Task(
        every_pair(len(sides)),
        sized=every_pair(len(sides)) if last < _SIZED else [(0, side) for side in range(1, last + 1)],
        since=base,
        overlaps=tuned if len(tuned) > 1 else (),
        placed=0,
        eta=models.asked.eta,
    )
    found = Pass(models.asked, sides, opened.names, matching, task, largest=largest, watch=meter.watch if meter is not None else None)
    yield from found.read(opened.nbytes)
    return _Comparison(models, found, opened, meter, given)


class _Models:
    """The models, the last one first, as `Opened`; the request that asks for its parents; and the canonical names in the order given."""

    def __init__(self, asked: CompareRequest, sides: Sequence[Checkpoint]) -> None:
        self.asked, self.named, self.facts = asked, canonical_names(asked.models, sides), [side.facts() for side in sides]
        # What is made of another model is explained by it; else the last one by the others.
        order = sorted(range(len(sides)), key=lambda at: (isinstance(sides[at], MergedCheckpoint), at))
        order = [order[-1], *order[:-1]]
        others = len(sides) - 1
        self.opened = Opened([sides[at] for at in order], ["Model", *side_names(others)], ["named"] * others)
        self.last = self.opened.sides[0]

    def put_first(self, side: int, after: "_Comparison") -> None:
        """Make another side the first one of a pass after this comparison."""
        self.opened.sides.insert(0, self.opened.sides.pop(side))
        self.opened.nbytes, self.opened.seconds = after.nbytes, after.seconds

    def in_order(self) -> list[int]:
        """Return the sides in the order in which they were named, the first one last: a trajectory, if they are one."""
        at = {(side.ref, side.commit): number for number, side in enumerate(self.opened.sides)}
        named = [at[each.ref, each.commit] for each in self.facts]
        return [*(number for number in named if number), *(number for number in range(len(at)) if number and number not in named), 0]

    def options(self, kind: Any, **fields: Any) -> Any:
        """Return a request of this kind, with the options that all analyses of weights share."""
        return kind(**{name: getattr(self.asked, name) for name in WeightsRequest.model_fields} | fields)

    @property
    def request(self) -> ParentsRequest:
        """The request for the parents of the first side."""
        model, *others = [with_commits(side.ref, side.commit) for side in self.opened.sides]
        named, suggested = (tuple(others), ()) if len(self.facts) > 1 else ((), self.asked.suggested)
        request: ParentsRequest = self.options(ParentsRequest, model=model, candidates=named, suggested=suggested)
        return request


class _Comparison:
    """What a pass over the models says of them, its first side the last model: ``parents``, on side ``x``."""

    def __init__(self, models: _Models, found: Pass, opened: Opened, meter: AdapterMeter | None, given: bool) -> None:
        self._models, self._pass, self._opened, self._meter = models, found, opened, meter
        self.nbytes, self.seconds = opened.nbytes + found.nbytes, opened.seconds + found.seconds
        self._likeness = Likeness(found.table)
        self._start = perf_counter()
        self.x, self.parents = (0, self._explain(0)) if given else self._explained()

    @property
    def first(self) -> int | None:
        """The side that has to be the first of another pass, None if this one suffices.

        Layers are numbered as those of the first side, of which a model that repeats or mixes layers has more.
        """
        moved, sizes = any(each.layers for each in self._pass.alignment.unmatched), [side.parameters for side in self._pass.sides]
        if len(sizes) != len(self._models.facts):
            return None
        if self.x:
            return self.x if moved else None
        mixed = len(sizes) > 2 and (moved or self.parents.answer.code == "damaged")
        return sizes.index(max(sizes)) if mixed and max(sizes) > sizes[0] else None

    def report(self, start: float) -> Iterator[Progress | CompareReport]:
        """Compose the report."""
        found, models, parents = self._pass, self._models, self.parents
        request, order = models.asked, self._order()
        spectra = Spectra(found, [order[0], order[-1]], "cpu") if order and request.spectral else None
        if spectra is not None:
            yield from spectra.read(found.nbytes)
        sparsity = self._changes(order, spectra) if order else None
        nbytes = self.nbytes + (spectra.nbytes if spectra else 0)
        named = [(each.ref, each.commit) for each in models.facts]
        named += [(row.ref, row.commit) for row in parents.candidates if row.source != "named"]
        resolved = request.model_copy(update={"models": (), "suggested": ()}).resolved("cpu")
        counted = sparsity if parents.verdict == "derived" else None  # the answer rests on it
        said = {note.code for note in parents.notes}
        yield CompareReport(
            id=content_id("compare", ANALYSIS_VERSION, resolved | {"models": named}),
            analysis_version=ANALYSIS_VERSION,
            request=request.model_copy(update={"models": tuple(models.named)}),
            models=tuple(models.facts),
            relation=Relation(
                kind=parents.verdict,
                model=parents.checkpoint.ref,
                sources=parents.parents,
                direction=direction(parents, found.sides[self.x] is models.last and len(models.facts) > 1),
                changed_share=sparsity.update_fraction if sparsity else None,
            ),
            parents=parents,
            sparsity=sparsity,
            mode=request.mode,
            bytes_read=nbytes,
            answer=answer(parents, sparsity),
            advice=advice(parents, sparsity),
            notes=(*of_others(parents), *parents.notes, *(note for note in (counted.notes if counted else ()) if note.code not in said)),
            coverage=coverage([parents, counted] if counted else [parents]),
            timing=Timing.since(start, nbytes, found.seconds),
            environment=environment("cpu", ("numpy", "numba", "torch", "huggingface_hub", "pydantic")),
        )

    def _explained(self) -> tuple[int, ParentsReport]:
        """Explain the last model by the others, or the one that resembles it most if that says more; return its side, too."""
        report = self._explain(0)
        nearest = self._nearest(report)
        if len(self._models.facts) == 1 or nearest is None:
            return 0, report
        if report.verdict == "same-weights":  # the one that was rounded is explained
            wider = self._pass.table.digits(0) > self._pass.table.digits(nearest)
            return (nearest, self._explain(nearest)) if wider and report.answer.code == "same-rounded" else (0, report)
        if len(self._pass.sides) == 2 and not Explanation(self._pass, self._likeness, nearest, self._opened).may_say_more:
            return 0, report
        reverse = self._explain(nearest)
        # A checkpoint in the middle of a run is nearly a combination of the others, which does not make it a merge; and that others are the
        # same says less of the last one than what it comes from.
        between = report.verdict == "derived" and reverse.verdict in ("merge", "same-weights")
        return (nearest, reverse) if says(reverse) > says(report) and not between else (0, report)

    def _nearest(self, report: ParentsReport) -> int | None:
        """Return the side that may come from the others instead: with the largest weight, else the most similar.

        If M = a A + b B with positive weights, then B = M / b - (a / b) A: the merge has the largest weight wherever it stands.
        """
        weights = {each.ref: each.weight for each in report.fit.parents} if report.fit and report.verdict == "merge" else {}
        row = max(report.candidates, key=lambda each: weights.get(each.ref, float("-inf")))
        return self._side(row.ref, row.commit)

    def _explain(self, x: int) -> ParentsReport:
        """Explain the model at side ``x`` by the others."""
        sides = [self._pass.sides[x], *(side for number, side in enumerate(self._pass.sides) if number != x)]
        model, *others = [with_commits(side.ref, side.commit) for side in sides]
        request = self._models.request
        request = request.model_copy(update={"model": model, "candidates": tuple(others) if request.candidates else ()})
        return parents_of(Explanation(self._pass, self._likeness, x, self._opened), request, self._start)

    def _side(self, ref: str, commit: str) -> int | None:
        return next((at for at, side in enumerate(self._pass.sides) if (side.ref, side.commit) == (ref, commit)), None)

    def _order(self) -> list[int]:
        """Return the sides on the way to the model explained, the base first; none if it is related to no other.

        They begin with the best candidate, or are all related ones in the order given: a trajectory.
        """
        x, parents = self.x, self.parents
        if parents.verdict == "unrelated":
            return []
        best = parents.candidates[0]
        before = [self._side(best.ref, best.commit)]
        if parents.verdict == "derived" and len(self._models.facts) > 1:
            same = {(row.ref, row.commit) for row in parents.candidates if row.related} | {(best.ref, best.commit)}
            before = [self._side(each.ref, each.commit) for each in self._models.facts if (each.ref, each.commit) in same]
        known = [side for side in before if side is not None and side != x]
        sized = x == 0 or len(self._pass.sides) <= _SIZED
        return [*known, x] if known and sized and self._pass.table.sums(known[0], x, weighed=False)["values"] else []

    def _changes(self, order: Sequence[int], spectra: Spectra | None) -> SparsityReport:
        """Report what changed over the sides ``order``."""
        asked = self._models.asked
        base, *tuned = [with_commits(self._pass.sides[side].ref, self._pass.sides[side].commit) for side in order]
        request = self._models.options(SparsityRequest, base=base, tuned=tuple(tuned), eta=asked.eta, spectral=asked.spectral)
        meter = self._meter if list(order) == [1, 0] else None
        return report_of(self._pass, order, request, self._start, "cpu", spectra, meter)
