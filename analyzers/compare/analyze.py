"""Compares checkpoints: which of them comes from the others (parents), then what changed on the way (update sparsity)."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from time import perf_counter
from typing import Any, Literal

from analyzers.base import Progress, Report, Timing, WeightsRequest, content_id, environment
from analyzers.checkpoints import Access, MergedCheckpoint, canonical_names, check_side, open_sides, with_commits
from analyzers.compare.report import ANALYSIS_VERSION, CompareReport, CompareRequest, Relation
from analyzers.compare.sentences import changes, sentence
from analyzers.errors import InvalidRequest, LimitExceeded, UnsupportedWeights
from analyzers.parents import ParentsReport, ParentsRequest
from analyzers.parents import analyze as analyze_parents
from analyzers.parents.construction import BY_CONSTRUCTION
from analyzers.parents.facts import related
from analyzers.update_sparsity import SparsityReport, SparsityRequest
from analyzers.update_sparsity import analyze as analyze_sparsity

# Rank of stacks and exact merges, whose direction the weights show; and the residual, in multiples of rounding, of other complete merges.
_SHOWN, _ROUNDED = 3, 2.0


def analyze(request: CompareRequest, access: Access | None = None, *, largest: int | None = None) -> Iterator[Progress | CompareReport]:
    """Compare the models; yields progress in bytes, then the report.

    The last model is explained by the others. Weights may show that another one is the descendant: the model that resembles it most is
    explained too, by a sample, and the verdict that says more is kept. access, largest: as in `parents.analyze`, for each pass. Raises
    MantissaError.
    """
    start = perf_counter()
    comparison = _Comparison(request, access or Access(), largest)
    yield from comparison.open()
    parents = yield from comparison.explain()
    sparsity, notes = yield from comparison.count(parents)
    yield comparison.report(parents, sparsity, notes, start)


class _Comparison:
    """The models with their commits, and the analyses that are asked about them."""

    def __init__(self, request: CompareRequest, access: Access, largest: int | None) -> None:
        self._request, self._access, self._largest = request, access, largest
        self._pinned: dict[tuple[str, str], str] = {}
        self._nbytes = 0

    def open(self) -> Iterator[Progress]:
        """Resolve the models once, so that all passes read the same commits."""
        request, number = self._request, len(self._request.models)
        names = [f"Model {i}" if number > 1 else "Model" for i in range(1, number + 1)]
        sides = yield from open_sides(request.models, names, self._access, request.subfolder, into_first=True)
        try:
            # What is made of another model is explained by it.
            for side, name in sorted(zip(sides, names, strict=True), key=lambda each: isinstance(each[0], MergedCheckpoint)):
                check_side(side, name, bool(request.include))
                if (side.ref, side.commit) in self._pinned:
                    raise InvalidRequest(f"{name}, {side.ref}, is the same checkpoint as one before it: name different models.")
                self._pinned[side.ref, side.commit] = with_commits(side.ref, side.commit)
            self._facts = [side.facts() for side in sides]
            self._named = canonical_names(request.models, sides)
        finally:
            for side in sides:
                side.close()

    def explain(self) -> Generator[Progress, None, ParentsReport]:
        """Explain the last model by the others, or the one that resembles it most if that says more."""
        subject, mode = [*self._pinned.values()][-1], self._request.mode
        several = len(self._pinned) > 1
        report = yield from self._parents(subject, "quick" if several else mode)
        unrelated = len(self._pinned) == 2 and report.verdict in ("unrelated", "undecided")
        if several and report.verdict != "same-weights" and not unrelated:
            reverse = yield from self._parents(self._pinned[_nearest(report)], "quick")
            # A checkpoint in the middle of a run is nearly a combination of the others, which does not make it a merge.
            between = report.verdict == "derived" and reverse.verdict == "merge"
            if _says(reverse) > _says(report) and not between:
                subject, report = self._pinned[_nearest(report)], reverse
        if report.mode != mode:
            report = yield from self._parents(subject, mode)
        return report

    def count(self, parents: ParentsReport) -> Generator[Progress, None, tuple[SparsityReport | None, list[str]]]:
        """Count what changed on the way to the model that is explained; returns notes if that is not possible."""
        if parents.verdict == "unrelated":
            return None, []
        subject, best = parents.checkpoint, parents.candidates[0]
        before = [(best.ref, best.commit)]
        if parents.verdict == "derived":  # related models in the order given: a trajectory
            same = {(row.ref, row.commit) for row in parents.candidates if related(row)} | {*before}
            before = [key for key in self._pinned if key in same] or before
        base, *tuned = [self._pinned.get(key) or with_commits(*key) for key in (*before, (subject.ref, subject.commit))]
        request = self._options(SparsityRequest, self._request.mode, base=base, tuned=tuple(tuned))
        request = request.model_copy(update={"eta": self._request.eta, "spectral": self._request.spectral})
        try:
            report = yield from self._ask(analyze_sparsity(request, self._access, largest=self._largest))
        except (InvalidRequest, UnsupportedWeights, LimitExceeded) as error:
            return None, [f"What changed was not counted: {error}"]
        changed = changes(report)
        if changed and parents.verdict != "derived":  # its statement is about a fine-tune
            report = report.model_copy(update={"statement": f"{changed[:1].upper()}{changed[1:]}"})
        return report, []

    def report(self, parents: ParentsReport, sparsity: SparsityReport | None, notes: Sequence[str], start: float) -> CompareReport:
        """Compose the report."""
        request = self._request
        found = [row for row in parents.candidates if row.source != "named"]
        direction = _direction(parents, self._is_last(parents))
        named = [(each.ref, each.commit) for each in self._facts] + [(each.ref, each.commit) for each in found]
        options = request.model_copy(update={"models": (), "suggested": ()}).resolved("cpu")
        several = [*notes, *parents.notes, *(sparsity.notes if sparsity else ())]
        return CompareReport(
            id=content_id("compare", ANALYSIS_VERSION, options | {"models": named}),
            analysis_version=ANALYSIS_VERSION,
            request=request.model_copy(update={"models": tuple(self._named)}),
            models=tuple(self._facts),
            relation=Relation(
                kind=parents.verdict,
                model=parents.checkpoint.ref,
                sources=parents.parents,
                direction=direction,
                changed_share=sparsity.update_fraction if sparsity else None,
                sentence=sentence(parents, sparsity, direction),
            ),
            parents=parents,
            sparsity=sparsity,
            mode=request.mode,
            bytes_read=self._nbytes,
            notes=tuple(dict.fromkeys(several)),
            timing=Timing.since(start, self._nbytes, sum(part.timing.reading_seconds for part in (parents, sparsity) if part)),
            environment=environment("cpu", ("numpy", "numba", "scipy", "torch", "huggingface_hub", "pydantic")),
        )

    def _is_last(self, parents: ParentsReport) -> bool:
        side = parents.checkpoint
        return len(self._pinned) > 1 and (side.ref, side.commit) == [*self._pinned][-1]

    def _parents(self, subject: str, mode: str) -> Generator[Progress, None, ParentsReport]:
        others = tuple(name for name in self._pinned.values() if name != subject)
        suggested = () if others else self._request.suggested
        request = self._options(ParentsRequest, mode, model=subject, candidates=others, suggested=suggested)
        report: ParentsReport = yield from self._ask(analyze_parents(request, self._access, largest=self._largest))
        return report

    def _options(self, kind: Any, mode: str, **fields: Any) -> Any:
        """Return a request of this kind, with the options that all analyses of weights share."""
        return kind(**{name: getattr(self._request, name) for name in WeightsRequest.model_fields} | {"mode": mode} | fields)

    def _ask(self, analysis: Iterator[Any]) -> Generator[Progress, None, Any]:
        before = self._nbytes
        with closing(analysis) as steps:  # type: ignore[type-var]
            for step in steps:
                if isinstance(step, Report):
                    self._nbytes += vars(step)["bytes_read"]
                    return step
                yield step.model_copy(update={"done": before + step.done, "total": before + step.total})
        raise AssertionError("an analysis ends with its report")


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
    if verdict == "merge" and fit is not None and fit.sparse is None:
        if fit.weights_by == "exact-values":
            return _SHOWN, fit.exact_share or 0.0
        explained = (fit.residual or 1.0) <= _ROUNDED * (fit.rounding or 0.0) and all(each.weight > 0 for each in fit.parents)
        return (_SHOWN - 1 if explained else 1), 0.0
    if verdict == "stack":  # of two models made of the same layers, the larger one repeats some
        return _SHOWN, float(report.checkpoint.parameters)
    return {"same-weights": 5, "quantized-copy": 4, "merge": 1, "derived": 1}.get(verdict, 0), 0.0


def _direction(report: ParentsReport, last: bool) -> Literal["shown", "assumed"] | None:
    """Return whether weights, or references, show which model came first; None if nothing does. last: it explains the last of several."""
    if report.statement.startswith(BY_CONSTRUCTION):
        return "shown"
    if report.verdict in ("same-weights", "unrelated", "undecided"):
        return None
    sources = [(row.ref, row.source) for row in report.layer_map]
    stacked = report.verdict == "stack" and (len(report.parents) > 1 or len(set(sources)) < len(sources))
    merged = report.verdict == "merge" and _says(report)[0] > 1
    return "shown" if stacked or merged or report.verdict == "quantized-copy" else "assumed" if last else None
