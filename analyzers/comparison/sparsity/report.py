"""The request and the report of update sparsity. Field names are the JSON contract.

Shares are numbers in [0, 1]; counts are of elements; an undefined number is null. In quick mode counts, smallest and largest values
describe the values read; shares, means, percentiles and energy are estimates for all compared elements, weighted by stratum, most of them
with a 95% interval.

An element is *changed* when both its values, rounded to bf16 (nearest, ties to even), differ: +0 is -0, a NaN equals any NaN,
an infinity only itself. It is changed by the *probe* when |tuned - base| > eta max(|base|, |tuned|), of the stored values in float64
(Zhu et al., arXiv 2511.08567). It is *swallowed* when the stored values differ and it is not changed.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator

from analyzers.checkpoints import ROLES
from analyzers.comparison.sparsity.magnitudes import Bin, Energy, Magnitudes, RelativeSummary, UlpBin
from analyzers.comparison.sparsity.published import PublishedRow, published
from analyzers.core import limits
from analyzers.core.columns import Column, Table
from analyzers.core.formatting import between, count, ends, magnitude, share
from analyzers.core.options import Option
from analyzers.core.records import Interval, Record
from analyzers.core.report import CheckpointFacts, Report
from analyzers.core.request import PASTED, REFERENCE, WeightsRequest
from analyzers.core.rows import Rows, Shown, columns
from analyzers.core.tensor_words import layer_name

# Raised whenever the same request would give another result
ANALYSIS_VERSION = 12

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


_NORM = Shown("|update| / |base|", "share", "Norm of the update, relative to the norm of the base.")
_Changed = Annotated[int, Shown("Weights changed", "count", "Number of the weights read that changed in bf16.")]


class Probe(Record):
    """Changes by the eta probe on stored values."""

    sparsity: float | None
    num_changed: int


class Swallowed(Record):
    """Stored values that differ although their bf16 values do not. share: of all compared.

    meaningful: False if the two sides are stored in different dtypes: the count is then of conversions, not of updates.
    """

    count: int
    share: Annotated[float | None, Shown("Lost to rounding", "share", help="Share of the weights that differ as stored and not in bf16.")]
    meaningful: bool


class _Group(Record):
    """All tensors of one role or layer. sparsity: of all their elements together; relative_norm: norm of the update / that of the base."""

    sparsity: float | None
    probe_sparsity: float | None
    relative_norm: Annotated[float | None, _NORM]
    num_changed: _Changed
    tensors: Annotated[int, Shown("Tensors", "count")]
    parameters: Annotated[int, Shown("Parameters", "count")]


class RoleRow(_Group):
    """All tensors of one role.

    mean, std, min, max: over the sparsities of the tensors. In quick mode these four are null
    unless all the tensors were read: the spread of samples is not that of the tensors. layers: number of layers with such tensors.
    probe_mean to probe_max: the same by the probe.
    """

    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    layers: Annotated[int, Shown("Layers", "count")]
    probe_mean: float | None
    probe_std: float | None
    probe_min: float | None
    probe_max: float | None


class LayerRow(_Group):
    """One layer. layer: null for tensors outside the layers, which come last; roles: role -> sparsity of its tensors in this layer.

    low, high: a 95% interval of sparsity, in quick mode only.
    """

    layer: int | None
    low: float | None = None
    high: float | None = None
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
    sparsity: float | None
    probe_sparsity: float | None
    changed_rows: Annotated[float | None, Shown("Rows changed", "share", help="Share of the rows with at least one change.")]
    changed_columns: Annotated[float | None, Shown("Columns changed", "share", help="Share of the columns with at least one change.")]
    relative_norm: Annotated[float | None, _NORM]
    num_changed: _Changed
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
    relaid: tuple[Relaid, ...]
    moved_layers: tuple[MovedLayer, ...]
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

    ref: Annotated[str, Shown("Checkpoint")]
    commit: str
    sparsity: float | None
    interval: Interval | None
    step: Step
    num_changed: _Changed
    num_unchanged: int
    total_parameters: Annotated[int, Shown("Parameters matched", "count")]
    update_fraction: float | None
    probe: Probe
    swallowed: Swallowed
    relative_norm: Annotated[float | None, _NORM]
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
    independent: Annotated[
        float | None, Shown("By chance", "magnitude", help="What changes that have nothing to do with each other would give.")
    ]


def _degrees(angle: float | None) -> str:
    return "" if angle is None else f"{angle:.3g}°"


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
    stable_rank: Annotated[
        float | None, Shown("Stable rank", "magnitude", help="Squared Frobenius norm of the update, divided by its squared spectral norm.")
    ]
    effective_rank: Annotated[
        float | None,
        Shown("Effective rank", "magnitude", help="Exponential of the entropy of the normalised singular values of the update."),
    ]
    nss: Annotated[float | None, Shown("Spectral drift", "magnitude", help="Change of the singular values, relative to those of the base.")]
    largest_angle_left: Annotated[
        float | None, Shown("Angle, left", _degrees, help="Largest principal angle between the leading left singular subspaces.")
    ]
    mean_angle_left: Annotated[
        float | None, Shown("Mean, left", _degrees, help="Mean principal angle between the leading left singular subspaces.")
    ]
    largest_angle_right: Annotated[
        float | None, Shown("Angle, right", _degrees, help="Largest principal angle between the leading right singular subspaces.")
    ]
    mean_angle_right: Annotated[
        float | None, Shown("Mean, right", _degrees, help="Mean principal angle between the leading right singular subspaces.")
    ]
    principal_overlap: Annotated[
        float | None,
        Shown(
            "In principal mask",
            "share",
            help="Share of the changed weights among the largest entries of the best rank-k approximation of the base.",
        ),
    ]
    low_magnitude_overlap: Annotated[
        float | None, Shown("In low-magnitude mask", "share", help="Share of the changed weights among the smallest entries of the base.")
    ]
    mask_share: Annotated[float, Shown("By chance", "share", help="Share of the weights in each mask, the overlap expected by chance.")]


class AdapterModule(Record):
    """One tensor of the base that the adapter changes, by D = merged - W in fp32.

    relative_norm: |D| / |W|, in quick mode over the values read, of which there are values_read; lost_norm: as in `Survival`, of the tensor
    in bf16; empty: whether D is 0, null where a sample shows no change. All are null for a tensor that was not read or not compared.
    """

    name: Annotated[str, Shown("Module")]
    role: Annotated[str, Shown("Role")]
    relative_norm: Annotated[float | None, _NORM]
    lost_norm: Annotated[
        float | None, Shown("Norm lost in bf16", "share", help="Rounding errors of the merged weights, relative to the norm of the update.")
    ]
    empty: Annotated[bool | None, Shown("Changes nothing", "yes", help="Whether the update of this tensor is 0.")]
    values_read: Annotated[int, Shown("Values read", "count")]


class Survival(Record):
    """Survival in one format of the update D of all modules. touched: weights with an update, D != 0, among those read.

    changed_share: share of these whose value in the format changes. lost_norm: |round(W + D) - round(W) - D| / |D| over them: 0 if the
    update survives, 1 if nothing changes, more if rounding errors exceed the update. low, high: a 95% interval of lost_norm, in quick mode.
    overflowed: weights that become infinite; they are left out of lost_norm.
    """

    lost_norm: Annotated[
        float | None, Shown("Norm lost", "share", help="Rounding errors of the merged weights, relative to the norm of the update.")
    ]
    low: float | None = None
    high: float | None = None
    changed_share: Annotated[
        float | None, Shown("Weights that change", "share", help="Share of the weights with an update whose value in this format changes.")
    ]
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


def _with_intervals(report: "SparsityReport", path: str, rows: Iterable[tuple[Any, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Yield rows with their intervals, which are at ``path`` in the report by the rows' names."""
    for name, row in rows:
        yield row | {"interval": report.intervals.get(path.format(name))}


