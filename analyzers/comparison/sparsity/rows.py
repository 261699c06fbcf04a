"""Rows of the report of update sparsity. Field names are the JSON contract.

Shares are numbers in [0, 1]; counts are of elements; an undefined number is null. In quick mode counts, smallest and largest values
describe the values read; shares, means, percentiles and energy are estimates for all compared elements, weighted by stratum, and
``interval`` is the 95% interval of a row's sparsity, null in exact mode. People read the share that changed, 1 - sparsity: headings of
sparsities are about it (`report.sparsity_columns`).
"""

from typing import Annotated, Literal

from analyzers.core.formatting import NOTHING, ends
from analyzers.core.records import Interval, Record
from analyzers.core.report import CheckpointFacts
from analyzers.core.rows import Rows, Shown
from analyzers.core.tensor_words import layer_name


def changed_between(interval: Interval | None) -> str:
    """Write the interval of the share that changed, by that of sparsity."""
    return NOTHING if interval is None else ends(1 - interval.high, 1 - interval.low)


Changed = Annotated[
    float | None, Shown("Changed in bf16", "share", "Share of the weights whose values differ once both are rounded to bf16.")
]
Probed = Annotated[
    float | None, Shown("By the probe", "share", "Share of the weights that changed by more than eta, relative to the larger value.")
]
Bounds = Annotated[Interval | None, Shown("95% interval", changed_between)]
Norm = Annotated[float | None, Shown("|update| / |base|", "share", "Norm of the update, relative to the norm of the base.")]
NumChanged = Annotated[int, Shown("Weights changed", "count", "Number of the weights read that changed in bf16.")]


class Probe(Record):
    """Changes by the eta probe on stored values."""

    sparsity: float | None
    num_changed: int
    interval: Interval | None = None


class Swallowed(Record):
    """Stored values that differ although their bf16 values do not. share: of all compared.

    meaningful: False if the two sides are stored in different dtypes: the count is then of conversions, not of updates.
    """

    count: int
    share: Annotated[float | None, Shown("Lost to rounding", "share", help="Share of the weights that differ as stored and not in bf16.")]
    meaningful: bool
    interval: Interval | None = None


class GroupRow(Record):
    """Several tensors. sparsity: of all their elements together."""

    sparsity: Changed
    interval: Bounds
    probe_sparsity: Probed
    relative_norm: Norm
    num_changed: NumChanged
    tensors: Annotated[int, Shown("Tensors", "count")]
    parameters: Annotated[int, Shown("Parameters", "count")]


class RoleRow(GroupRow):
    """All tensors of one role. layers: number of layers with such tensors.

    mean, std, min, max: over the sparsities of the tensors, null in quick mode unless all were read: the spread of samples is not that of
    the tensors.
    """

    layers: Annotated[int, Shown("Layers", "count")]
    mean: float | None
    std: float | None
    min: Annotated[float | None, Shown("Most changed", "share", "The tensor of the role of which the largest share changed.")]
    max: Annotated[float | None, Shown("Least changed tensor", "share")]


class LayerRow(GroupRow):
    """One layer. layer: null for tensors outside the layers, which come last; roles: role -> sparsity of its tensors in this layer."""

    layer: Annotated[int | None, Shown("Layer", layer_name)]
    roles: dict[str, float | None]


class TensorRow(Record):
    """One pair of tensors.

    name: in the base; tuned_name: in the tuned checkpoint. dtype, tuned_dtype: as stored. shape, parameters: of the compared part (of a
    resized embedding the rows that both have). changed_rows, changed_columns: shares of the rows (along the last axis) and columns of a
    matrix with at least one change, with the axes before the last flattened; null for vectors and in quick mode. max_update: largest |tuned
    - base|; update_norm: Frobenius norm of tuned - base; relative_norm: update_norm divided by the norm of the base; all three over pairs
    of finite values, in quick mode over those read. Numbers beyond float64 are null, and relative_norm is null with update_norm.
    """

    name: Annotated[str, Shown("Name")]
    role: Annotated[str, Shown("Role")]
    sparsity: Changed
    probe_sparsity: Probed
    changed_rows: Annotated[float | None, Shown("Rows changed", "share", help="Share of the rows with at least one change.")]
    changed_columns: Annotated[float | None, Shown("Columns changed", "share", help="Share of the columns with at least one change.")]
    relative_norm: Norm
    num_changed: NumChanged
    values_read: Annotated[int, Shown("Values read", "count")]
    max_update: Annotated[float | None, Shown("Largest update", "magnitude", help="Largest magnitude of tuned - base.")]
    update_norm: Annotated[float | None, Shown("|update|", "magnitude", help="Frobenius norm of tuned - base.")]
    swallowed: Annotated[int, Shown("Lost to rounding", "count", help="Weights that differ as stored and not in bf16.")]
    dtype: Annotated[str, Shown("Dtype")]
    tuned_dtype: Annotated[str, Shown("Tuned dtype")]
    shape: Annotated[tuple[int, ...], Shown("Shape", "shape")]
    parameters: int
    layer: int | None
    probe_num_changed: int
    tuned_name: Annotated[str, Shown("In the tuned checkpoint")]


