"""Defines the request and the report of parents. Field names are the JSON contract; fields may be added, never renamed.

X is the model, P_1 to P_m its candidates. Only matrices are compared: norms and biases are alike in unrelated models. Shares are numbers in
[0, 1]; a missing number is null (it is undefined). In quick mode counts describe the values read, everything else is an estimate.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from analyzers.core import limits
from analyzers.core.coverage import Coverage
from analyzers.core.formatting import NOTHING, abbreviated
from analyzers.core.notes import Note
from analyzers.core.options import Option
from analyzers.core.records import Interval, Record
from analyzers.core.report import CheckpointFacts, Report
from analyzers.core.request import PASTED, Reference, WeightsRequest
from analyzers.core.rows import Rows, Shown

# Raised whenever the same request would give a different result.
ANALYSIS_VERSION = 18

# Agreements of signs that unrelated weights do not reach, overall and in one layer or tensor, in addition to the deviations of chance.
RELATED, RELATED_PART, BEYOND_CHANCE = 0.1, 0.05, 8
# What is left of an agreement without structure is the structure's own, not found whole, up to this part of the agreement with it.
REMAINDER = 0.2
# Distance of a factor from 1 that weight decay may leave of values that nothing else trained.
_DECAY = 0.1
# Cosine of a source with a constant, above which it may have started there.
_NEVER_MOVED = 0.9
# Fewer values are not enough for a verdict.
FEWEST = 1_000
# Factor and distance by which the share of equal values must exceed chance to count as proof.
ABOVE_CHANCE, PROVEN = 5, 0.02

Source = Literal["named", "card", "library"]
Verdict = Literal["same-weights", "quantized-copy", "derived", "merge", "stack", "unrelated", "undecided"]
Relation = Literal[
    "equal", "rounded", "affine", "reordered", "truncated", "changed", "other", "zero", "constant", "non-finite", "unmatched"
]
# Relations that a faithful conversion leaves; those that training or another layout leave too, or without a source to compare with. All
# others are damage in a copy.
AS_STORED = "as stored"  # form of a tensor whose values stand as those of its source
FAITHFUL: tuple[Relation, ...] = ("equal", "rounded")
UNDAMAGED: tuple[Relation, ...] = (*FAITHFUL, "reordered", "changed", "unmatched")
# Notes on tensors of copies that are the source's by factors of channels, or may be, or with 1 added.
SCALED = ("by-channel", "by-own-channel", "by-unread-channel", "with-channels", "unknown-channels", "plus-one")
_SOURCES: dict[str, str] = {"named": "the request", "card": "the model card", "library": "the library"}
_RELATIONS: dict[str, str] = {
    "equal": "equal",
    "rounded": "rounded",
    "affine": "times a factor, plus a constant",
    "reordered": "in another order",
    "truncated": "truncated",
    "changed": "changed",
    "other": "other values",
    "zero": "zeros",
    "constant": "a constant",
    "non-finite": "NaN or infinite",
    "unmatched": "no source",
}


def weight(value: float) -> str:
    """Write a weight with four decimals, never -0."""
    return f"{round(value, 4) + 0.0:.4f}" if abs(value) < 1e6 else "unknown"


def _weights(values: Sequence[float]) -> str:
    return ", ".join(map(weight, values))


def _layer(layer: int | None) -> str:
    return "outside" if layer is None else f"{layer}"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or NOTHING


def few_and_different(names: tuple[str, ...], what: str) -> tuple[str, ...]:
    """Return the names. Raises ValueError if there are too many, or one is there twice."""
    if len(names) > limits.CANDIDATES:
        raise ValueError(f"at most {limits.CANDIDATES} {what} are compared, not {len(names):,}")
    name, times = Counter(names).most_common(1)[0] if names else ("", 0)
    if times > 1:
        raise ValueError(f"{name[:200]!r} is named {times} times: name different {what}")
    return names


class ParentsRequest(WeightsRequest):
    """Whose weights to explain, and by which checkpoints."""

    model: Reference
    candidates: Annotated[tuple[str, ...], PASTED, Option(one="candidate")] = Field(
        default=(),
        description=f"Checkpoints it may come from, up to {limits.CANDIDATES} (default: the base_model of its model card; on the page and "
        "in the API also models of the library with the same tensor shapes).",
    )
    # Candidates that the caller's library suggests: compared together with those of the card if the request names none.
    suggested: tuple[str, ...] = Field(default=(), max_length=limits.CANDIDATES)

    @field_validator("candidates")
    @classmethod
    def _few_and_different(cls, candidates: tuple[str, ...]) -> tuple[str, ...]:
        return few_and_different(candidates, "candidates")

    @model_validator(mode="after")
    def _not_itself(self) -> "ParentsRequest":
        if self.model in self.candidates:
            raise ValueError(f"{self.model[:200]!r} is the model itself and cannot be its own parent: name other candidates")
        return self


class Candidate(Record):
    """A candidate P, the best first. All but ``ref`` to ``parameters`` is null where nothing of it has the shape of the model's matrices.

    source: "named" in the request, the model's "card", or the "library" of the app. compared: values. equal_share: of values equal in bf16;
    equal_by_chance: sum over bf16 patterns of p_k q_k, the share expected if the two had nothing to do with each other. distance:
    |X - P| / |P|. cosine: between the values; cosine_null: 1 / sqrt(compared), its standard deviation for values that have nothing to do
    with each other. agreement: the cosine of the signs, once means of rows and columns are removed, without zeros and smooth rows, by what
    is left without waves and components of low rank, with its deviation agreement_null: what relates weights, and not only their
    structure; shared: with that. telling: values looked into that can tell whether equal ones are a coincidence: not zero or common on
    both sides, nor in smooth rows; telling_equal: share of these that are equal in bf16; telling_by_chance: what chance gives.
    equal_interval: 95%, in quick mode. vectors_equal: share of values of norms and biases that are equal in bf16. zeroed, filled: share of
    values that are zero in X only, and in P only.
    """

    ref: Annotated[str, Shown("Candidate")]
    commit: str
    public: bool
    source: Annotated[Source, Shown("Proposed by", _SOURCES.__getitem__)]
    parameters: int
    compared: Annotated[int, Shown("Values compared", "count")]
    equal_share: Annotated[float | None, Shown("Matrices equal", "share", "Share of the values in matrices that are equal in bf16.")] = None
    equal_by_chance: Annotated[
        float | None, Shown("By chance", "share", help="Share of equal values expected between unrelated weights.")
    ] = None
    distance: Annotated[float | None, Shown("Distance", "share", "|X - P| / |P|, of the values in matrices.")] = None
    cosine: Annotated[float | None, Shown("Cosine", "magnitude")] = None
    cosine_null: Annotated[float | None, Shown("± by chance", "magnitude", help="Deviation of the cosine between unrelated weights.")] = (
        None
    )
    vectors_equal: Annotated[float | None, Shown("Norms and biases equal", "share", help="They are alike in unrelated models too.")] = None
    zeroed: float | None = None
    filled: float | None = None
    agreement: float | None = None
    agreement_null: float | None = None
    shared: float | None = None
    telling: int = 0
    telling_equal: float | None = None
    telling_by_chance: float | None = None
    equal_interval: Interval | None = None

    @property
    def related(self) -> bool:
        """Return whether signs agree more than those of unrelated weights do."""
        least = max(RELATED, BEYOND_CHANCE * (self.agreement_null or 0.0), REMAINDER * (self.shared or 0.0))
        return (self.agreement or 0.0) >= least

    @property
    def proven(self) -> bool:
        """Return whether equal values alone prove a relation."""
        equal, chance = self.telling_equal or 0.0, self.telling_by_chance or 0.0
        return self.telling >= FEWEST and equal > max(PROVEN + chance, ABOVE_CHANCE * chance)

    @property
    def pruned(self) -> bool:
        """Return whether all values of the model either became zero or are unchanged."""
        return (self.zeroed or 0.0) > 0.01 and (self.zeroed or 0.0) + (self.equal_share or 0.0) > 0.99

    @property
    def unpruned(self) -> bool:
        """Return whether all values of the candidate either became zero or are unchanged: it was pruned."""
        return (self.filled or 0.0) > 0.01 and (self.filled or 0.0) + (self.equal_share or 0.0) > 0.99


def distinct_names(sides: Sequence[CheckpointFacts | Candidate]) -> list[str]:
    """Return the reference of each checkpoint, with its abbreviated commit where several have the same."""
    times = Counter(side.ref for side in sides)
    return [side.ref if times[side.ref] == 1 else f"{side.ref}@{abbreviated(side.commit, 7)}" for side in sides]


class Parent(Record):
    """The weight a_i of a parent in the fit, with its interval.

    alike: candidates so close to it that only the sum of their weights is known.
    """

    ref: Annotated[str, Shown("Candidate")]
    weight: Annotated[float, Shown("Weight", weight, help="Factor of the candidate in the sum that fits the model best.")]
    low: Annotated[float, Shown("From", weight, help="Lower end of the 95% interval.")]
    high: Annotated[float, Shown("To", weight, help="Upper end of the 95% interval.")]
    alike: Annotated[tuple[str, ...], Shown("Or", _names, help="Candidates so similar that only the sum of their weights is known.")] = ()


class LayerFit(Record):
    """The fit in one layer (null: outside the layers).

    weights, low, high: in the order of the fit's parents, by exact values if ``exact_share`` is at least 0.99, as in `Fit`. values: number
    of fitted values.
    """

    layer: Annotated[int | None, Shown("Layer", _layer)]
    values: int
    weights: Annotated[tuple[float, ...], Shown("Weights", _weights, help="Of the candidates, in the order of the fit.")]
    low: Annotated[tuple[float, ...], Shown("From", _weights, help="Lower ends of the 95% intervals.")]
    high: Annotated[tuple[float, ...], Shown("To", _weights, help="Upper ends of the 95% intervals.")]
    residual: Annotated[float | None, Shown("Left unexplained", "share", help="|X - fit| / |X|.")]
    exact_share: Annotated[float | None, Shown("Exact", "share", help="Share of the values that equal the sum, rounded as stored.")]


class Fit(Record):
    """X = sum of a_i P_i over all matrices and per layer.

    weights_by: "least-squares", with 95% intervals; or "exact-values", if in most layers at least 99% of the values equal the combination
    at these weights: the interval of least squares then also contains them. residual: |X - fit| / |X| of least squares; rounding: the
    residual that rounding to X's dtype alone would leave. condition: condition number of the normalised problem, 1 for orthogonal parents;
    null if it has no unique solution. exact_share: share of values that equal the combination, rounded to X's dtype, at the best weights
    (overall, or of each layer where these explain more); exact_by_chance: share expected for unrelated values of the same distributions;
    exact_alone: largest share of exact values of a single candidate; exact_values: number of values tested.
    """

    parents: Annotated[tuple[Parent, ...], Rows("Weights")]
    weights_by: Literal["least-squares", "exact-values"]
    residual: float | None
    rounding: float | None
    condition: float | None
    exact_share: float | None
    exact_by_chance: float | None
    exact_values: int
    exact_alone: float | None = None
    layers: Annotated[tuple[LayerFit, ...], Rows("Weights by layer", key="layer_weights")]


class MovedLayer(Record):
    """A layer of the model whose weights match layer ``source`` of a candidate; null: tensors outside the layers.

    equal_share: share of its values read that are equal in bf16; null if not counted.
    """

    layer: Annotated[int | None, Shown("Layer", _layer)]
    ref: Annotated[str, Shown("Comes from")]
    source: Annotated[int | None, Shown("Layer there", _layer, help="The layer of the candidate whose values it holds.")]
    equal_share: Annotated[float | None, Shown("Equal in bf16", "share")] = None


class TensorRelation(Record):
    """A tensor of the model, as stored, and its relation to its source."""

    name: Annotated[str, Shown("Tensor")]
    relation: Annotated[Relation, Shown("Relation", _RELATIONS.__getitem__, help="How its values relate to those of the source.")]


class Conversion(TensorRelation):
    """Relation of a tensor of the model to the best candidate; in a stack, to the candidate that it comes from.

    source: the candidate; sources: its tensors, with the part of each in brackets; empty if none matches. form: the layout in which they
    match ("as stored", "transposed", "rotary rows", "fused", ...). relation: equal bit for bit; rounded, to the format or method ``to``, or
    where none is proven a step function of the source, as quantization makes; affine: ``factor`` times the source plus ``offset``, but for
    rounding, or a factor of its own for each block (null); reordered: the same values at other places; truncated: only the first rows are
    the source's; changed: correlated beyond chance, as training leaves it; other: other values at these places; zero, constant, non-finite;
    unmatched: nothing to compare with. values: compared; exceptions: of any relation, the values that are not the source's at their places,
    once rounded to a dtype of either, or to X's grids; cosine: with the source, if values differ; note: what is special about it.
    """

    to: Annotated[str | None, Shown("To", help="The format to which the source was rounded.")] = None
    factor: Annotated[float | None, Shown("Factor", "magnitude", help="The source times it, plus the offset, gives the values.")] = None
    offset: Annotated[float | None, Shown("Offset", "magnitude", help="Added to the source times the factor.")] = None
    exceptions: Annotated[int, Shown("Other values", "count", help="Values that are not the source's, once rounded to a dtype of either.")]
    note: Annotated[Note | None, Shown("Note")] = None
    source: str = ""
    sources: Annotated[tuple[str, ...], Shown("Source", _names)]
    form: Annotated[str, Shown("Form", help="The layout in which it matches the source.")]
    values: Annotated[int, Shown("Values", "count")]
    cosine: float | None = None

    @property
    def damaged(self) -> bool:
        """Return whether the tensor is broken, if most others are the source's, in a way that no training causes."""
        scaled = self.note is not None and self.note.code in SCALED
        return self.relation not in UNDAMAGED and not scaled

    @property
    def trainable(self) -> bool:
        """Return whether training may leave such values: a factor near 1 of decay, or a constant that only the source left."""
        if self.relation == "affine" and self.offset is None and self.factor is not None:
            return abs(self.factor - 1) < _DECAY
        return self.relation == "constant" and (self.cosine or 0.0) > _NEVER_MOVED


