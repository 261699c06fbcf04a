"""The request and the report of dtype detection. Field names are the JSON contract; fields may be added, never renamed.

Shares are numbers in [0, 1]; counts are of elements; an undefined number is null. In quick mode counts and extremes describe the values
read, shares are estimates with a 95% interval.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator

from analyzers.base import CheckpointFacts, Reference, WeightsReport, WeightsRequest
from analyzers.coverage import Coverage
from analyzers.grids.tensor_grid import TensorGrid
from analyzers.options import Option
from analyzers.records import Interval, Record

Verdict = Literal[
    "native",
    "upcast-from-bf16",
    "upcast-from-fp16",
    "upcast-from-fp32",
    "downcast-from-bf16",
    "fp16-ancestor",
    "fp8-ancestor",
    "fp4-ancestor",
    "on-grid",
    "mixed",
    "undecided",
]
# Verdicts on tensors in words
VERDICT_WORDS: dict[Verdict, str] = {
    "native": "nothing narrower",
    "upcast-from-bf16": "upcast from bf16",
    "upcast-from-fp16": "upcast from fp16",
    "upcast-from-fp32": "upcast from fp32",
    "downcast-from-bf16": "downcast from bf16",
    "fp16-ancestor": "from fp16",
    "fp8-ancestor": "from fp8",
    "fp4-ancestor": "from fp4",
    "on-grid": "on a grid",
    "mixed": "mixed",
    "undecided": "undecided",
}
RiskLevel = Literal["fits", "caution", "overflow", "broken", "unknown"]
QuantizationFormat = Literal["fp8", "fp8-block", "int8", "int4", "mxfp4", "nvfp4"]
Basis = Literal["label", "lineage", "family", "classifier", "rule", "none"]  # "rule": in reports of analysis version 1 only

# Raised whenever the same request would give another result
ANALYSIS_VERSION = 11


class DtypeRequest(WeightsRequest):
    """Checkpoint to inspect, and options of the inspection.

    quantize reads the matrices a second time. fp8: E4M3 with one scale amax/448 per tensor; fp8-block: per 128 x 128 values; int8: one
    scale amax/127 per row (output channel); int4: amax/7 per 128 values of a row; mxfp4: E2M1 with 2^(floor(log2 amax) - 2) per 32; nvfp4:
    E2M1 with E4M3 scales of amax/6 per 16 under a scale per tensor.
    """

    model: Reference
    quantize: Annotated[
        tuple[QuantizationFormat, ...],
        Option("Quantization headroom: also round the matrices to (reads them twice)", info="", more="or all"),
    ] = Field(
        default=(),
        max_length=6,
        description=f"Also round the matrices to these formats and rank them by error: {', '.join(get_args(QuantizationFormat))}.",
    )

    @field_validator("quantize")
    @classmethod
    def _each_once(cls, quantize: tuple[QuantizationFormat, ...]) -> tuple[QuantizationFormat, ...]:
        return tuple(name for name in get_args(QuantizationFormat) if name in quantize)


class Storage(Record):
    """Tensors stored in one dtype: its safetensors name, MXFP4 or NVFP4, or a quantized type of GGUF.

    Scales count as tensors and bytes, not as parameters. note: explains dtypes other than plain floats. computed: stored nowhere, but
    computed from a base and an adapter, in this dtype.
    """

    dtype: str
    tensors: int
    parameters: int
    bytes: int
    note: str = ""
    computed: bool = False


class Extremes(Record):
    """Extremes over all selected parameters, of finite values only.

    abs_min counts zeros; norms are Frobenius norms per tensor, without zero norms. exact: False in quick mode, in which magnitudes are
    those of the sample and the norm of a partly read tensor is extrapolated.
    """

    abs_min: float | None
    abs_min_nonzero: float | None
    abs_max: float | None
    norm_min: float | None
    norm_max: float | None
    exact: bool


class Counts(Record):
    """Counts among the values read.

    fp16_overflow: finite, |x| >= 65520; fp16_underflow: 0 < |x| <= 2^-25; fp16_subnormal: between that and 2^-14.
    """

    zero: int
    nan: int
    inf: int
    fp16_overflow: int
    fp16_underflow: int
    fp16_subnormal: int


class Representable(Record):
    """Share of the finite nonzero values that each format holds exactly."""

    fp16: float | None
    bf16: float | None
    tf32: float | None
    fp8_e4m3: float | None
    fp8_e5m2: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Outcome of one test on the stored bits.

    test: its name; format: the ancestor it looks for; stored: the dtype of the tested values, empty in reports of analysis version 2 and
    before; unit: what is counted ("values", "runs" of 128 neighbours, "blocks" of 16, or "groups" that share a scale). tested: number
    tested; distinct: number of different values that pass and that the coarsest grid that holds all of them does not explain (repeats prove
    nothing), or number of runs or blocks that only a grid of the ancestor explains, or of groups that pass; exceptions: number that fail
    (one refutes); share: of those tested that pass; chance: share of floats without such an ancestor that pass (of groups the geometric
    mean of their odds); log10_chance: log10 of the odds that all of ``distinct`` pass by accident. A
    dataclass, because it takes a tenth of the memory of a model: a checkpoint may have 90,000 tensors.
    """

    __pydantic_config__ = Record.model_config

    test: str
    question: str
    format: str
    stored: str = ""
    unit: Literal["values", "runs", "blocks", "groups"]
    tested: int
    distinct: int
    exceptions: int
    share: float | None
    chance: float
    log10_chance: float
    proven: bool
    conclusion: str