# Sizes of the updates


class Sizes(Record):
    """Distribution of the sizes of updates over pairs of finite values.

    Mean, std (of the population) and max are exact up to rounding; percentiles and min are within 1%, and exactly 0 if the true value is.
    In quick mode count, min and max describe the pairs read, the others are estimates for all. below_2_minus_8, below_2_minus_7: shares
    below 2^-8 and 2^-7, zeros included, of relative updates: neighbouring bf16 values are 2^-8 to 2^-7 of their size apart.
    """

    count: Annotated[int, Shown("Values", "count")]
    mean: Annotated[float | None, Shown("Mean", "magnitude")]
    std: Annotated[float | None, Shown("Std", "magnitude")]
    min: Annotated[float | None, Shown("Smallest", "magnitude")]
    median: float | None
    p25: Annotated[float | None, Shown("25%", "magnitude")]
    p50: Annotated[float | None, Shown("Median", "magnitude")]
    p75: Annotated[float | None, Shown("75%", "magnitude")]
    p90: Annotated[float | None, Shown("90%", "magnitude")]
    p99: Annotated[float | None, Shown("99%", "magnitude")]
    max: Annotated[float | None, Shown("Largest", "magnitude")]
    below_2_minus_8: Annotated[float | None, Shown("Below 2^-8", "share", "Share below the smallest relative bf16 ULP.")] = None
    below_2_minus_7: Annotated[float | None, Shown("Below 2^-7", "share", "Share below the largest relative bf16 ULP.")] = None


class Bin(Record):
    """A bin with ``count`` elements read, of which ``changed`` changed, whose value lies in [low, high); edges have float32 precision.

    share, changed_share: of all compared pairs of finite values, zeros included.
    """

    low: float
    high: float
    count: int
    changed: int
    share: float
    changed_share: float


class Absolute(Sizes):
    """|tuned - base| over all elements, zeros included, and over the changed ones."""

    changed_only: Sizes


class Relative(Absolute):
    """|tuned - base| / max(|base|, |tuned|), 0 if both are 0. histogram: of the nonzero values."""

    histogram: Annotated[tuple[Bin, ...], Rows(key="updates")]


class Magnitudes(Record):
    """Magnitudes of the updates. nonfinite: excluded pairs, with a NaN or an infinity on either side."""

    absolute: Absolute
    relative: Relative
    nonfinite: int


class UlpBin(Record):
    """Pairs of finite values read whose bf16 values are ``low`` to ``high`` (inclusive) bf16 ULPs apart; 0 is unchanged.

    share: of all compared pairs of finite values.
    """

    low: Annotated[int, Shown("At least", "count")]
    high: Annotated[int, Shown("At most", "count")]
    count: Annotated[int, Shown("Values read", "count")]
    share: Annotated[float, Shown("Share", "share")]


class Energy(Record):
    """Share ``energy`` of the update's sum of squares in the largest updates, which are the share ``top`` of all compared elements."""

    top: Annotated[float, Shown("Largest updates", "share", help="Share of the weights with the largest updates.")]
    energy: Annotated[float | None, Shown("Share of squared norm", "share", help="Share of the squared norm of the update in these.")]


# Tensors that are not compared one to one