def _roles(report: "SparsityReport") -> Iterator[dict[str, Any]]:
    return _with_intervals(report, "roles.{}.sparsity", ((role, {"role": role} | vars(row)) for role, row in report.roles.items()))


def _energy(report: "SparsityReport") -> Iterator[dict[str, Any]]:
    return _with_intervals(report, "energy.{}.energy", ((number, vars(row)) for number, row in enumerate(report.energy)))


def _magnitudes(report: "SparsityReport") -> Iterator[dict[str, Any]]:
    for update, of_all in (("absolute", report.magnitudes.absolute), ("relative", report.magnitudes.relative)):
        for over, sizes in (("all", of_all), ("changed", of_all.changed_only)):
            yield dict.fromkeys(RelativeSummary.model_fields) | {"update": update, "over": over, **vars(sizes)}


def _survival(report: "SparsityReport") -> Iterator[dict[str, Any]]:
    for name, found in (report.adapter.survival if report.adapter else {}).items():
        if found is not None:
            yield {"format": name, **vars(found)}


# What becomes of the tensors of each list in `Unmatched`.
_KINDS = {
    "missing": "only in the base",
    "extra": "only in the tuned checkpoint",
    "integers": "no plain floats",
    "misshapen": "another shape",
    "resized": "compared in the rows of both",
    "renamed": "compared under another name",
    "relaid": "compared in another layout",
    "tied": "counted as the embedding",
}


