"""Combines the counts of all spans: sums per layer and overall, and the sampled values."""

from dataclasses import dataclass, field

import numpy as np

from analyzers.checkpoints import Alignment, Checkpoint, Plan, Span
from analyzers.core.records import Interval as ReportInterval
from analyzers.numerics import student_t
from analyzers.numerics.intervals import Interval, ShareBlocks, share_interval
from analyzers.parents.count import GROUPS, OUTLIERS, OUTLYING, PAIR_SUMS, PRODUCTS, SHORT_RUN, SQUARES, Chance, Counted, is_matrix
from analyzers.parents.proof import Monotone, monotone
from analyzers.parents.report import Candidate, Outliers, Source
from analyzers.parents.rounding import THROUGH, Floats, Ints

Layer = int | None
_FEWEST_BLOCKS, _LEAST_CARRYING = 8, 0.25  # see `Sample.cosine`
_STEPPED = 1 << 18  # values that are tested for a step function
DOMINATE = 0.9  # share of a squared distance; if outliers carry this much, distance and cosine are also given without them


class Collector:
    """Collects the counts of spans, which may finish in any order."""

    def __init__(self, alignment: Alignment, plan: Plan, candidates: int) -> None:
        self._alignment, self._plan, self._candidates = alignment, plan, candidates
        self._counted: dict[Span, Counted] = {}

    def add(self, span: Span, counted: Counted) -> None:
        """Add one finished span."""
        self._counted[span] = counted

    def sums(self) -> "Sums":
        """Combine all spans, in an order that does not depend on threads."""
        empty, counts = np.zeros((self._candidates, PAIR_SUMS)), np.zeros((self._candidates, 1 + len(THROUGH)), np.int64)
        sums = Sums(empty.copy(), counts, counts.copy(), counts.copy())
        kept: dict[Layer, list[Floats]] = {}
        weights = [float(weight) for weight in self._plan.weights()]
        numbers = {group.base.name: number for number, group in enumerate(self._alignment.groups)}
        spans = sorted(self._counted, key=lambda span: (numbers[span.tensor.name], span.start))
        if spans and not self._plan.exact:
            strata, lengths = ([self._plan.strata[span.tensor.name] for span in spans], [span.count for span in spans])
            blocks = with_outliers(np.stack([self._counted[span].pairs for span in spans]))[:, :, :5]
            sums.sample = Sample(np.array(strata), np.array(lengths), blocks, self._plan.population)
        for span in spans:
            counted, tensor, weight = self._counted[span], span.tensor, weights[self._plan.strata[span.tensor.name]]
            pairs = weight * counted.pairs
            pairs[:, SQUARES] *= weight
            sums.pairs += pairs
            matrices = counted.pairs[:, [0, *range(PAIR_SUMS - len(THROUGH), PAIR_SUMS)]].astype(np.int64)
            sums.matrices += matrices
            sums.others += counted.others
            sums.broken += counted.broken
            tensor_sums = sums.tensors.setdefault(tensor.name, np.zeros((self._candidates, 2 + len(THROUGH)), np.int64))
            tensor_sums += np.column_stack((matrices + counted.others + counted.broken, counted.exact))
            moments = sums.moments.setdefault(tensor.name, empty.copy())
            moments += counted.pairs
            sums.rounding += weight * counted.rounding
            sums.outliers += counted.outliers
            if counted.pairs.any():
                cell = sums.cells.setdefault((tensor.layer, tensor.role), empty.copy())
                cell += pairs
            if counted.grams:
                grams = sums.grams.setdefault(tensor.layer, np.zeros((GROUPS, 1 + self._candidates, 1 + self._candidates)))
                for group, gram in counted.grams.items():
                    grams[group] += weight * gram
                kept.setdefault(tensor.layer, []).extend(counted.kept)
        sums.kept = {layer: np.concatenate(parts, axis=1) for layer, parts in kept.items() if parts}
        self._counted.clear()
        return sums


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """The blocks read if not everything was.

    stratum, elements: (b,) of each block; pairs: (b, m, 5) the first of its `PAIR_SUMS`; population: (strata,) elements of each stratum.
    """

    stratum: Ints
    elements: Ints
    pairs: Floats
    population: Ints

    def equal(self, candidate: int) -> Interval:
        """Return the share of equal values, with its interval (`share_interval`)."""
        tested, equal = (self.pairs[:, [candidate], i].astype(np.int64) for i in (0, 1))
        return share_interval(ShareBlocks(self.stratum, self.elements, tested, equal, self.population))

    def unseen(self) -> tuple[int, float]:
        """Return the number of blocks read in incompletely read strata, and the 95% bound on the share of values of an unseen kind."""
        read = np.bincount(self.stratum, self.elements, len(self.population))
        number = int((read < self.population)[self.stratum].sum())
        elements, nothing = self.elements[:, None], np.zeros((len(self.elements), 1), np.int64)
        return number, float(share_interval(ShareBlocks(self.stratum, self.elements, elements, nothing, self.population)).high[0])

    def cosine(self, candidate: int) -> tuple[float, float] | None:
        """Return a 95% interval of the cosine in the whole population.

        None if few blocks carry the values, since unread blocks may carry more.

        The blocks of a stratum are the independent units; the variance is linearised, with the finite population correction, on the scale
        of atanh, on which the distribution is nearly normal. Student's quantile has as many degrees of freedom as blocks of equal weight
        would give.
        """
        xx, xp, pp = np.moveaxis(self.pairs[:, candidate, 2:5], 1, 0)
        read, drawn = (np.bincount(self.stratum, each, len(self.population)) for each in (self.elements, np.ones(len(xx))))
        scale = (self.population / np.maximum(read, 1))[self.stratum]
        total_xx, total_xp, total_pp = (float(scale @ each) for each in (xx, xp, pp))
        number = _equal_number(scale * np.sqrt(xx * pp))
        if total_xx <= 0 or total_pp <= 0 or (drawn == 0).any() or number < max(_FEWEST_BLOCKS, np.count_nonzero(xx) * _LEAST_CARRYING):
            return None
        value = total_xp / np.sqrt(total_xx * total_pp)
        parts = scale * (xp / np.sqrt(total_xx * total_pp) - value / 2 * (xx / total_xx + pp / total_pp))
        rate = np.bincount(self.stratum, parts) / np.maximum(read, 1)  # of each stratum, per element
        open_ = (1 - read / self.population) * drawn / np.maximum(drawn - 1, 1)
        squares = open_[self.stratum] * np.square(parts - rate[self.stratum] * self.elements)
        margin = student_t(max(1, round(_equal_number(squares)) - 1)) * np.sqrt(squares.sum()) / max(1 - value**2, 1e-12)
        low, high = np.tanh(np.arctanh(np.clip(value, -1 + 1e-12, 1 - 1e-12)) + margin * np.array([-1, 1]))
        return float(low), float(high)