class Listed(Record):
    """A tensor that is not compared, or not one to one. A field that says nothing of its kind is empty.

    name, shape, dtype: in the base, or on the only side that has it; tuned_name, tuned_shape: in the tuned checkpoint. rows: of a resized
    tensor, the number that was compared; form: the layout in which it was compared, in which its values agree or not.
    """

    name: Annotated[str, Shown("Tensor")]
    tuned_name: Annotated[str, Shown("In the tuned checkpoint")] = ""
    shape: Annotated[tuple[int, ...], Shown("Shape", "shape")]
    tuned_shape: Annotated[tuple[int, ...], Shown("Tuned shape", "shape")] = ()
    dtype: Annotated[str, Shown("Dtype")] = ""
    rows: Annotated[int | None, Shown("Rows compared", "count")] = None
    form: Annotated[str, Shown("Layout")] = ""
    agree: bool | None = None


class MovedLayer(Record):
    """A layer of the base whose content is in layer ``tuned_layer`` of the tuned checkpoint, or in none (null)."""

    layer: int
    tuned_layer: int | None


class Unmatched(Record):
    """Tensors that are not compared, or not one to one, with the last tuned checkpoint.

    Lists end after `limits.REPORT_TENSORS` entries; ``counts`` has the full numbers. missing: only in the base; extra: only in the tuned
    checkpoint; misshapen: another shape; integers: not floats on at least one side, so not comparable; tied: copies of the input embedding,
    counted once; renamed, resized, relaid, moved_layers: compared nevertheless. missing_parameters, extra_parameters: elements of missing
    and of extra.
    """

    missing: tuple[Listed, ...]
    extra: tuple[Listed, ...]
    misshapen: tuple[Listed, ...]
    renamed: tuple[Listed, ...]
    resized: tuple[Listed, ...]
    integers: tuple[Listed, ...]
    tied: tuple[Listed, ...]
    relaid: tuple[Listed, ...]
    moved_layers: tuple[MovedLayer, ...]
    counts: dict[str, int]
    missing_parameters: int
    extra_parameters: int


# Several tuned checkpoints


class Step(Record):
    """Changes since the checkpoint before; for the first tuned checkpoint since the base."""

    sparsity: Annotated[float | None, Shown("Since the one before", "share", "Share of the weights that changed in bf16.")]
    num_changed: int
    probe: Probe


class TrajectoryRow(Record):
    """One tuned checkpoint against the base. Its fields are those that the report has for the last one."""

    number: Annotated[int, Shown("Number", "count")]
    ref: Annotated[str, Shown("Checkpoint")]
    commit: str
    sparsity: Annotated[float | None, Shown("Changed since the base", "share")]
    interval: Bounds
    step: Step
    num_changed: NumChanged
    num_unchanged: int
    total_parameters: Annotated[int, Shown("Parameters matched", "count")]
    update_fraction: float | None
    probe: Probe
    swallowed: Swallowed
    relative_norm: Norm
    roles: dict[str, float | None]


class Overlap(Record):
    """Elements changed in trajectory[first] and in trajectory[second], both against the base.

    jaccard: shared / either; independent: pq/(p+q-pq), which is what independent changes would give.
    """

    first: Annotated[int, Shown("First", "count", help="Number of the checkpoint, as in the table of checkpoints.")]
    second: Annotated[int, Shown("Second", "count", help="Number of the checkpoint, as in the table of checkpoints.")]
    shared: Annotated[int, Shown("Changed in both", "count")]
    either: Annotated[int, Shown("In either", "count")]
    jaccard: Annotated[float | None, Shown("Jaccard", "magnitude", help="Changed in both, divided by changed in either.")]
    independent: Annotated[float | None, Shown("By chance", "magnitude", help="What independent changes would give.")]


# Matrices, on request


def _degrees(angle: float | None) -> str:
    return "" if angle is None else f"{angle:.3g}°"


def _overlapping(title: str, help: str) -> Shown:
    return Shown(title, "share", f"Share of the changed weights among {help}.")