def _unmatched(report: "SparsityReport") -> Iterator[dict[str, Any]]:
    fields = dict.fromkeys(("name", "tuned_name", "shape", "tuned_shape", "dtype", "rows", "form"))
    for kind in _KINDS:
        for each in getattr(report.unmatched, kind):
            yield fields | {"kind": kind} | ({"name": each} if kind == "tied" else vars(each))


def _trajectory(report: "SparsityReport") -> Iterator[dict[str, Any]]:
    yield from ({"number": number} | vars(row) for number, row in enumerate(report.trajectory))


def _intervals(report: "SparsityReport") -> Iterator[dict[str, Any]]:
    intervals = ({"sparsity": report.interval} if report.interval else {}) | report.intervals
    yield from ({"share": name, **vars(interval)} for name, interval in intervals.items())


def _published(report: "SparsityReport") -> Iterator[PublishedRow]:
    """Yield the published fine-tunes, and this one among them: if values differ, since a copy is none."""
    if report.moved and report.sparsity is not None:
        pair = PublishedRow(
            finetuned=report.tuned[-1].ref, sparsity=report.sparsity, base_model=report.base.ref, algorithm="this pair", data=""
        )
        yield from sorted((*published(), pair), key=lambda row: row.sparsity)


def _size(key: str, title: str) -> Column:
    """Return a column that writes absolute sizes as numbers and relative sizes as shares."""
    return Column(key, title, share, cell=lambda row: (share if row["update"] == "relative" else magnitude)(row[key]))


def _shape(key: str, title: str) -> Column:
    def joined(row: dict[str, Any], by: str) -> str:
        return "" if row[key] is None else by.join(map(str, row[key]))

    return Column(key, title, value=lambda row: joined(row, "x") or None, cell=lambda row: joined(row, " x "))


def _changed(key: str, title: str, help: str = "", of: str = "sparsity") -> Column:
    """Return the column of the share that changed, 1 - sparsity: people read this one number, files have both. of: the field."""
    sparsity = Column(of)

    def changed(row: Any) -> float | None:
        value: float | None = sparsity.value_of(row)
        return None if value is None else 1 - value

    return Column(key, title, share, value=changed, help=help)


def _bounds(low: str, high: str) -> Column:
    """Return the column of the interval of the share that changed. low, high: the fields with the ends of that of sparsity."""

    def cell(row: Any) -> str:
        ends_of_sparsity = Column(low).value_of(row), Column(high).value_of(row)
        return ends(*(None if end is None else 1 - end for end in reversed(ends_of_sparsity)))

    return Column("interval", "95% interval", value=low, cell=cell, only="people")


_CHANGED = _changed("changed_share", "Changed in bf16", "Share of the weights whose values differ once both are rounded to bf16.")
_PROBED = _changed(
    "probe_changed_share",
    "By the probe",
    "Share of the weights that changed by more than eta, relative to the larger value.",
    "probe_sparsity",
)
# Sparsity of each role, for files
_BY_ROLE = tuple(Column(role, value=f"roles.{role}") for role in ROLES)
_INTERVAL = Column("interval", "95% interval", cell=lambda row: between(row["interval"]), only="people")