class Part(Record):
    """Tensors and parameters with one lineage verdict."""

    verdict: Verdict
    tensors: int
    parameters: int


class Lineage(Record):
    """Formats that the stored values have provably passed through.

    stored: the dtype of most parameters; passed_through: proven ancestors, without the stored format; parts: the tensors by their own
    verdict; fossil_rows: rows exact in a narrower format in tensors that are not; statement: the verdict as a sentence, with its
    confidence.
    """

    stored: str
    passed_through: tuple[str, ...]
    verdict: Verdict
    evidence: tuple[Evidence, ...]
    parts: tuple[Part, ...]
    fossil_rows: int
    statement: str


class Training(Record):
    """Precision in which the model was trained: an inference, or a label.

    verdict: a label's words, "fp16", "bf16", "fp32", "fp8", or "undecided". ``probabilities`` sum to 1, or are empty. basis "family": that
    of a labelled model of the same architecture with weights as large; "classifier": magnitudes, which rarely decide.
    """

    verdict: str
    probabilities: dict[str, float]
    basis: Basis
    explanation: str
    source: str | None


class Fp16Risk(Record):
    """Risk of a cast of the weights to fp16. Says nothing about activations."""

    level: RiskLevel
    reasons: tuple[str, ...]


class Exponent(Record):
    """Number ``count`` of the values read with a magnitude in [2^exponent, 2^(exponent+1))."""

    exponent: int
    count: int


class Movable(Record):
    """Movement that training in ``format`` alone, without fp32 master weights, still allows, by the size of its steps.

    frozen: share of the finite weights, rounded to the format, for which w + step and w - step both round (to nearest even) back to w;
    roles: that share by role. expected_flips: mean of min(1, step / ulp(w)), the share of values that one step over fp32 masters changes.
    This is a bound for steps of exactly that size: the optimizer and the gradients decide the rest. In quick mode strata are weighted by
    size. A weight stored in more bits than its histogram tells apart counts half as rounded down and half as rounded up.
    """

    format: str
    steps: tuple[float, ...]
    frozen: tuple[float, ...]
    expected_flips: tuple[float, ...]
    roles: dict[str, tuple[float, ...]]
    statement: str


class Untouched(Record):
    """A tensor all of whose values read are one constant, or a norm or bias with at least half of them exactly at 1 or 0.

    share: of the values read that equal ``value``.
    """

    name: str
    role: str
    value: float
    share: float


class Entropy(Record):
    """Shannon entropy of single weights in the dtype of most of them, the limit for a lossless coder that looks at one weight at a time.

    bits_per_weight: of the stored pattern, out of ``stored_bits``; null for 32- and 64-bit floats. high_half_bits: of the upper 16 bits,
    for 32-bit floats only. exponent_bits: of the exponent alone. bits_needed: mean over the weights of that dtype, if those on scaled grids
    (`Grid`) were stored on them; null if none is.
    """

    dtype: str
    stored_bits: int
    bits_per_weight: float | None
    high_half_bits: float | None
    exponent_bits: float
    bits_needed: float | None = None


class QuantizationError(Record):
    """Error of rounding finite values to ``format``.

    rms_rel: |rounded - x| / |x| (Frobenius norms); null if all are zero. sqnr_db: -20 log10 of rms_rel; null if nothing is lost. exact:
    share of the values that do not change; saturated: share beyond the format's largest value.
    """

    format: QuantizationFormat
    role: str
    rms_rel: float | None
    sqnr_db: float | None
    exact: float | None
    saturated: float | None


class QuantizationRow(QuantizationError):
    """One matrix, or stack of matrices. values: number of its finite values read."""

    name: str
    values: int


class QuantizationRole(QuantizationError):
    """All matrices of a role.

    blocks: number of blocks of whole rows in a sample; null if everything was read, and in older reports. low, high: a 95% interval of
    rms_rel, for a sample only; null if a few blocks carry the error, and for fp8, whose scale follows from the largest magnitude in a
    tensor.
    """

    tensors: int
    low: float | None
    high: float | None
    blocks: int | None = None


