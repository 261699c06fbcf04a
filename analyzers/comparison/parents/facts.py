"""Defines the facts that determine a verdict, and what each says: related, proven, pruned, too similar to tell apart."""

from collections.abc import Sequence
from dataclasses import dataclass

from analyzers.comparison.parents.likeness import ABOVE_CHANCE, BEYOND_CHANCE, FEWEST, PROVEN, RELATED, REMAINDER
from analyzers.comparison.parents.report import Candidate, Construction, Conversion, Fit, MovedLayer, Parent, distinct_names
from analyzers.comparison.parents.rounding import is_step_function
from analyzers.comparison.parents.words import WORDS
from analyzers.core.coverage import Coverage
from analyzers.core.notes import Note, Value
from analyzers.core.report import CheckpointFacts


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that determine the verdict.

    candidates: the best first. parents: weights of the candidates that the fit needs. layers: share of the layers in which the best
    candidate is related; akin: number of matrices that are related or equal, and their share of the values; unlike: roles in which the
    candidate is not related. through: the cast that makes all values equal (`Sums.cast`). values: number that were compared with the best
    candidate, and lost: of those that are not equal as stored. broken: values that are not finite in the model, and in the best candidate,
    where the other's are. spike: the largest difference from the best candidate, and its share of the squared distance. steps: shares of
    neighbours that the model, as a function of the best candidate, inverts and merges. at_rounding: whether nothing but rounding is left.
    moved: layers that have other numbers in the best candidate. coverage: of the model and the best candidate. stack: all layers, if they
    come from several candidates; mixed: number of tensors, if single ones do; exact_stack: whether they do so bit for bit; stacked: their
    sources. conversion: how each tensor comes from the best candidate; constant: matrices of one value, unlike the candidates'. adapters:
    ranks of the adapter matrices stored in the model and in the best candidate, 0 without any.
    """

    model: CheckpointFacts
    candidates: Sequence[Candidate]
    fit: Fit | None
    parents: Sequence[Parent]
    layers: float
    akin: tuple[int, float]
    unlike: Sequence[str]
    through: str | None
    values: int
    lost: int
    broken: tuple[int, int]
    spike: tuple[float, float]
    steps: tuple[float, float] | None
    at_rounding: bool
    moved: Sequence[MovedLayer]
    coverage: tuple[Coverage, Coverage]
    stack: Sequence[MovedLayer]
    mixed: int
    exact_stack: bool
    stacked: tuple[str, ...]
    conversion: Sequence[Conversion]
    constant: Sequence[str]
    adapters: Sequence[int]
    construction: Construction | None

    def answer(self, code: str, /, **values: Value) -> Note:
        """Return an answer about the model and the best candidate."""
        model, source, *_ = distinct_names([self.model, *self.candidates])
        return WORDS.note(code, model=model, source=source, **values)

    @property
    def stepwise(self) -> bool:
        """Return whether the model is a step function of the best candidate, and not mostly equal to it."""
        return is_step_function(self.steps) and (self.candidates[0].equal_share or 0) < 0.5


def related(candidate: Candidate) -> bool:
    """Return whether signs agree more than those of unrelated weights do."""
    least = max(RELATED, BEYOND_CHANCE * (candidate.agreement_null or 0.0), REMAINDER * (candidate.shared or 0.0))
    return (candidate.agreement or 0.0) >= least


def proven(candidate: Candidate) -> bool:
    """Return whether equal values alone prove a relation."""
    equal, chance = candidate.telling_equal or 0.0, candidate.telling_by_chance or 0.0
    return candidate.telling >= FEWEST and equal > max(PROVEN + chance, ABOVE_CHANCE * chance)


def pruned(candidate: Candidate) -> bool:
    """Return whether all values of the model either became zero or are unchanged."""
    return _is_pruned(candidate.zeroed, candidate.equal_share)


def unpruned(candidate: Candidate) -> bool:
    """Return whether all values of the candidate either became zero or are unchanged: it was pruned."""
    return _is_pruned(candidate.filled, candidate.equal_share)


def _is_pruned(zeroed: float | None, equal: float | None) -> bool:
    return (zeroed or 0.0) > 0.01 and (zeroed or 0.0) + (equal or 0.0) > 0.99


def beyond_chance(exact: float, by_chance: float | None) -> bool:
    """Return whether so many exact values prove a combination."""
    return exact > max(PROVEN, ABOVE_CHANCE * (by_chance or 0.0))


def alike(facts: Facts) -> list[Candidate]:
    """Return the best candidate, and those that the fit cannot tell apart from it, the closest first."""
    best = facts.candidates[0]
    groups = [{row.ref, *row.alike} for row in (facts.fit.parents if facts.fit else ())]
    group = next((refs for refs in groups if best.ref in refs), set[str]())
    return [best, *(row for row in facts.candidates[1:] if row.ref in group)]


def is_odd(row: Conversion) -> bool:
    """Return whether a tensor's values differ from its source's more than training or rounding would explain."""
    return row.damaged or row.relation == "reordered"