class SparsityReport(Report):
    """Result of a comparison: the changes from ``base`` to the last of ``tuned``, and with several tuned checkpoints the steps between.

    sparsity = 1 - changed / compared; num_changed + num_unchanged = values_compared: all of total_parameters, or those read in quick mode.
    total_parameters: elements of the matched tensors. Quick mode only: blocks, the number of blocks read; interval, of sparsity; intervals,
    of other estimates by their path in the report ("probe.sparsity", "roles.attention.sparsity", "magnitudes.absolute.mean",
    "energy.0.energy", ...), over independently sampled blocks; an estimate that depends on a few blocks has none. adapter: what the adapter
    is, and what survives merging it, if the last tuned checkpoint is the base with an adapter; else null.
    """

    DERIVED: ClassVar[tuple[Table, ...]] = (
        Table(
            "roles",
            _roles,
            (
                Column("role", "Role"),
                _CHANGED,
                _bounds("interval.low", "interval.high"),
                _PROBED,
                *columns(RoleRow),
                _changed("least_changed", "Least changed tensor", of="max"),
                _changed("most_changed", "Most changed", "The tensor of the role of which the largest share changed.", of="min"),
            ),
            title="Roles",
        ),
        Table(
            "layers",
            lambda report: report.layers,
            (
                Column("layer", "Layer", cell=lambda row: layer_name(row.layer)),
                _CHANGED,
                _bounds("low", "high"),
                _PROBED,
                *columns(LayerRow),
                *_BY_ROLE,
            ),
            title="Layers",
        ),
        Table(
            "trajectory",
            _trajectory,
            (
                Column("number", "Number", count),
                columns(TrajectoryRow)[0],
                _changed("changed_share", "Changed since the base"),
                _bounds("interval.low", "interval.high"),
                _changed("step_changed_share", "Since the one before", "Share of the weights that changed in bf16.", of="step.sparsity"),
                *columns(TrajectoryRow)[1:],
                *_BY_ROLE,
            ),
            title="Checkpoints",
        ),
        Table("adapter_survival", _survival, (Column("format", "Merged into"), *columns(Survival)), title="What survives a merge"),
        Table(
            "magnitudes",
            _magnitudes,
            (
                Column("update", "Update"),
                Column("over", "Over"),
                Column("count", "Values", count),
                *map(_size, ("mean", "std", "min", "p25", "p50"), ("Mean", "Std", "Smallest", "25%", "Median")),
                *map(_size, ("p75", "p90", "p99", "max"), ("75%", "90%", "99%", "Largest")),
                Column("median"),
                Column("below_2_minus_8", "Below 2^-8", share, help="Share below 2^-8, the smallest relative bf16 ULP."),
                Column("below_2_minus_7", "Below 2^-7", share, help="Share below 2^-7, the largest relative bf16 ULP."),
            ),
            title="Sizes of the updates",
        ),
        Table("energy", _energy, (*columns(Energy), _INTERVAL), title="Energy of the update"),
        Table("updates", lambda report: report.magnitudes.relative.histogram, columns(Bin)),
        Table("intervals", _intervals, (Column("share"), Column("estimate"), Column("low"), Column("high"))),
        Table(
            "unmatched",
            _unmatched,
            (
                Column("kind", "What", cell=lambda row: _KINDS[row["kind"]]),
                Column("name", "Tensor"),
                Column("tuned_name", "In the tuned checkpoint"),
                _shape("shape", "Shape"),
                _shape("tuned_shape", "Tuned shape"),
                Column("dtype", "Dtype"),
                Column("rows", "Rows compared", count),
                Column("form", "Layout"),
            ),
            title="Tensors that are not compared one to one",
        ),
        Table(
            "published",
            _published,
            (columns(PublishedRow)[0], _changed("changed_share", "Changed in bf16"), *columns(PublishedRow)[1:]),
            title="Among published fine-tunes",
        ),
        Table(
            "tensors", lambda report: report.tensors, (*columns(TensorRow)[:2], _CHANGED, _PROBED, *columns(TensorRow)[2:]), title="Tensors"
        ),  # may be long: the last
    )

    APART: ClassVar[tuple[str, ...]] = ("magnitudes", "unmatched")

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
    adapter: Adapter | None = None
    magnitudes: Magnitudes
    ulp_histogram: Annotated[tuple[UlpBin, ...], Rows("Distance in bf16 ULPs", key="ulp")]
    energy: tuple[Energy, ...]
    unmatched: Unmatched
    trajectory: tuple[TrajectoryRow, ...]
    overlap: Annotated[tuple[Overlap, ...], Rows("Overlap of the changed weights")]
    spectral: Annotated[tuple[Spectrum, ...], Rows("Singular values and subspaces")]
    tensors: tuple[TensorRow, ...]

    def subject(self) -> dict[str, str]:
        """Return the references of the base and of the last tuned checkpoint."""
        return {"base": self.base.ref, "tuned": self.tuned[-1].ref}

    @property
    def moved(self) -> bool:
        """Return whether a value read differs by an update, and not by a conversion alone."""
        return bool(self.num_changed or (self.swallowed.count and self.swallowed.meaningful))

    def bytes_of_sample(self) -> tuple[int, int] | None:
        """Return the bytes of the sample and of all checkpoints; matrices that were decomposed are read in addition, and not counted."""
        if self.values_compared == self.total_parameters:
            return None
        every = sum(side.bytes for side in (self.base, *self.tuned))
        return (round(every * self.values_compared / self.total_parameters) if self.spectral else self.bytes_read), every
