"""The request and the report of update sparsity. Field names are the JSON contract; fields may be added, never renamed.

Shares are numbers in [0, 1]; counts are of elements; an undefined number is null. In quick mode counts, smallest and largest values
describe the values read; shares, means, percentiles and energy are estimates for all compared elements, weighted by stratum, most of them
with a 95% interval.

An element is *changed* when both its values, rounded to bf16 (nearest, ties to even), differ: +0 is -0, a NaN equals any NaN,
an infinity only itself. It is changed by the *probe* when |tuned - base| > eta max(|base|, |tuned|), of the stored values in float64
(Zhu et al., arXiv 2511.08567). It is *swallowed* when the stored values differ and it is not changed.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from analyzers import limits
from analyzers.base import PASTED, REFERENCE, CheckpointFacts, WeightsReport, WeightsRequest
from analyzers.coverage import Coverage
from analyzers.options import Option
from analyzers.records import Interval, Record
from analyzers.update_sparsity.adapters.report import Adapter
from analyzers.update_sparsity.magnitudes import Energy, Magnitudes, UlpBin

# Raised whenever the same request would give another result
ANALYSIS_VERSION = 10

DEFAULT_ETA = 1e-3


def _in_range(eta: float) -> float:
    if not 0 < eta < 1:
        raise ValueError(f"eta must lie between 0 and 1, both excluded, not {eta:g}: a usual value is 1e-3")
    return eta


Eta = Annotated[
    float,
    AfterValidator(_in_range),
    Option("Probe: eta, the smallest relative change that counts", info=""),
    Field(description="Threshold of the probe: a weight changed if |v - w| > eta max(|w|, |v|); between 0 and 1."),
]
Spectral = Annotated[
    bool,
    Option("Also decompose matrices (singular values, subspaces; reads them whole, takes longer)", info=""),
    Field(description="Also compare singular values and subspaces of matrices, which takes minutes and needs torch."),
]


class SparsityRequest(WeightsRequest):
    """Checkpoints to compare, and options of the comparison. Each of ``tuned`` is compared with the base and with the one before it."""

    base: Annotated[str, PASTED] = Field(description=f"The checkpoint before training: {REFERENCE} or /file.")
    tuned: Annotated[tuple[str, ...], PASTED, Option(one="tuned")] = Field(
        min_length=1, description=f"The tuned checkpoints: one to {limits.TRAJECTORY}, in the order of training."
    )
    eta: Eta = DEFAULT_ETA
    spectral: Spectral = False

    @field_validator("tuned")
    @classmethod
    def _not_too_many(cls, tuned: tuple[str, ...]) -> tuple[str, ...]:
        if len(tuned) > limits.TRAJECTORY:
            raise ValueError(f"at most {limits.TRAJECTORY} checkpoints are compared with a base, not {len(tuned):,}")
        return tuned


class Probe(Record):
    """Changes by the eta probe on stored values."""

    sparsity: float | None
    num_changed: int


class Swallowed(Record):
    """Stored values that differ although their bf16 values do not. share: of all compared.

    meaningful: False if the two sides are stored in different dtypes: the count is then of conversions, not of updates.
    """

    count: int
    share: float | None
    meaningful: bool


class RoleRow(Record):
    """All tensors of one role.

    sparsity: of all their elements together; mean, std, min, max: over the sparsities of the tensors. In quick mode these four are null
    unless all the tensors were read: the spread of samples is not that of the tensors. layers: number of layers with such tensors.
    probe_sparsity and probe_mean to probe_max: as sparsity and mean to max, by the probe; probe_mean to probe_max are null in reports made
    before they were added. relative_norm: norm of the update divided by that of the base's values.
    """

    layers: int
    tensors: int
    parameters: int
    num_changed: int
    sparsity: float | None
    probe_sparsity: float | None
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    probe_mean: float | None = None
    probe_std: float | None = None
    probe_min: float | None = None
    probe_max: float | None = None
    relative_norm: float | None


class LayerRow(Record):
    """One layer. layer: null for tensors outside the layers; roles: role -> sparsity of its tensors in this layer.

    low, high: a 95% interval of sparsity, in quick mode only; null also in reports made before they were added.
    """

    layer: int | None
    tensors: int
    parameters: int
    num_changed: int
    sparsity: float | None
    low: float | None = None
    high: float | None = None
    probe_sparsity: float | None
    relative_norm: float | None
    roles: dict[str, float | None]


class TensorRow(Record):
    """One pair of tensors; in very large checkpoints all pairs of one layer, role and dtypes (``tensors`` of them, shape empty).

    name: in the base; tuned_name: in the tuned checkpoint. dtype, tuned_dtype: as stored. shape, parameters: of the compared part (of a
    resized embedding the rows that both have). changed_rows, changed_columns: shares of the rows (along the last axis) and columns of a
    matrix with at least one change, with the axes before the last flattened; null for vectors and in quick mode. max_update: largest |tuned
    - base|; update_norm: Frobenius norm of tuned - base; relative_norm: update_norm divided by the norm of the base; all three over pairs
    of finite values, in quick mode over those read. Numbers beyond float64 are null, and relative_norm is null with update_norm.
    """

    name: str
    tuned_name: str
    dtype: str
    tuned_dtype: str
    shape: tuple[int, ...]
    tensors: int
    parameters: int
    values_read: int
    role: str
    layer: int | None
    num_changed: int
    sparsity: float | None
    probe_num_changed: int
    probe_sparsity: float | None
    swallowed: int
    changed_rows: float | None
    changed_columns: float | None
    max_update: float | None
    update_norm: float | None
    relative_norm: float | None


class NamedTensor(Record):
    """A tensor that only one side has, or that holds no floats."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Renamed(Record):
    """A pair of tensors compared under different names."""

    name: str
    tuned_name: str


