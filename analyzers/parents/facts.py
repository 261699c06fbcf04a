"""Defines the facts that determine a verdict, and what each says: related, proven, too similar to tell apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from analyzers.core.coverage import Coverage
from analyzers.core.notes import Note, Value
from analyzers.core.report import CheckpointFacts
from analyzers.parents.proof import Monotone, is_step_function
from analyzers.parents.report import Candidate, Construction, Conversion, Difference, Fit, MovedLayer, Parent, distinct_names
from analyzers.parents.words import WORDS

# Agreements of signs that unrelated weights do not reach, overall and in half of the layers, in addition to the deviations of chance.
RELATED = 0.1
RELATED_LAYER = 0.05
BEYOND_CHANCE = 8
# Fewer values are not enough for a verdict.
FEWEST = 1_000
# Cosine below which values are another tensor's.
_UNLIKE = 0.5
# Factor and distance by which the share of equal values must exceed chance to count as proof.
_ABOVE_CHANCE = 5
_PROVEN = 0.02


class OnGrid(NamedTuple):
    """Numbers of values on a grid that were compared, of those that are the source's rounded on it, and of ties among these."""

    compared: int
    nearest: int
    ties: int


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that determine the verdict.

    candidates: the best first. parents: weights of the candidates that the fit needs. layers: share of the layers in which the best
    candidate is related; akin: number of matrices that are related or equal, and their share of the values; unlike: roles in which the
    candidate is not related. through: see `collect.Sums.cast`. values: number that were compared with the best candidate, and lost: of
    those that are not equal as stored. stepwise: X as a function of the best candidate. at_rounding: whether nothing but rounding is left.
    moved: layers that have other numbers in the best candidate. coverage: of the model and the best candidate. stack: all layers, if they
    come from several candidates; exact_stack: whether they do so bit for bit. conversion: each tensor if much of the model is the best
    candidate's, else only odd ones; constant: matrices of one value, unlike the candidates'. adapters: ranks of the adapter matrices stored
    in the model and in the best candidate, 0 without any. on_grids: grids of the model's values.
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
    stepwise: Monotone | None
    at_rounding: bool
    moved: Sequence[MovedLayer]
    difference: Difference | None
    coverage: tuple[Coverage, Coverage]
    stack: Sequence[MovedLayer]
    exact_stack: bool
    conversion: Sequence[Conversion]
    constant: Sequence[str]
    adapters: Sequence[int]
    construction: Construction | None
    on_grids: Mapping[str, OnGrid]

    def answer(self, code: str, /, **values: Value) -> Note:
        """Return an answer about the model and the best candidate."""
        model, source, *_ = distinct_names([self.model, *self.candidates])
        return WORDS.note(code, model=model, source=source, **values)

    @property
    def steps(self) -> bool:
        """Return whether the model is a step function of the best candidate, and not mostly equal to it."""
        return self.stepwise is not None and is_step_function(self.stepwise) and (self.candidates[0].equal_share or 0) < 0.5


def related(candidate: Candidate) -> bool:
    """Return whether signs agree more than those of unrelated weights do."""
    return (candidate.agreement or 0.0) >= max(RELATED, BEYOND_CHANCE * (candidate.agreement_null or 0.0))


def proven(candidate: Candidate) -> bool:
    """Return whether equal values alone prove a relation."""
    equal, chance = candidate.telling_equal or 0.0, candidate.telling_by_chance or 0.0
    return candidate.telling >= FEWEST and equal > max(_PROVEN + chance, _ABOVE_CHANCE * chance)


def pruned(candidate: Candidate) -> bool:
    """Return whether all values either became zero or are unchanged."""
    zeroed = candidate.zeroed or 0.0
    return zeroed > 0.01 and zeroed + (candidate.equal_share or 0.0) > 0.99


def beyond_chance(exact: float, by_chance: float | None) -> bool:
    """Return whether so many exact values prove a combination."""
    return exact > max(_PROVEN, _ABOVE_CHANCE * (by_chance or 0.0))


def alike(facts: Facts) -> list[Candidate]:
    """Return the best candidate, and those that the fit cannot tell apart from it, the closest first."""
    best = facts.candidates[0]
    groups = [{row.ref, *row.alike} for row in (facts.fit.parents if facts.fit else ())]
    group = next((refs for refs in groups if best.ref in refs), set[str]())
    return [best, *(row for row in facts.candidates[1:] if row.ref in group)]


def is_odd(row: Conversion) -> bool:
    """Return whether a tensor's values differ from its source's more than training or rounding would explain."""
    unlike = (row.cosine or 0) < _UNLIKE or row.outliers > 0
    return row.damaged or (row.relation == "differs" and unlike)