class Spectrum(Record):
    """Measures of one matrix W (base), W+ (tuned), and D = W+ - W, in float64 or float32 arithmetic.

    stable_rank: |D|_F^2 / |D|_2^2; effective_rank: exp of the entropy of D's normalised singular values; nss: |s(W+) - s(W)| / |s(W)| over
    sorted singular values; largest_angle, mean_angle: principal angles (degrees) between the leading ``k`` left and right singular
    subspaces of W and W+; principal_overlap, low_magnitude_overlap: share of the changed elements in the principal mask (the largest
    |entries| of W's best rank-k approximation) and in the low-magnitude mask (the smallest |entries| of W). Each mask has ``mask_share`` of
    the elements, which is the overlap expected by chance.
    """

    name: Annotated[str, Shown("Matrix")]
    shape: Annotated[tuple[int, ...], Shown("Shape", "shape")]
    k: Annotated[int, Shown("k", "count", help="Number of leading singular vectors that are compared.")]
    stable_rank: Annotated[float | None, Shown("Stable rank", "magnitude", help="Of the update: |D|_F^2 / |D|_2^2.")]
    effective_rank: Annotated[float | None, Shown("Effective rank", "magnitude", help="Of the update, by the entropy of singular values.")]
    nss: Annotated[float | None, Shown("Spectral drift", "magnitude", help="Change of the singular values, relative to those of the base.")]
    largest_angle_left: Annotated[float | None, Shown("Angle, left", _degrees, help="Largest angle between the leading left subspaces.")]
    mean_angle_left: Annotated[float | None, Shown("Mean, left", _degrees, help="Mean angle between the leading left subspaces.")]
    largest_angle_right: Annotated[float | None, Shown("Angle, right", _degrees, help="Largest angle between the right subspaces.")]
    mean_angle_right: Annotated[float | None, Shown("Mean, right", _degrees, help="Mean angle between the leading right subspaces.")]
    principal_overlap: Annotated[
        float | None, _overlapping("In principal mask", "the largest entries of the best rank-k approximation of the base")
    ]
    low_magnitude_overlap: Annotated[float | None, _overlapping("In low-magnitude mask", "the smallest entries of the base")]
    mask_share: Annotated[float, Shown("By chance", "share", help="Share of the weights in each mask, the overlap expected by chance.")]


# Adapters


class AdapterModule(Record):
    """One tensor of the base that the adapter changes, by D = merged - W in fp32.

    relative_norm: |D| / |W|, in quick mode over the values read, of which there are values_read; empty: whether D is 0, null where a sample
    shows no change. Both are null for a tensor that was not read or not compared.
    """

    name: Annotated[str, Shown("Module")]
    role: Annotated[str, Shown("Role")]
    relative_norm: Norm
    empty: Annotated[bool | None, Shown("Changes nothing", "yes", help="Whether the update of this tensor is 0.")]
    values_read: Annotated[int, Shown("Values read", "count")]


class Survival(Record):
    """Survival in one format of the update D of all modules. touched: weights with an update, D != 0, among those read.

    changed_share: share of these whose value in the format changes. lost_norm: |round(W + D) - round(W) - D| / |D| over them: 0 if the
    update survives, 1 if nothing changes, more if rounding errors exceed the update. low, high: a 95% interval of lost_norm, in quick mode.
    overflowed: weights that become infinite; they are left out of lost_norm.
    """

    format: Annotated[str, Shown("Merged into")]
    lost_norm: Annotated[float | None, Shown("Norm lost", "share", help="Rounding errors, relative to the norm of the update.")]
    low: float | None = None
    high: float | None = None
    changed_share: Annotated[float | None, Shown("Weights that change", "share", help="Of those with an update, in this format.")]
    touched: Annotated[int, Shown("Weights with an update", "count", help="Weights read for which the update is not 0.")]
    overflowed: Annotated[int, Shown("Overflow", "count", help="Weights that become infinite in this format.")]


class Adapter(Record):
    """An adapter of the base, or several, merged into it.

    adapters: as they are stored; kind: LoRA, rsLoRA, DoRA, ...; rank, scale: the largest of its modules. modules: tensors of the base that
    change; unmatched: modules of the adapter that match nothing in the base; both end after `limits.REPORT_TENSORS` entries. survival: by
    format, of finite weights; null where no weight with an update was read. non_finite: merged weights read that are NaN or infinite where
    the base's are finite.
    """

    adapters: tuple[CheckpointFacts, ...]
    kind: str
    rank: int | None
    scale: float | None
    modules: Annotated[tuple[AdapterModule, ...], Rows("Modules of the adapter", key="adapter_modules")]
    unmatched: tuple[str, ...]
    survival: dict[Literal["bf16", "fp16"], Survival | None]
    non_finite: int


# Published fine-tunes


class PublishedRow(Record):
    """One published fine-tune. algorithm: SFT or one of reinforcement learning; data: the training data; sparsity: in [0, 1]."""

    finetuned: Annotated[str, Shown("Tuned")]
    sparsity: Annotated[float, Shown("Changed in bf16", "share")]
    base_model: Annotated[str, Shown("From")]
    algorithm: Annotated[str, Shown("Algorithm")]
    data: Annotated[str, Shown("Data")]