class Misshapen(Renamed):
    """A pair of tensors with the same name and different shapes, not compared.

    transposed: whether the shapes differ only in the order of axes.
    """

    shape: tuple[int, ...]
    tuned_shape: tuple[int, ...]
    transposed: bool


class Resized(Renamed):
    """An embedding or head with different numbers of rows, of which the first ``rows`` were compared, which both have."""

    shape: tuple[int, ...]
    tuned_shape: tuple[int, ...]
    rows: int


class Relaid(Renamed):
    """A pair compared in another layout, part by part: fused, stacked, transposed, ... agree: whether values were seen to agree in it."""

    form: str
    agree: bool


class MovedLayer(Record):
    """A layer of the base whose content is in layer ``tuned_layer`` of the tuned checkpoint, or in none (null)."""

    layer: int
    tuned_layer: int | None


class Unmatched(Record):
    """Tensors that are not compared, or not one to one, with the last tuned checkpoint.

    Lists end after `limits.REPORT_TENSORS` entries; ``counts`` has the full numbers. missing: only in the base; extra: only in the tuned
    checkpoint; integers: not floats on at least one side, so not comparable; tied: copies of the input embedding, counted once; relaid,
    moved_layers: compared nevertheless. missing_parameters, extra_parameters: elements of missing and of extra.
    """

    missing: tuple[NamedTensor, ...]
    extra: tuple[NamedTensor, ...]
    misshapen: tuple[Misshapen, ...]
    renamed: tuple[Renamed, ...]
    resized: tuple[Resized, ...]
    integers: tuple[NamedTensor, ...]
    tied: tuple[str, ...]
    relaid: tuple[Relaid, ...] = ()
    moved_layers: tuple[MovedLayer, ...] = ()
    counts: dict[str, int]
    missing_parameters: int
    extra_parameters: int


class Step(Record):
    """Changes since the checkpoint before; for the first tuned checkpoint since the base."""

    sparsity: float | None
    num_changed: int
    probe: Probe


class TrajectoryRow(Record):
    """One tuned checkpoint against the base. Its fields are those that the report has for the last one."""

    ref: str
    commit: str
    sparsity: float | None
    num_changed: int
    num_unchanged: int
    total_parameters: int
    update_fraction: float | None
    interval: Interval | None
    probe: Probe
    swallowed: Swallowed
    relative_norm: float | None
    roles: dict[str, float | None]
    step: Step