def _equal_number(parts: Floats) -> float:
    """Return the effective number of these contributions, (sum)^2 / sum of squares: 1 if a single one dominates."""
    total = float(np.square(parts).sum())
    return float(parts.sum()) ** 2 / total if total > 0 else float(parts.size)


@dataclass
class Sums:
    """Sums over spans.

    pairs: (m, PAIR_SUMS), of the whole, each value read weighted by its stratum; cells: (layer, role) -> the same sums. matrices, others,
    broken: (m, 1 + len(THROUGH)) number of values read in matrices, in other tensors, and not finite, and how many of them are equal as
    cast; rounding, outliers: see `Counted`. tensors: name of a group's base -> the same counts of all its values, then of those equal as
    stored; moments: name of a group's base -> (m, PAIR_SUMS) of its values in matrices. grams: layer -> (GROUPS, 1 + k, 1 + k); kept:
    layer -> (1 + k, n); sample: the blocks, if not everything was read.
    """

    pairs: Floats
    matrices: Ints
    others: Ints
    broken: Ints
    rounding: float = 0.0
    outliers: int = 0
    tensors: dict[str, Ints] = field(default_factory=dict)
    moments: dict[str, Floats] = field(default_factory=dict)
    cells: dict[tuple[Layer, str], Floats] = field(default_factory=dict)
    grams: dict[Layer, Floats] = field(default_factory=dict)
    kept: dict[Layer, Floats] = field(default_factory=dict)
    sample: Sample | None = None

    def related_layers(self, candidate: int, least: float) -> float:
        """Return the share of layers, equally weighted, in which X and the candidate have an agreement of at least ``least``."""
        return float(np.mean([value >= least for value in self._agreements(candidate, 0).values()] or [False]))

    def akin(self, candidate: int, alignment: Alignment, least: float) -> tuple[int, float]:
        """Count the matrices that equal the candidate's in most values or agree by ``least``; return this and their share of values.

        If signs of some matrices were compared, only of those.
        """
        compared = [group.base for group in alignment.groups if is_matrix(group.base.shape, group.base.role)]
        compared = [base for base in compared if base.name in self.tensors and self.tensors[base.name][candidate, 0]]
        compared = [base for base in compared if agreement(self.moments[base.name][candidate]) is not None] or compared
        held = [base.elements for base in compared if self._akin(base.name, candidate, least)]
        return len(held), sum(held) / max(1, sum(base.elements for base in compared))

    def _akin(self, name: str, candidate: int, least: float) -> bool:
        counts, pairs = self.tensors[name][candidate], self.moments[name][candidate]
        return 2 * max(counts[1:]) >= counts[0] or (agreement(pairs) or 0.0) >= max(least, 4 * (agreement_null(pairs) or 0.0))

    def unlike_roles(self, candidate: int, most: float) -> list[str]:
        """Return the roles whose matrices have an agreement of less than ``most``."""
        return [str(role) for role, value in self._agreements(candidate, 1).items() if value < most]

    def _agreements(self, candidate: int, part: int) -> dict[Layer | str, float]:
        """Return the agreement over the cells of each layer (``part`` 0) or role (1) whose signs were compared."""
        found: dict[Layer | str, list[Floats]] = {}
        for cell, pairs in self.cells.items():
            found.setdefault(cell[part], []).append(pairs[candidate])
        return {key: value for key, each in found.items() if (value := agreement(np.sum(each, axis=0))) is not None}

    def cast(self, candidate: int) -> str | None:
        """Return the dtype through which all values read were cast from one side to the other, "" if directly; None if some differ."""
        found = self.matrices[candidate] + self.others[candidate] + self.broken[candidate]
        return next((way for way, same in zip(THROUGH, found[1:], strict=True) if same == found[0] > 0), None)

    def values(self, candidate: int) -> int:
        """Count the values read that the candidate has too."""
        return int(sum(counts[candidate, 0] for counts in self.tensors.values()))

    def lost(self, candidate: int) -> int:
        """Count the values read that are equal after a cast but not as stored."""
        return int(sum(counts[candidate, 0] - counts[candidate, -1] for counts in self.tensors.values()))

    def outlying(self, candidate: int) -> int:
        """Count the values read that are outliers."""
        return int(sum(moments[candidate, OUTLYING] for moments in self.moments.values()))

    def steps(self, candidate: int, dtype: str) -> Monotone | None:
        """Test X as a function of the candidate, on some of the sampled values."""
        some = max(1, _STEPPED // max(1, len(self.kept)) // SHORT_RUN) * SHORT_RUN
        kept = [values[[0, 1 + candidate], :some] for values in self.kept.values()]
        return monotone(np.concatenate(kept, axis=1), dtype) if kept else None

    def constant(self, alignment: Alignment) -> list[str]:
        """Return the model's matrices that hold a single value, unlike the candidates' matrices: no combination contains them."""
        return [
            group.base.name
            for group in alignment.groups
            if is_matrix(group.base.shape, group.base.role)
            and (counts := self.tensors.get(group.base.name)) is not None
            and counts[:, 0].any()
            and not self.moments[group.base.name][:, 0].any()
            and (2 * counts[:, -1] < counts[:, 0]).all()
        ]


def cosine(pairs: Floats) -> float | None:
    """Compute X.P / |X

    P| from a row of `PAIR_SUMS`.
    """
    return _normalised(pairs[3], pairs[2:5])


def cosine_null(pairs: Floats) -> float | None:
    """Compute the standard deviation of the cosine if the signs of the products were independent: sqrt(sum x^2 p^2) / |X

    P|.
    """
    return _normalised(np.sqrt(pairs[6]), pairs[2:5])


def agreement(pairs: Floats) -> float | None:
    """Compute the agreement of centred signs (`count.signs`): S.T without their structure (`shared_structure.without_structure`), over |S

    T|.
    """
    return _normalised(pairs[8], pairs[7:10])


def shared(pairs: Floats) -> float | None:
    """Compute the agreement including the structure of signs (`shared_structure.without_structure`)."""
    return _normalised(pairs[11], pairs[7:10])


def agreement_null(pairs: Floats) -> float | None:
    """Compute the standard deviation of the agreement if the products of signs were independent."""
    return _normalised(np.sqrt(pairs[10]), pairs[7:10])


def with_outliers(pairs: Floats) -> Floats:
    """Return rows of `PAIR_SUMS`, (..., PAIR_SUMS), in which products include those of outliers."""
    whole = pairs.copy()
    whole[..., PRODUCTS] += pairs[..., OUTLIERS]
    return whole


def outliers_carry(pairs: Floats) -> float:
    """Return the share of |X - P|^2 that outliers carry, from a row of `PAIR_SUMS`."""
    far, rest = (max(0.0, float(pairs[columns] @ (1, -2, 1, 0))) for columns in (OUTLIERS, PRODUCTS))
    return far / (far + rest) if far else 0.0


def _normalised(value: float, sums: Floats) -> float | None:
    norms = float(np.sqrt(sums[0] * sums[2]))
    return float(value) / norms if norms > 0 else None


def distance(pairs: Floats) -> float | None:
    """Compute |X - P| / |P| from a row of `PAIR_SUMS`."""
    return float(np.sqrt(max(0.0, pairs[2] - 2 * pairs[3] + pairs[4]) / pairs[4])) if pairs[4] > 0 else None


def matrix_parameters(alignment: Alignment, candidate: int) -> int:
    """Count the values of the model's matrices that the candidate also has."""
    return sum(
        side.elements
        for group in alignment.groups
        if (side := group.tuned[candidate]) is not None and is_matrix(group.base.shape, group.base.role)
    )


def candidate_row(side: Checkpoint, source: Source, sums: Sums, column: int, alignment: Alignment, chance: Chance) -> Candidate:
    """Build the row of candidate ``column`` of ``sums``. chance: equal values expected by chance."""
    rest, compared, (others, *same) = sums.pairs[column], int(sums.matrices[column, 0]), sums.others[column].tolist()
    pairs, carried = with_outliers(rest), outliers_carry(rest)
    weight, sample = float(pairs[0]), sums.sample
    telling, equal, by_chance = chance.telling
    return Candidate(
        ref=side.ref,
        commit=side.commit,
        public=side.public,
        source=source,
        parameters=matrix_parameters(alignment, column),
        compared=compared,
        equal_share=float(pairs[1]) / weight if compared else None,
        equal_interval=ReportInterval.each(sample.equal(column))[0] if compared and sample is not None else None,
        equal_by_chance=chance.equal if compared else None,
        distance=distance(pairs) if compared else None,
        cosine=cosine(pairs) if compared else None,
        cosine_interval=sample.cosine(column) if compared and sample is not None else None,
        cosine_null=cosine_null(pairs) if compared else None,
        agreement=agreement(pairs) if compared else None,
        agreement_null=agreement_null(pairs) if compared else None,
        shared=shared(pairs) if compared else None,
        telling=telling,
        telling_equal=equal / telling if telling else None,
        telling_by_chance=by_chance / telling if telling else None,
        vectors_equal=max(same) / others if others else None,
        zeroed=float(pairs[5]) / weight if compared else None,
        outliers=Outliers(values=sums.outlying(column), carried=carried, distance=distance(rest), cosine=cosine(rest))
        if carried >= DOMINATE
        else None,
    )
