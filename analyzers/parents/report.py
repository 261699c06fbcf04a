"""Defines the request and the report of parents. Field names are the JSON contract; fields may be added, never renamed.

X is the model, P_1 to P_m its candidates. Only matrices are compared: norms and biases are alike in unrelated models. Shares are numbers in
[0, 1]; a missing number is null (it is undefined). In quick mode counts describe the values read, everything else is an estimate.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from analyzers import limits
from analyzers.base import PASTED, CheckpointFacts, Reference, Report, WeightsRequest
from analyzers.coverage import Coverage
from analyzers.options import Option
from analyzers.records import Interval, Record

# Raised whenever the same request would give a different result.
ANALYSIS_VERSION = 11

Source = Literal["named", "card", "library"]
Verdict = Literal["same-weights", "quantized-copy", "derived", "merge", "stack", "unrelated", "undecided"]
Relation = Literal[
    "equal", "rounded", "on-grid", "scaled", "differs", "zeroed", "constant", "truncated", "swapped", "non-finite", "unmatched"
]
# Relations that a faithful conversion leaves; all others are damage.
FAITHFUL: tuple[Relation, ...] = ("equal", "rounded", "on-grid")


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
        if len(candidates) > limits.CANDIDATES:
            raise ValueError(f"at most {limits.CANDIDATES} candidates are compared, not {len(candidates):,}")
        name, times = Counter(candidates).most_common(1)[0] if candidates else ("", 0)
        if times > 1:
            raise ValueError(f"{name[:200]!r} is named {times} times as a candidate: name it once")
        return candidates

    @model_validator(mode="after")
    def _not_itself(self) -> "ParentsRequest":
        if self.model in self.candidates:
            raise ValueError(f"{self.model[:200]!r} is the model itself and cannot be its own parent: name other candidates")
        return self


class Outliers(Record):
    """The values that differ by more than sixteen typical values, where they carry at least 90% of |X - P|^2.

    values: number of those read; carried: share of |X - P|^2 that they carry; distance, cosine: of all other values.
    """

    values: int
    carried: float
    distance: float | None
    cosine: float | None


class Candidate(Record):
    """A candidate P, the best first. All but ``ref`` to ``parameters`` is null where nothing of it has the shape of the model's matrices.

    source: "named" in the request, the model's "card", or the "library" of the app. compared: values. equal_share: of values equal in bf16;
    equal_by_chance: sum over bf16 patterns of p_k q_k, the share expected if the two had nothing to do with each other. distance:
    |X - P| / |P|. cosine: between the values; cosine_null: sqrt(sum x^2 p^2) / |X||P|, its standard deviation for values whose signs have
    nothing to do with each other. agreement: the cosine of the signs, once means of rows and columns are removed, without zeros and smooth
    rows, by what is left without waves and components of low rank, with its deviation agreement_null: what relates weights, and not only
    their structure; shared: with that. telling: values that can tell whether equal
    ones are a coincidence: not zero or common on both sides, nor in smooth rows; telling_equal: share of these that are equal in bf16;
    telling_by_chance: what chance gives. equal_interval, cosine_interval: 95%, in quick mode. vectors_equal: share of values of norms and
    biases that are equal in bf16. zeroed: share of values that are zero in X only. outliers: set if they dominate the distance.
    """

    ref: str
    commit: str
    public: bool
    source: Source
    parameters: int
    compared: int
    equal_share: float | None
    equal_by_chance: float | None
    distance: float | None
    cosine: float | None
    cosine_null: float | None
    vectors_equal: float | None
    zeroed: float | None
    agreement: float | None = None
    agreement_null: float | None = None
    shared: float | None = None
    telling: int = 0
    telling_equal: float | None = None
    telling_by_chance: float | None = None
    equal_interval: Interval | None = None
    cosine_interval: tuple[float, float] | None = None
    outliers: Outliers | None = None

    @property
    def distance_without(self) -> float | None:
        """The distance without outliers that dominate it."""
        return self.outliers.distance if self.outliers else self.distance

    @property
    def cosine_without(self) -> float | None:
        """The cosine without outliers that dominate it."""
        return self.outliers.cosine if self.outliers else self.cosine


class Parent(Record):
    """The weight a_i of a parent in the fit, with its interval.

    alike: candidates so close to it that only the sum of their weights is known.
    """

    ref: str
    weight: float
    low: float
    high: float
    alike: tuple[str, ...] = ()


class LayerFit(Record):
    """The fit in one layer (null: outside the layers).

    weights, low, high: in the order of the fit's parents, by exact values if ``exact_share`` is at least 0.99, as in `Fit`. values: number
    of fitted values.
    """

    layer: int | None
    values: int
    weights: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    residual: float | None
    exact_share: float | None


class SparseUpdate(Record):
    """The update of a parent in a merge of sparse updates: multiplied by ``factor``, in a share ``kept`` of the values."""

    ref: str
    factor: float
    kept: float


class SparseMerge(Record):
    """X = B + sum of c_i (P_i - B), with each update in only some of the values, and possibly the mean of several updates in one value.

    exact_share: share of values that equal some choice of updates, rounded to X's dtype; exact_by_chance: the same share with the updates
    of other values. method: "DARE" if updates were kept at random, "TIES" if the largest were kept, null if undecided.
    """

    base: str
    updates: tuple[SparseUpdate, ...]
    exact_share: float
    exact_by_chance: float
    method: Literal["DARE", "TIES"] | None


class Fit(Record):
    """X = sum of a_i P_i over all matrices and per layer.

    weights_by: "least-squares", with 95% intervals; or "exact-values", if at least 99% of the values equal the combination at the same
    weights: the interval then contains every weight at which they still do. residual: |X - fit| / |X| of least squares; rounding: the
    residual that rounding to X's dtype alone would leave. condition: condition number of the normalised problem, 1 for orthogonal parents;
    null if it has no unique solution. exact_share: share of values that equal the combination, rounded to X's dtype, at the best weights
    (overall, or of each layer: ``exact_per_layer``); exact_by_chance: share expected for unrelated values of the same distributions;
    exact_alone: largest share of exact values of a single candidate; exact_values: number of values tested. arithmetic: "fp32", or "stored"
    if each product was rounded to X's dtype too. spherical: the interpolation t of a SLERP that the weights agree with. sparse: set if X is
    a merge of sparse updates; the weights are then averages. exceptions: layers (null: outside the layers) that deviate from the
    combination if most layers are exactly the combination. outliers:
    values that differ from a candidate by more than sixteen typical values, left out of least squares and residuals.
    """

    parents: tuple[Parent, ...]
    weights_by: Literal["least-squares", "exact-values"]
    residual: float | None
    rounding: float | None
    condition: float | None
    exact_share: float | None
    exact_by_chance: float | None
    exact_values: int
    exact_alone: float | None = None
    exact_per_layer: bool
    exact_weights: tuple[float, ...]
    arithmetic: Literal["fp32", "stored"]
    spherical: float | None
    sparse: SparseMerge | None = None
    exceptions: tuple[int | None, ...] = ()
    outliers: int = 0
    layers: tuple[LayerFit, ...]


class MovedLayer(Record):
    """A layer of the model whose weights match layer ``source`` of a candidate; null: tensors outside the layers.

    equal_share: share of its values read that are equal in bf16; null if not counted.
    """

    layer: int | None
    ref: str
    source: int | None
    equal_share: float | None = None


class Difference(Record):
    """The difference X - P for the best candidate, in the first rows of some matrices.

    rank: number of singular values above the rounding noise. rows: the highest rank of a difference in as many rows and columns. left: what
    that rank leaves of the values that differ, squared, in multiples of what rounding leaves. low_rank: whether the rank is far lower than
    possible and leaves no more than rounding does, as a merged LoRA has: an update of full rank leaves more.
    """

    ref: str
    rank: int
    rows: int
    left: float | None = None
    low_rank: bool
    tensors: tuple[str, ...]


class Conversion(Record):
    """Relation of a tensor of the model to the best candidate.

    sources: the candidate's tensors, with the part of each in brackets; empty if none matches. form: the layout in which they match
    ("as stored", "transposed", "rotary rows", "fused", ...). relation: equal bit for bit; rounded, to the format ``to``; on-grid, the
    source rounded on the grid ``to``, or where no grid is proven a step function of the source, as quantization makes; scaled, times a
    factor; zeroed, constant, truncated (only the first rows are the source's), swapped (the values of another tensor), non-finite,
    differs: damage, or training; unmatched: nothing to compare with. values: compared; exceptions: values that deviate from the
    relation; cosine: with the source, if values differ, without outliers; outliers: the number of values that differ by more than
    sixteen typical ones, if these carry most of the squared distance; note: what is wrong.
    """

    name: str
    sources: tuple[str, ...]
    form: str
    relation: Relation
    to: str | None = None
    values: int
    exceptions: int
    cosine: float | None = None
    outliers: int = 0
    note: str = ""


class Evidence(Record):
    """A reason for the verdict. kind: a "proof" is bits that no unrelated weights would have, a "measurement" a figure, and an "inference"
    what may follow from figures. proof: whether it is a proof.
    """

    proof: bool
    kind: Literal["proof", "measurement", "inference"] = "inference"
    text: str

    @property
    def kind_of(self) -> str:
        """The kind, also of reports that only tell proofs from the rest."""
        return "proof" if self.proof else self.kind


class ParentsReport(Report):
    """The report on which of ``candidates`` the weights of ``checkpoint`` come from.

    values_compared: values of matrices, the most that any candidate shares. parents: the candidates that the verdict names: of a derived
    model the closest one, then those too similar to tell apart from it. layer_map:
    layers that moved, or every layer of a stack. statement: the headline in one sentence. notes: the limits of the answer. coverage: of the
    model, as compared with the best candidate, and of each candidate, in the order of the request. conversion: the origin of each tensor,
    damaged ones first, if the best candidate's values are a part of the model's. If a sample was read: blocks, the number of its blocks,
    and unseen, the largest share of all blocks (95%) that may be of a kind not among these.
    """

    analyzer: Literal["parents"] = "parents"
    schema_version: int = 1
    request: ParentsRequest
    checkpoint: CheckpointFacts
    mode: Literal["quick", "exact"]
    bytes_read: int
    requests: int
    values_compared: int
    verdict: Verdict
    statement: str
    evidence: tuple[Evidence, ...]
    candidates: tuple[Candidate, ...]
    fit: Fit | None
    layer_map: tuple[MovedLayer, ...]
    difference: Difference | None
    parents: tuple[str, ...]
    notes: tuple[str, ...]
    coverage: tuple[Coverage, ...] = ()
    conversion: tuple[Conversion, ...] = ()
    blocks: int | None = None
    unseen: float | None = None

    def accounts(self) -> Sequence[Coverage]:
        """Return the coverage of the model and of the parents that the verdict names; other candidates may have any shape."""
        return [each for row, each in enumerate(self.coverage) if row == 0 or each.ref in self.parents]