class Overlap(Record):
    """Elements changed in trajectory[first] and in trajectory[second], both against the base.

    jaccard: shared / either; independent: pq/(p+q-pq), which is what independent changes would give.
    """

    first: int
    second: int
    shared: int
    either: int
    jaccard: float | None
    independent: float | None


class Spectrum(Record):
    """Measures of one matrix W (base), W+ (tuned), and D = W+ - W, in float64 or float32 arithmetic.

    stable_rank: |D|_F^2 / |D|_2^2; effective_rank: exp of the entropy of D's normalised singular values; nss: |s(W+) - s(W)| / |s(W)| over
    sorted singular values; largest_angle, mean_angle: principal angles (degrees) between the leading ``k`` left and right singular
    subspaces of W and W+; principal_overlap, low_magnitude_overlap: share of the changed elements in the principal mask (the largest
    |entries| of W's best rank-k approximation) and in the low-magnitude mask (the smallest |entries| of W). Each mask has ``mask_share`` of
    the elements, which is the overlap expected by chance.
    """

    name: str
    shape: tuple[int, ...]
    k: int
    stable_rank: float | None
    effective_rank: float | None
    nss: float | None
    largest_angle_left: float | None
    largest_angle_right: float | None
    mean_angle_left: float | None
    mean_angle_right: float | None
    mask_share: float
    principal_overlap: float | None
    low_magnitude_overlap: float | None


class SparsityReport(WeightsReport):
    """Result of a comparison: the changes from ``base`` to the last of ``tuned``, and with several tuned checkpoints the steps between.

    sparsity = 1 - changed / compared; num_changed + num_unchanged = values_compared: all of total_parameters, or those read in quick mode.
    total_parameters: elements of the matched tensors. Quick mode only: blocks, the number of blocks read; interval, of sparsity; intervals,
    of other estimates by their path in the report ("probe.sparsity", "roles.attention.sparsity", "magnitudes.absolute.mean",
    "energy.0.energy", ...), over independently sampled blocks; an estimate that depends on a few blocks has none. statement: the headline
    in one sentence; notes: the limits of the answer, tensors not compared first. adapter: what the adapter is, and what survives merging
    it, if the last tuned checkpoint is the base with an adapter; else null.
    """

    analyzer: Literal["sparsity"] = "sparsity"
    schema_version: int = 1
    request: SparsityRequest
    base: CheckpointFacts
    tuned: tuple[CheckpointFacts, ...]
    mode: Literal["quick", "exact"]
    bytes_read: int
    requests: int
    values_compared: int
    sparsity: float | None
    num_changed: int
    num_unchanged: int
    total_parameters: int
    update_fraction: float | None
    eta: float
    probe: Probe
    swallowed: Swallowed
    interval: Interval | None
    intervals: dict[str, Interval]
    blocks: int | None = None
    roles: dict[str, RoleRow]
    layers: tuple[LayerRow, ...]
    tensors: tuple[TensorRow, ...]
    tensors_aggregated: bool
    magnitudes: Magnitudes
    ulp_histogram: tuple[UlpBin, ...]
    energy: tuple[Energy, ...]
    unmatched: Unmatched
    trajectory: tuple[TrajectoryRow, ...]
    overlap: tuple[Overlap, ...]
    spectral: tuple[Spectrum, ...]
    statement: str
    notes: tuple[str, ...]
    coverage: tuple[Coverage, ...] = ()
    adapter: Adapter | None = None

    def ulp_shares(self) -> list[float]:
        """Return the shares of the nonempty bins of ``ulp_histogram``; in older reports of the values read."""
        bins = [each for each in self.ulp_histogram if each.count]
        total = sum(each.count for each in bins)
        return [each.count / total if each.share is None else each.share for each in bins]

    def subject(self) -> dict[str, str]:
        """Return the references of the base and of the last tuned checkpoint."""
        return {"base": self.base.ref, "tuned": self.tuned[-1].ref}
