"""Compares checkpoints: which of them comes from the others (parents), and what changed on the way (sparsity), from the same sums."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from time import perf_counter
from typing import Any, Literal

from analyzers.checkpoints import Access, Checkpoint, Matching, MergedCheckpoint, canonical_names, check_side, open_sides, with_commits
from analyzers.comparison.compare.report import ANALYSIS_VERSION, CompareReport, CompareRequest, Relation
from analyzers.comparison.compare.words import WORDS
from analyzers.comparison.counting import Task
from analyzers.comparison.parents import ParentsReport, ParentsRequest
from analyzers.comparison.parents.analyze import screen
from analyzers.comparison.parents.candidates import Opened, find
from analyzers.comparison.parents.explain import Explanation, Known
from analyzers.comparison.parents.facts import pruned, related
from analyzers.comparison.parents.likeness import Likeness
from analyzers.comparison.parents.report import distinct_names
from analyzers.comparison.reading import Pass, every_pair
from analyzers.comparison.sparsity import SparsityReport, SparsityRequest
from analyzers.comparison.sparsity.adapters import AdapterMeter, merge_of
from analyzers.comparison.sparsity.analyze import Spectra, report_of
from analyzers.core.coverage import Coverage
from analyzers.core.errors import InvalidRequest
from analyzers.core.notes import Advice, Note
from analyzers.core.records import Interval
from analyzers.core.report import Timing, content_id, environment
from analyzers.core.request import Progress, WeightsRequest
from analyzers.numerics.blas_threads import one_blas_thread

# Rank of stacks and exact merges, whose direction the weights show; and the residual, in multiples of rounding, of other complete merges.
_SHOWN, _ROUNDED = 3, 2.0
# Most checkpoints of which every two are compared in the sizes of their updates, which takes memory.
_SIZED = 4

# Answers that no training explains: what changed is no update that one would ship.
_NO_UPDATE = ("damaged", "replaced", "scaled", "reordered")


def analyze(request: CompareRequest, access: Access | None = None, *, largest: int | None = None) -> Iterator[Progress | CompareReport]:
    """Compare the models; yields progress in bytes, then the report.

    The last model is explained by the others. Weights may show that another one is the descendant: the model that resembles it most is
    explained too, from the same sums, and the verdict that says more is kept. If layers moved and that model was not the first side, all
    are read once more with it as the first: layers are numbered as those of the first side. access, largest: as in `parents.analyze`, of
    each pass. Raises MantissaError.
    """
    start = perf_counter()
    access = access or Access()
    with ExitStack() as stack:
        stack.enter_context(one_blas_thread())
        models = yield from _open(request, access, stack)
        matching = Matching(request.include, request.exclude)
        comparison = yield from _compare(request, models, matching, Known(models.opened.sources, notes=models.opened.notes), largest)
        first = comparison.first
        if first is not None:
            models.put_first(first)
            again = yield from _compare(request, models, matching, comparison.known, largest, given=True)
            comparison = again if again.says_as_much_as(comparison) else comparison
        yield from comparison.report(start)


def _compare(
    request: CompareRequest, models: "_Models", matching: Matching, known: Known, largest: int | None, given: bool = False
) -> Generator[Progress, None, "_Comparison"]:
    """Read the models once. given: the first side is the one that is explained."""
    sides, names, known = yield from screen(models.request, models.opened, matching, known, largest)
    last, every = len(sides) - 1, every_pair(len(sides))
    merge = merge_of(sides[1], sides[0]) if last == 1 else None
    meter = AdapterMeter(merge, (1, 0)) if merge is not None else None
    task = Task(
        every,
        sized=every if last < _SIZED else [pair for pair in every if 0 in pair],
        overlaps=range(1, last + 1) if last > 1 else (),
        placed=1 if last == 1 else None,
        eta=request.eta,
    )
    found = Pass(request, sides, names, matching, task, largest=largest, watch=meter.watch if meter is not None else None)
    yield from found.read(known.nbytes)
    return _Comparison(request, models, found, known, meter, given)


class _Models:
    """The models, the last one first, as `Opened`; the request that asks for its parents; and the canonical names in the order given."""

    def __init__(self, request: CompareRequest, sides: Sequence[Checkpoint]) -> None:
        self.sides, self.named = sides, canonical_names(request.models, sides)
        self.facts = [side.facts() for side in sides]
        # What is made of another model is explained by it; else the last one by the others.
        order = sorted(range(len(sides)), key=lambda at: (isinstance(sides[at], MergedCheckpoint), at))
        order = [order[-1], *order[:-1]]
        self.opened = Opened([sides[at] for at in order], ["named"] * (len(sides) - 1), [])
        self.last = self.opened.sides[0]
        self._set_request(options(request, ParentsRequest, model="", suggested=request.suggested if len(sides) == 1 else ()))

    def put_first(self, side: int) -> None:
        """Make another side the first one."""
        self.opened.sides.insert(0, self.opened.sides.pop(side))
        self._set_request(self.request)

    def _set_request(self, request: ParentsRequest) -> None:
        self.pinned = [with_commits(side.ref, side.commit) for side in self.opened.sides]
        self.request = request.model_copy(update={"model": self.pinned[0], "candidates": tuple(self.pinned[1:])})


def _open(request: CompareRequest, access: Access, stack: ExitStack) -> Generator[Progress, None, _Models]:
    """Open the models, and the candidates of a single one."""
    number = len(request.models)
    names = [f"Model {i}" if number > 1 else "Model" for i in range(1, number + 1)]
    sides = yield from open_sides(request.models, names, access, request.subfolder, into_first=True)
    for side in sides:
        stack.enter_context(side)
    seen = set[tuple[str, str]]()
    for side, name in zip(sides, names, strict=True):
        check_side(side, name, bool(request.include))
        if (side.ref, side.commit) in seen:
            raise InvalidRequest(f"{name}, {side.ref}, is the same checkpoint as one before it: name different models.")
        seen.add((side.ref, side.commit))
    models = _Models(request, sides)
    if number == 1:
        yield from find(models.request, access, stack, models.opened)
    return models


def options(request: CompareRequest, kind: Any, **fields: Any) -> Any:
    """Return a request of this kind, with the options that all analyses of weights share."""
    return kind(**{name: getattr(request, name) for name in WeightsRequest.model_fields} | fields)


class _Comparison:
    """What a pass over the models says of them; its first side is the last model."""

    def __init__(
        self, request: CompareRequest, models: _Models, found: Pass, known: Known, meter: AdapterMeter | None, given: bool
    ) -> None:
        self._request, self._models, self._pass, self._known, self._meter = request, models, found, known, meter
        self._likeness = Likeness(found.table)
        self._start = perf_counter()
        self._x, self._parents = (0, self._explain(0)) if given else self._explained()

    @property
    def known(self) -> Known:
        """What is known to a pass after this one."""
        return replace(self._known, nbytes=self._known.nbytes + self._pass.nbytes, seconds=self._known.seconds + self._pass.seconds)

    @property
    def first(self) -> int | None:
        """The side that has to be the first of another pass, None if this one suffices.

        Layers are numbered as those of the first side, of which a model that repeats or mixes layers has more.
        """
        moved, sizes = any(each.layers for each in self._pass.alignment.unmatched), [side.parameters for side in self._pass.sides]
        if len(sizes) != len(self._models.facts):
            return None
        if self._x:
            return self._x if moved else None
        mixed = len(sizes) > 2 and (moved or self._parents.answer.code == "damaged")
        return sizes.index(max(sizes)) if mixed and max(sizes) > sizes[0] else None

    def says_as_much_as(self, other: "_Comparison") -> bool:
        """Return whether this pass, in which another side is explained, says as much as the one before; more if that one had a choice."""
        ours, theirs = _says(self._parents), _says(other._parents)
        return ours >= theirs if other._x else ours > theirs

    def report(self, start: float) -> Iterator[Progress | CompareReport]:
        """Compose the report."""
        request, found, models = self._request, self._pass, self._models
        x, parents = self._x, self._parents
        order = self._order(x, parents)
        spectra = Spectra(found, [order[0], order[-1]], "cpu") if order and request.spectral else None
        if spectra is not None:
            yield from spectra.read(found.nbytes)
        sparsity = self._changes(order, spectra) if order else None
        nbytes = self._known.nbytes + found.nbytes + (spectra.nbytes if spectra else 0)
        rows = [row for row in parents.candidates if row.source != "named"]
        named = [(each.ref, each.commit) for each in models.facts] + [(each.ref, each.commit) for each in rows]
        resolved = request.model_copy(update={"models": (), "suggested": ()}).resolved("cpu")
        counted = sparsity if parents.verdict == "derived" else None  # the answer rests on it
        said = {note.code for note in parents.notes}
        more = [note for note in counted.notes if note.code not in said] if counted else []
        yield CompareReport(
            id=content_id("compare", ANALYSIS_VERSION, resolved | {"models": named}),
            analysis_version=ANALYSIS_VERSION,
            request=request.model_copy(update={"models": tuple(models.named)}),
            models=tuple(models.facts),
            relation=Relation(
                kind=parents.verdict,
                model=parents.checkpoint.ref,
                sources=parents.parents,
                direction=_direction(parents, found.sides[x] is models.last and len(models.facts) > 1),
                changed_share=sparsity.update_fraction if sparsity else None,
            ),
            parents=parents,
            sparsity=sparsity,
            mode=request.mode,
            bytes_read=nbytes,
            answer=_answer(parents, sparsity),
            advice=_advice(parents, sparsity),
            notes=(*_of_others(parents), *parents.notes, *more),
            coverage=_coverage([parents, counted] if counted else [parents]),
            timing=Timing.since(start, nbytes, found.seconds),
            environment=environment("cpu", ("numpy", "numba", "torch", "huggingface_hub", "pydantic")),
        )

    def _explained(self) -> tuple[int, ParentsReport]:
        """Explain the last model by the others, or the one that resembles it most if that says more; return its side, too."""
        report = self._explain(0)
        nearest = self._side(*_nearest(report))
        if len(self._models.facts) == 1 or nearest is None:
            return 0, report
        if report.verdict == "same-weights":  # the one that was rounded is explained
            wider = self._pass.table.digits(0) > self._pass.table.digits(nearest)
            return (nearest, self._explain(nearest)) if wider and report.answer.code == "same-rounded" else (0, report)
        if len(self._pass.sides) == 2 and not Explanation(self._pass, self._likeness, nearest, self._known).may_say_more:
            return 0, report
        reverse = self._explain(nearest)
        return (nearest, reverse) if _is_better(reverse, report) else (0, report)

    def _explain(self, x: int) -> ParentsReport:
        """Explain the model at side ``x`` by the others."""
        sides = [self._pass.sides[side] for side in (x, *(side for side in range(len(self._pass.sides)) if side != x))]
        pinned = [with_commits(side.ref, side.commit) for side in sides]
        request = self._models.request
        if request.candidates:
            request = request.model_copy(update={"model": pinned[0], "candidates": tuple(pinned[1:])})
        return Explanation(self._pass, self._likeness, x, self._known).report(request, [pinned[0], *request.candidates], self._start)

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
        if parents.verdict == "derived" and len(self._models.facts) > 1:
            same = {(row.ref, row.commit) for row in parents.candidates if related(row)} | {(best.ref, best.commit)}
            before = [self._side(each.ref, each.commit) for each in self._models.facts if (each.ref, each.commit) in same]
        known = [side for side in before if side is not None and side != x]
        sized = x == 0 or len(self._pass.sides) <= _SIZED
        return [*known, x] if known and sized and self._pass.table.sums(known[0], x, weighed=False)["values"] else []

    def _changes(self, order: Sequence[int], spectra: Spectra | None) -> SparsityReport:
        """Report what changed over the sides ``order``."""
        base, *tuned = [with_commits(self._pass.sides[side].ref, self._pass.sides[side].commit) for side in order]
        request = options(self._request, SparsityRequest, base=base, tuned=tuple(tuned))
        request = request.model_copy(update={"eta": self._request.eta, "spectral": self._request.spectral})
        meter = self._meter if list(order) == [1, 0] else None
        return report_of(self._pass, order, request, [base, *tuned], self._start, "cpu", spectra, meter)


def _nearest(report: ParentsReport) -> tuple[str, str]:
    """Return reference and commit of the candidate that may come from the others instead: with the largest weight, else the most similar.

    If M = a A + b B with positive weights, then B = M / b - (a / b) A: the merge has the largest weight wherever it stands.
    """
    weights = {each.ref: each.weight for each in report.fit.parents} if report.fit and report.verdict == "merge" else {}
    row = max(report.candidates, key=lambda each: weights.get(each.ref, float("-inf")))
    return row.ref, row.commit


def _says(report: ParentsReport) -> tuple[int, float]:
    """Return how much a verdict says, so that the larger one has the direction: first its kind, then the share or size that supports it."""
    verdict, fit = report.verdict, report.fit
    if verdict == "merge" and fit is not None:
        adds = all(each.weight >= 0 for each in fit.parents)  # else it is what a merge leaves once the others are taken away
        if fit.weights_by == "exact-values":
            return _SHOWN - (not adds), fit.exact_share or 0.0
        explained = adds and (fit.residual or 1.0) <= _ROUNDED * (fit.rounding or 0.0)
        return (_SHOWN - 1 if explained else 1), 0.0
    if verdict == "stack":  # of two models made of the same layers, the larger one repeats some
        return _SHOWN, float(report.checkpoint.parameters)
    if verdict == "derived" and pruned(report.candidates[0]):  # zeros tell which one was pruned
        return _SHOWN - 1, 0.0
    return {"same-weights": 5, "quantized-copy": 4, "merge": 1, "derived": 1}.get(verdict, 0), 0.0


def _is_better(reverse: ParentsReport, report: ParentsReport) -> bool:
    """Return whether a verdict on another model says more than that on the last one."""
    # A checkpoint in the middle of a run is nearly a combination of the others, which does not make it a merge; and that others are the
    # same says less of the last one than what it comes from.
    between = report.verdict == "derived" and reverse.verdict in ("merge", "same-weights")
    return _says(reverse) > _says(report) and not between


def _direction(report: ParentsReport, last: bool) -> Literal["shown", "assumed"] | None:
    """Return whether weights, or references, show which model came first; None if nothing does. last: it explains the last of several."""
    if report.construction is not None and report.verdict == "derived":
        return "shown"
    if report.verdict in ("same-weights", "unrelated", "undecided"):
        return None
    sources = [(row.ref, row.source) for row in report.layer_map]
    stacked = report.verdict == "stack" and (len(report.parents) > 1 or len(set(sources)) < len(sources))
    merged = report.verdict == "merge" and _says(report)[0] > 1
    told = report.verdict == "quantized-copy" or (report.verdict == "derived" and pruned(report.candidates[0]))
    return "shown" if stacked or merged or told else "assumed" if last else None


def _answer(parents: ParentsReport, sparsity: SparsityReport | None) -> Note:
    """Return the answer of parents, with the share of the weights that changed where that says more than a distance."""
    code = parents.answer.code
    if sparsity is None or sparsity.update_fraction is None or code not in ("derived", "similar"):
        return parents.answer
    fraction, of_sparsity = sparsity.update_fraction, sparsity.interval
    changed: float | Interval = fraction
    if of_sparsity is not None:
        changed = Interval(estimate=fraction, low=1 - of_sparsity.high, high=1 - of_sparsity.low)
    base, *_, last = distinct_names([sparsity.base, *sparsity.tuned])
    values = parents.answer.values | {"changed": changed, "values": sparsity.values_compared, "base": base, "last": last}
    return WORDS.note("pair" if len(parents.candidates) == 1 else code, **values)


def _advice(parents: ParentsReport, sparsity: SparsityReport | None) -> Advice:
    """Return the advice of the report that is closer to the question."""
    if parents.verdict in ("unrelated", "undecided"):
        return WORDS.advice("other-models", "dtype", parents.checkpoint.ref, model=parents.checkpoint.ref)
    if sparsity is None or parents.verdict != "derived" or parents.answer.code in _NO_UPDATE:
        return parents.advice
    return sparsity.advice


def _of_others(parents: ParentsReport) -> Iterator[Note]:
    """Yield what the model is to those that the verdict does not name."""
    others = [row for row in parents.candidates if row.ref not in parents.parents and row.compared]
    if parents.verdict == "unrelated" and len(others) > 1:
        yield WORDS.note("others-not-asked", model=parents.checkpoint.ref)
    if parents.verdict in ("unrelated", "undecided"):
        return
    akin = tuple(row.ref for row in others if related(row))
    if akin:
        yield WORDS.note("related-too", names=akin)
    if apart := tuple(row.ref for row in others if row.ref not in akin):
        yield WORDS.note("no-relation", names=apart)


def _coverage(parts: Sequence[ParentsReport | SparsityReport]) -> tuple[Coverage, ...]:
    """Return the coverage of each checkpoint by these reports, the smaller one where both have it."""
    smallest: dict[str, Coverage] = {}
    for each in (account for part in parts for account in part.accounts()):
        known = smallest.get(each.ref)
        if known is None or (each.share is not None and (known.share is None or each.share < known.share)):
            smallest[each.ref] = each
    return tuple(smallest.values())