def is_copy(rows: Sequence[Conversion]) -> bool:
    """Return whether most values are the source's, so that tensors with others are damaged."""
    return 2 * sum(row.values for row in rows if row.relation in FAITHFUL) >= sum(row.values for row in rows) > 0


def lost_tensors(rows: Sequence[Conversion]) -> list[Conversion]:
    """Return the tensors that hold something else than training, or a conversion, leaves of their source."""
    copy = is_copy(rows)
    return [row for row in rows if (row.damaged or row.relation == "reordered") and (copy or not row.trainable)]


class Quantized(Record):
    """Quantized values X against their source P. Figures are null for a method without a grid, and where a side is 0.

    method, bits, group, scales: of most codes; group: number of values that share a scale; scales: which ones do. values: compared.
    within_half_step: share of values at most half a step of X's grid from P's, of tensors whose channels are not scaled. channels_scaled:
    whether factors of channels were undone before error, error_of_nearest and ratio were computed, as AWQ scales them.
    error: |X - P| / |P|; error_of_nearest: the same for P rounded to the nearest values of the grid, with the scales and zero points that
    are stored; ratio: between both.
    """

    within_half_step: Annotated[float | None, Shown("Within half a step", "share", "Share of values within half a step of the source.")]
    error: Annotated[float | None, Shown("Error", "share", "|X - P| / |P|.")]
    error_of_nearest: Annotated[float | None, Shown("By rounding", "share", "The error of rounding the source to nearest, on this grid.")]
    ratio: Annotated[float | None, Shown("Ratio", "ratio", "The error in units of that of rounding to nearest.")]
    method: Annotated[str, Shown("Method")]
    bits: Annotated[int, Shown("Bits", "count")]
    group: int
    scales: Annotated[str, Shown("Scales", help="Which values share a scale.")]
    values: Annotated[int, Shown("Values", "count")]
    channels_scaled: bool = False


