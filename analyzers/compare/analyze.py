"""Compares checkpoints: which of them comes from the others (parents), then what changed on the way (update sparsity).

Two checkpoints are read once: each is explained by the other, and what changed is counted, in the same pass. Of several ones over a network
a sample is kept in memory, so that quick mode reads them once too.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from time import perf_counter
from typing import Any, Literal

from analyzers.checkpoints import (
    Access,
    Checkpoint,
    Kept,
    Matching,
    MergedCheckpoint,
    SharedPlan,
    canonical_names,
    check_side,
    open_sides,
    with_commits,
    with_kept,
)
from analyzers.compare.one_pass import OnePass
from analyzers.compare.report import ANALYSIS_VERSION, CompareReport, CompareRequest, Relation
from analyzers.compare.words import WORDS
from analyzers.core.coverage import Coverage
from analyzers.core.errors import InvalidRequest, LimitExceeded, UnsupportedWeights
from analyzers.core.notes import Advice, Note
from analyzers.core.records import Interval
from analyzers.core.report import Timing, content_id, environment
from analyzers.core.request import Progress, WeightsRequest
from analyzers.numerics.blas_threads import one_blas_thread
from analyzers.parents import ParentsReport, ParentsRequest
from analyzers.parents.analyze import FITTED, Pass, Search
from analyzers.parents.candidates import Opened, find, side_names
from analyzers.parents.facts import related
from analyzers.parents.report import distinct_names
from analyzers.update_sparsity import SparsityReport, SparsityRequest
from analyzers.update_sparsity.analyze import Comparison, device_of

# Rank of stacks and exact merges, whose direction the weights show; and the residual, in multiples of rounding, of other complete merges.
_SHOWN, _ROUNDED = 3, 2.0
# Most bytes of a sample over a network that are kept for further passes; of a pair, which is read once, those of short ranges.
_KEPT_BYTES, _KEPT_OF_PAIR, _SHORT = 256 << 20, 32 << 20, 32 << 10

Key = tuple[str, str]  # reference and commit


def analyze(request: CompareRequest, access: Access | None = None, *, largest: int | None = None) -> Iterator[Progress | CompareReport]:
    """Compare the models; yields progress in bytes, then the report.

    The last model is explained by the others. Weights may show that another one is the descendant: the model that resembles it most is
    explained too, and the verdict that says more is kept. access, largest: as in `parents.analyze`, for each pass. Raises MantissaError.
    """
    start = perf_counter()
    with ExitStack() as stack:
        stack.enter_context(one_blas_thread())
        comparison = _Comparison(request, access or Access(), largest, stack)
        yield from comparison.open()
        parents = yield from comparison.explain()
        sparsity, notes = yield from comparison.count(parents)
        yield comparison.report(parents, sparsity, notes, start)


class _Comparison:
    """The models with their commits, and the analyses that are asked about them."""

    def __init__(self, request: CompareRequest, access: Access, largest: int | None, stack: ExitStack) -> None:
        self._request, self._access, self._largest, self._stack = request, access, largest, stack
        self._pinned: dict[Key, str] = {}
        self._sides: dict[Key, Checkpoint] = {}
        self._matching = Matching(request.include, request.exclude)
        self._sampled: tuple[list[Key], Pass] | None = None  # the first sample of several models
        self._counted: tuple[list[Key], Comparison] | None = None  # what changed, if it was counted in the pass of parents
        self._nbytes, self._again = 0, 0.0  # seconds of reading that both reports have

    def open(self) -> Iterator[Progress]:
        """Open the models once, so that all passes read the same commits; and the candidates of a single one."""
        request, number = self._request, len(self._request.models)
        names = [f"Model {i}" if number > 1 else "Model" for i in range(1, number + 1)]
        sides = yield from open_sides(request.models, names, self._access, request.subfolder, into_first=True)
        for side in sides:
            self._stack.enter_context(side)
        # What is made of another model is explained by it.
        for side, name in sorted(zip(sides, names, strict=True), key=lambda each: isinstance(each[0], MergedCheckpoint)):
            check_side(side, name, bool(request.include))
            if (side.ref, side.commit) in self._pinned:
                raise InvalidRequest(f"{name}, {side.ref}, is the same checkpoint as one before it: name different models.")
            self._pinned[side.ref, side.commit] = with_commits(side.ref, side.commit)
            self._sides[side.ref, side.commit] = side
        self._facts = [side.facts() for side in sides]
        self._named = canonical_names(request.models, sides)
        self._opened = Opened(list(self._sides.values()), ["named"] * (number - 1), [])
        if number == 1:
            (model,) = self._pinned.values()
            asked = self._options(ParentsRequest, request.mode, model=model, suggested=request.suggested)
            yield from find(asked, self._access, self._stack, self._opened)
            self._sides |= {(side.ref, side.commit): side for side in self._opened.sides}
        self._kept = Kept(_KEPT_BYTES) if len(self._sides) > 2 else Kept(_KEPT_OF_PAIR, _SHORT)
        self._sides = {key: with_kept(side, self._kept) for key, side in self._sides.items()}

    def explain(self) -> Generator[Progress, None, ParentsReport]:
        """Explain the last model by the others, or the one that resembles it most if that says more."""
        mode, subject = self._request.mode, [*self._pinned][-1]
        if len(self._sides) == 2:
            return (yield from self._explain_pair(subject))
        if len(self._pinned) == 1:
            if mode == "exact":
                self._kept.stop()
            return (yield from self._explain(subject, mode))
        report = yield from self._explain(subject, "quick")
        if report.verdict != "same-weights":
            reverse = yield from self._explain(_nearest(report), "quick")
            if _is_better(reverse, report):
                subject, report = _nearest(report), reverse
        if mode == "exact":
            self._kept.stop()
            report = yield from self._explain(subject, mode, self._before(report) if report.verdict != "unrelated" else ())
        return report

    def count(self, parents: ParentsReport) -> Generator[Progress, None, tuple[SparsityReport | None, list[Note]]]:
        """Count what changed on the way to the model that is explained; returns notes if that is not possible."""
        if parents.verdict == "unrelated":
            return None, []
        start, keys = perf_counter(), [*self._before(parents), (parents.checkpoint.ref, parents.checkpoint.commit)]
        try:
            if self._counted is not None and self._counted[0] == keys:
                comparison = self._counted[1]
            else:
                comparison = self._comparison(keys, self._sample(keys))
                yield from self._follow(comparison, comparison.count())
            yield from self._follow(comparison, comparison.look_further())
            report = comparison.report(start)
        except (InvalidRequest, UnsupportedWeights, LimitExceeded) as error:
            return None, [WORDS.note("not-counted", why=str(error))]
        return report, []

    def report(self, parents: ParentsReport, sparsity: SparsityReport | None, notes: Sequence[Note], start: float) -> CompareReport:
        """Compose the report."""
        request = self._request
        found = [row for row in parents.candidates if row.source != "named"]
        named = [(each.ref, each.commit) for each in self._facts] + [(each.ref, each.commit) for each in found]
        options = request.model_copy(update={"models": (), "suggested": ()}).resolved("cpu")
        reading = sum(part.timing.reading_seconds for part in (parents, sparsity) if part)
        counted = sparsity if parents.verdict == "derived" else None  # the answer rests on it
        known = {note.code for note in parents.notes}
        more = [note for note in counted.notes if note.code not in known] if counted else []
        return CompareReport(
            id=content_id("compare", ANALYSIS_VERSION, options | {"models": named}),
            analysis_version=ANALYSIS_VERSION,
            request=request.model_copy(update={"models": tuple(self._named)}),
            models=tuple(self._facts),
            relation=Relation(
                kind=parents.verdict,
                model=parents.checkpoint.ref,
                sources=parents.parents,
                direction=_direction(parents, self._is_last(parents)),
                changed_share=sparsity.update_fraction if sparsity else None,
            ),
            parents=parents,
            sparsity=sparsity,
            mode=request.mode,
            bytes_read=self._nbytes,
            answer=_answer(parents, sparsity),
            advice=_advice(parents, sparsity),
            notes=(*_of_others(parents), *notes, *parents.notes, *more),
            coverage=_coverage([parents, counted] if counted else [parents]),
            timing=Timing.since(start, self._nbytes, reading - self._again),
            environment=environment("cpu", ("numpy", "numba", "torch", "huggingface_hub", "pydantic")),
        )

    def _is_last(self, parents: ParentsReport) -> bool:
        side = parents.checkpoint
        return len(self._pinned) > 1 and (side.ref, side.commit) == [*self._pinned][-1]

    def _explain_pair(self, subject: Key) -> Generator[Progress, None, ParentsReport]:
        """Explain one of two models by the other one."""
        (other,) = [key for key in self._sides if key != subject]
        keys, exchanged = [subject, other], [other, subject]
        forward, backward = self._search(keys, self._request.mode), self._search(exchanged, self._request.mode)
        planned = forward.prepare(self._request.budget)
        shared = SharedPlan(planned.alignment, planned.plan, (1, 0))
        mirror = backward.prepare(shared=shared) if len(self._pinned) > 1 else None
        both = (backward, mirror) if mirror is not None and mirror.shared else None
        report = yield from self._read(keys, forward, planned, both, exchanged)
        if len(self._pinned) == 1 or report.verdict in ("same-weights", "unrelated", "undecided"):
            return report
        if both is None:
            reverse = yield from self._explain(other, "quick")
            better = _is_better(reverse, report)
            return (yield from self._explain(other, report.mode)) if better and report.mode == "exact" else reverse if better else report
        backward.take(both[1])
        if not (yield from self._follow(backward, backward.may_be_more())):
            return report
        reverse = yield from self._conclude(backward)
        return reverse if _is_better(reverse, report) else report

    def _explain(self, subject: Key, mode: str, before: Sequence[Key] = ()) -> Generator[Progress, None, ParentsReport]:
        """Explain a model by the others. before: the models from which changes are counted in the same pass."""
        keys = [subject, *(key for key in self._sides if key != subject)]
        search = self._search(keys, mode)
        yield from self._follow(search, search.screen())
        if len(keys) > 1 + FITTED:
            yield from self._follow(search, search.read())
            return search.report(search.start)
        planned = search.prepare(shared=self._sample(keys) if mode == "quick" else None)
        if mode == "quick" and self._sampled is None and len(keys) > 2:
            self._sampled = keys, planned
        return (yield from self._read(keys, search, planned, None, [*before, subject] if before else []))

    def _read(
        self, keys: Sequence[Key], search: Search, planned: Pass, exchanged: tuple[Search, Pass] | None, compared: list[Key]
    ) -> Generator[Progress, None, ParentsReport]:
        """Read the models ``keys`` and explain the first one.

        In the same pass, explain the second one by it if ``exchanged`` is given, and count what changed over the models ``compared``, the
        last of them the descendant, if that is possible.
        """
        order = tuple(keys.index(key) for key in compared)
        comparison = self._shared_comparison(compared, SharedPlan(planned.alignment, planned.plan, order)) if compared else None
        if exchanged is None and comparison is None:
            yield from self._follow(search, search.read(planned))
            return search.report(search.start)
        sides, names = [self._sides[key] for key in keys], ["Model", *side_names(len(keys) - 1)]
        one = OnePass(sides, names, (search, planned), exchanged, comparison, order)
        yield from self._follow(one, one.count())
        if comparison is not None:
            self._counted, self._again = (compared, comparison), one.seconds
        search.take(planned)
        return (yield from self._conclude(search))

    def _conclude(self, search: Search) -> Generator[Progress, None, ParentsReport]:
        """Explain a model by what was counted."""
        yield from self._follow(search, search.conclude())
        return search.report(search.start)

    def _before(self, parents: ParentsReport) -> list[Key]:
        """Return the models from which changes are counted: the best candidate, or related models in the order given, a trajectory."""
        best = parents.candidates[0]
        before = [(best.ref, best.commit)]
        if parents.verdict == "derived":
            same = {(row.ref, row.commit) for row in parents.candidates if related(row)} | {*before}
            before = [key for key in self._pinned if key in same] or before
        return before

    def _search(self, keys: Sequence[Key], mode: str) -> Search:
        """Return the analysis of the first of some models by the others."""
        subject, *others = [self._pinned[key] for key in keys] if len(self._pinned) > 1 else [*self._pinned.values()]
        suggested = () if others else self._request.suggested
        request = self._options(ParentsRequest, mode, model=subject, candidates=tuple(others), suggested=suggested)
        opened = replace(self._opened, sides=[self._sides[key] for key in keys], notes=list(self._opened.notes))
        return Search(request, opened, self._largest, self._matching)

    def _comparison(self, keys: Sequence[Key], shared: SharedPlan | None) -> Comparison:
        """Return the comparison of the first of some models with the others. Raises as `analyzers.update_sparsity.analyze` does."""
        base, *tuned = [self._pinned.get(key) or with_commits(*key) for key in keys]
        request = self._options(SparsityRequest, self._request.mode, base=base, tuned=tuple(tuned))
        request = request.model_copy(update={"eta": self._request.eta, "spectral": self._request.spectral})
        sides = [self._sides[key] for key in keys]
        return Comparison(request, sides, device_of(request, self._access), self._largest, self._matching, shared)

    def _shared_comparison(self, keys: Sequence[Key], shared: SharedPlan) -> Comparison | None:
        """Return the comparison if it can share the pass; None if not, or if it is refused, which `count` says then."""
        try:
            comparison = self._comparison(keys, shared)
        except (InvalidRequest, UnsupportedWeights, LimitExceeded):
            return None
        return comparison if comparison.is_shared else None

    def _sample(self, keys: Sequence[Key]) -> SharedPlan | None:
        """Return the plan of the sample of some models that is kept; None if none is."""
        if self._sampled is None or not self._kept.nbytes or self._request.mode == "exact":
            return None
        read, planned = self._sampled
        return SharedPlan(planned.alignment, planned.plan, tuple(read.index(key) for key in keys))

    def _options(self, kind: Any, mode: str, **fields: Any) -> Any:
        """Return a request of this kind, with the options that all analyses of weights share."""
        return kind(**{name: getattr(self._request, name) for name in WeightsRequest.model_fields} | {"mode": mode} | fields)

    def _follow(self, analysis: Search | Comparison | OnePass, steps: Iterator[Progress]) -> Generator[Progress, None, Any]:
        """Yield the steps of an analysis, or of a pass that several count, with the bytes of all that was read before."""
        before, already = self._nbytes, analysis.nbytes
        steps = iter(steps)
        while True:
            try:
                step = next(steps)
            except StopIteration as end:
                self._nbytes = before + analysis.nbytes - already
                return end.value
            yield step.model_copy(update={"done": before + step.done - already, "total": before + step.total - already})


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
        if fit.weights_by == "exact-values":
            return _SHOWN, fit.exact_share or 0.0
        explained = (fit.residual or 1.0) <= _ROUNDED * (fit.rounding or 0.0) and all(each.weight > 0 for each in fit.parents)
        return (_SHOWN - 1 if explained else 1), 0.0
    if verdict == "stack":  # of two models made of the same layers, the larger one repeats some
        return _SHOWN, float(report.checkpoint.parameters)
    return {"same-weights": 5, "quantized-copy": 4, "merge": 1, "derived": 1}.get(verdict, 0), 0.0


def _is_better(reverse: ParentsReport, report: ParentsReport) -> bool:
    """Return whether a verdict on another model says more than that on the last one."""
    # A checkpoint in the middle of a run is nearly a combination of the others, which does not make it a merge.
    between = report.verdict == "derived" and reverse.verdict == "merge"
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
    return "shown" if stacked or merged or report.verdict == "quantized-copy" else "assumed" if last else None


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
    return sparsity.advice if sparsity is not None and parents.verdict == "derived" else parents.advice


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