class TensorLineage(Record):
    """Lineage of one tensor. grid: the finest scaled grid that explains its values, or some of them."""

    verdict: Verdict
    passed_through: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    grid: TensorGrid | None = None


class GridExample(Record):
    """The beginning of a group of weights on a grid. first: index of its first element in the tensor; levels: those in reach, ascending."""

    name: str
    first: int
    values: tuple[float, ...]
    levels: tuple[float, ...]


class Grid(Record):
    """Tensors on one scaled grid, or in part on it.

    format, group, columns, least: as of `grids.TensorGrid`; stored: the dtype of the files; groups_tested, exceptions: groups, and those of
    them that no scale explains; outliers: values set aside in the others; by_chance: bound of the odds that native values pass, the largest
    of all tensors; bits_needed: per weight, with its share of the scales; redundant_bytes: what storing it on the grid would save, 0 unless
    proven; proven: every group read of these tensors is on the grid; codes_save: bytes that one format of ``shrink --to grid`` saves,
    counting the tensors whose first values it restores; example: one group, if its levels can be told from its values alone.
    """

    format: str
    group: str
    columns: bool
    stored: str
    tensors: int
    parameters: int
    groups_tested: int
    exceptions: int
    outliers: int
    by_chance: float
    roles: tuple[str, ...]
    bits_needed: float
    redundant_bytes: int
    proven: bool
    least: bool = False
    codes_save: int = 0
    example: GridExample | None = None


class TensorRow(Record):
    """One tensor; in very large checkpoints all tensors of one layer, role and dtype (``tensors`` of them, shape empty).

    norm: scaled up if the tensor was read in part (values_read < parameters). fossil_rows: rows all of whose values are exact in a narrower
    format although the tensor's are not (in quick mode: among the rows read).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    tensors: int
    parameters: int
    values_read: int
    role: str
    layer: int | None
    abs_min: float | None
    abs_min_nonzero: float | None
    abs_max: float | None
    norm: float | None
    zero: int
    nan: int
    inf: int
    fp16_overflow: int
    fp16_underflow: int
    fp16_subnormal: int
    representable: Representable
    lineage: TensorLineage
    fossil_rows: int


class LayerRow(Record):
    """All tensors of one layer and role together; ``layer`` is null for tensors outside the layers."""

    layer: int | None
    role: str
    tensors: int
    parameters: int
    abs_min_nonzero: float | None
    abs_max: float | None
    rms: float | None


class BufferRow(Record):
    """A stored tensor that is not a parameter: listed, and excluded from everything else."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class DtypeReport(WeightsReport):
    """Result of dtype detection for one checkpoint.

    movable: in bf16; movable_fp16: of the weights stored in fp16, in fp16. Both, untouched and entropy are absent from reports made before
    they were added. quantization: only as requested, worst tensors of each format first; quantization_ignore: by format the modules whose
    error is more than 1.5 times the median, in the form of llm-compressor's ``ignore`` and torchao's filters. blocks: number read in quick
    mode; unseen: the largest share of all values, with 95% confidence, in blocks of a kind of which none was read. Both are null if
    everything was read, and in reports made before they were added. grids: scaled grids that explain values, proven ones first; off_grid:
    roles of the matrices on none of the proven ones, if there are any.
    """

    analyzer: Literal["dtype"] = "dtype"
    schema_version: int = 1
    request: DtypeRequest
    checkpoint: CheckpointFacts
    mode: Literal["quick", "exact"]
    bytes_read: int
    values_read: int
    requests: int
    blocks: int | None = None
    unseen: float | None = None
    selected_tensors: int
    selected_parameters: int
    storage: tuple[Storage, ...]
    config_dtype: str | None
    quantization_config: dict[str, str] | None
    extremes: Extremes
    counts: Counts
    representable: Representable
    intervals: dict[str, Interval]
    lineage: Lineage
    training: Training
    fp16_risk: Fp16Risk
    exponents: tuple[Exponent, ...]
    movable: Movable | None = None
    movable_fp16: Movable | None = None
    untouched: tuple[Untouched, ...] = ()
    entropy: Entropy | None = None
    grids: tuple[Grid, ...] = ()
    off_grid: tuple[str, ...] = ()
    quantization: tuple[QuantizationRow, ...] = ()
    quantization_roles: tuple[QuantizationRole, ...] = ()
    quantization_ignore: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    layers: tuple[LayerRow, ...]
    tensors: tuple[TensorRow, ...]
    tensors_aggregated: bool
    buffers: tuple[BufferRow, ...]
    notes: tuple[str, ...]
    coverage: tuple[Coverage, ...] = ()