class QuantizedTensor(Quantized, TensorRelation):
    """A quantized tensor. source: the candidate's tensors; relation: as in `Conversion`."""

    role: str
    layer: int | None
    source: Annotated[tuple[str, ...], Shown("Source", _names)]


class QuantizedCopy(Quantized):
    """The quantized tensors of the model against the best candidate.

    methods: that of most values first; bits_per_weight: with scales and zero points. calibrated: whether values are farther than rounding
    explains, as calibration moves them. tensors_read, tensors_stored: quantized tensors of which values were read, and all of the model.
    not_source: names of the tensors, or parts, that do not hold the candidate's values; lacks: of the candidate's that the model has no
    values for.
    """

    methods: tuple[str, ...]
    bits_per_weight: float
    calibrated: bool
    tensors_read: int
    tensors_stored: int
    not_source: tuple[str, ...]
    lacks: tuple[str, ...] = ()
    tensors: Annotated[tuple[QuantizedTensor, ...], Rows("Quantized tensors", key="quantized")]


class ParentsReport(Report):
    """The report on which of ``candidates`` the weights of ``checkpoint`` come from.

    proof: bits that unrelated weights do not have and that carry the verdict, if any: all values equal after a cast, values that equal a
    combination exactly, or uncommon values equal beyond chance. parents: the candidates that the verdict names: of a derived model the
    closest one, then those too similar to tell apart from it. layer_map: layers that moved, or every layer of a stack. coverage: of the
    model, as compared with the best candidate, and of each candidate, in the order of the request. quantized: if the model has quantized
    tensors. conversion: the origin of each tensor, damaged ones first, if the best candidate's values are a part of the model's. If a
    sample was read: blocks, the number of its blocks, and unseen, the largest share of all blocks (95%) that may be of a kind not among
    these.
    """

    analyzer: Literal["parents"] = "parents"
    schema_version: int = 1
    request: ParentsRequest
    checkpoint: CheckpointFacts
    mode: Literal["quick", "exact"]
    bytes_read: int
    verdict: Verdict
    parents: tuple[str, ...]
    proof: Literal["cast", "exact", "equal"] | None
    candidates: Annotated[tuple[Candidate, ...], Rows("Candidates")]
    fit: Fit | None
    layer_map: Annotated[tuple[MovedLayer, ...], Rows("Layers")]
    quantized: QuantizedCopy | None = None
    conversion: Annotated[tuple[Conversion, ...], Rows("How each tensor got here")] = ()
    blocks: int | None = None
    unseen: float | None = None

    def accounts(self) -> Sequence[Coverage]:
        """Return the coverage of the model and of the parents that the verdict names; other candidates may have any shape."""
        return [each for row, each in enumerate(self.coverage) if row == 0 or each.ref in self.parents]

    def bytes_of_sample(self) -> tuple[int, int] | None:
        """Return the bytes read and those of all checkpoints, if a sample was read."""
        best, stored = self.candidates[0], sum(counted.bytes for each in self.coverage for counted in each.classes.values())
        read = min(self.bytes_read, round(stored * best.compared / max(1, best.parameters)))
        return None if self.unseen is None else (read, stored)
