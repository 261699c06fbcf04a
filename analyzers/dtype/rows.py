"""Records of the report of dtype detection. Field names are the JSON contract.

Shares are numbers in [0, 1]; counts are of elements; an undefined number is null. In quick mode counts and extremes describe the values
read, shares are estimates with a 95% interval.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from analyzers.core.formatting import power
from analyzers.core.records import Record
from analyzers.core.rows import Rows, Shown
from analyzers.grids.tensor_grid import TensorGrid

Verdict = Literal[
    "native",
    "upcast-from-bf16",
    "upcast-from-fp16",
    "downcast-from-bf16",
    "fp16-ancestor",
    "fp8-ancestor",
    "fp4-ancestor",
    "on-grid",
    "mixed",
    "undecided",
]
VERDICT_WORDS: dict[Verdict, str] = {
    "native": "with no narrower format",
    "upcast-from-bf16": "upcast from bf16",
    "upcast-from-fp16": "upcast from fp16",
    "downcast-from-bf16": "downcast from bf16",
    "fp16-ancestor": "from fp16",
    "fp8-ancestor": "from fp8",
    "fp4-ancestor": "from fp4",
    "on-grid": "on a grid",
    "mixed": "with rows of a narrower format",
    "undecided": "undecided",
}
"""Verdicts on tensors in words: one with fossil rows is mixed."""
TEST_WORDS = {
    "bf16_exact": "values exact in bf16",
    "fp16_exact": "values exact in fp16",
    "fp16_grid": "values on the grid of fp16 (below 2⁻¹⁷)",
}
"""Tests in words: what passes."""
Result = Literal["proven", "partly", "refuted", "open"]
RESULT_WORDS: dict[Result, str] = {
    "proven": "proven",
    "partly": "refuted, though far more pass than by chance",
    "refuted": "refuted",
    "open": "too few different values to tell",
}
"""Outcomes of a test in words."""
RiskLevel = Literal["fits", "caution", "overflow", "broken", "unknown"]
Risk = Literal["overflow", "underflow", "subnormal", "inexact", "nan", "infinite", "undecoded", "nothing"]
QuantizationFormat = Literal["fp8", "fp8-block", "int8", "int4", "mxfp4", "nvfp4"]
Basis = Literal["label", "base", "family", "classifier", "none"]


class Storage(Record):
    """Tensors stored in one dtype: its safetensors name, MXFP4 or NVFP4, or a quantized type of GGUF.

    Scales count as tensors and bytes, not as parameters. note: explains dtypes other than plain floats. computed: stored nowhere, but
    computed from a base and an adapter, in this dtype.
    """

    dtype: Annotated[str, Shown("Dtype")]
    tensors: Annotated[int, Shown("Tensors", "count")]
    parameters: Annotated[int, Shown("Parameters", "count")]
    bytes: Annotated[int, Shown("Size", "size")]
    computed: Annotated[
        bool, Shown("Computed by a merge", "yes", help="Whether the weights are stored nowhere, but computed from a base and an adapter.")
    ] = False
    note: Annotated[str, Shown("Decoded from", help="What is stored in place of plain floats, and was decoded.")] = ""


class Extremes(Record):
    """Extremes over all selected parameters, of finite values only.

    abs_min counts zeros; abs_max_in: the tensor that holds abs_max; norms are Frobenius norms per tensor, without zero norms. exact: False
    in quick mode, in which magnitudes are those of the sample and the norm of a partly read tensor is extrapolated.
    """

    abs_min: float | None
    abs_min_nonzero: float | None
    abs_max: float | None
    norm_min: float | None
    norm_max: float | None
    exact: bool
    abs_max_in: str | None = None


class Counts(Record):
    """Counts among the values read.

    fp16_overflow: finite, |x| >= 65520; fp16_underflow: 0 < |x| <= 2^-25; fp16_subnormal: between that and 2^-14; fp16_inexact_subnormal:
    of these, those that are not a multiple of 2^-24, so that fp16 rounds them to fewer than its 11 significant bits.
    """

    zero: int
    nan: int
    inf: int
    fp16_overflow: int
    fp16_underflow: int
    fp16_subnormal: int
    fp16_inexact_subnormal: int


class Representable(Record):
    """Share of the finite nonzero values that each format holds exactly."""

    fp16: float | None
    bf16: float | None
    tf32: float | None
    fp8_e4m3: float | None
    fp8_e5m2: float | None


def _power_of_ten(log10: float) -> str:
    return power(round(log10), 10) if log10 < 0 else "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Outcome of one test on the stored bits.

    format: the ancestor that the test looks for; stored: the dtype of the tested values. tested: number of values tested; distinct: number
    of different values that pass and that the coarsest grid that holds all of them does not explain (repeats prove nothing); exceptions:
    number that fail (one refutes); log10_chance: log10 of the odds that all of ``distinct`` pass by accident; result: "proven"; "refuted",
    or "partly", which is far above chance; "open" if a test without exceptions proves nothing. A dataclass, because it takes a tenth of the
    memory of a model: a checkpoint may have 90,000 tensors.
    """

    __pydantic_config__ = Record.model_config

    test: Annotated[str, Shown("Test", TEST_WORDS.__getitem__, help="What passes the test; values that every format holds are not tested.")]
    format: str
    stored: Annotated[str, Shown("Stored", "dtype")]
    tested: Annotated[int, Shown("Tested", "count", help="Values that can tell.")]
    distinct: int
    exceptions: Annotated[int, Shown("Exceptions", "count", help="Those that fail; one refutes the format.")]
    log10_chance: Annotated[
        float, Shown("Odds by accident", _power_of_ten, help="Probability that as many different values pass by chance.")
    ]
    result: Annotated[Result, Shown("Result", RESULT_WORDS.__getitem__)]

    @property
    def proven(self) -> bool:
        """Whether the values have provably passed through the format."""
        return self.result == "proven"


class Part(Record):
    """Tensors and parameters with one lineage verdict."""

    verdict: Annotated[
        Verdict, Shown("History", VERDICT_WORDS.__getitem__, help="Formats that the stored values have provably passed through.")
    ]
    tensors: Annotated[int, Shown("Tensors", "count")]
    parameters: Annotated[int, Shown("Parameters", "count")]


class Lineage(Record):
    """Formats that the stored values have provably passed through.

    stored: the dtype of most parameters; passed_through: proven ancestors, oldest first, without the stored format; parts: the tensors by
    their own verdict; fossil_rows: rows exact in a narrower format in tensors that are not; telling: share of the parameters that are in
    tensors with values that tell.
    """

    stored: str
    passed_through: tuple[str, ...]
    verdict: Verdict
    evidence: Annotated[tuple[Evidence, ...], Rows("Tests of the bit patterns")]
    parts: Annotated[tuple[Part, ...], Rows("Tensors by history")]
    fossil_rows: int
    telling: float


class Training(Record):
    """Precision in which the model was trained: an inference, or a label.

    verdict: a label's words, "fp16", "bf16", "fp32", "fp8", or "undecided". ``probabilities`` sum to 1, or are empty. basis "base": that
    of the model that this one was made from, by its label; "family": that of a labelled model of the same architecture with weights as
    large; "classifier": magnitudes, which rarely decide. source: a label's evidence, or where the labelled models are listed. nearest:
    the base, or the labelled model of the same family. contradicted_by: the 16-bit format that the weights have provably been in first, if
    the inference is the other one, so that nothing is inferred.
    """

    verdict: str
    probabilities: dict[str, float]
    basis: Basis
    source: str | None = None
    nearest: str | None = None
    nearest_precision: str | None = None
    contradicted_by: str | None = None


class Fp16Risk(Record):
    """Risk of a cast of the weights to fp16; says nothing about activations. reasons: what was counted, see `Counts`."""

    level: RiskLevel
    reasons: tuple[Risk, ...]


class Exponent(Record):
    """Number ``count`` of the values read with a magnitude in [2^exponent, 2^(exponent+1)); -134 and 127 count what is beyond, too."""

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


class Untouched(Record):
    """A tensor all of whose values read are one constant, or a norm or bias with at least half of them exactly at 1 or 0.

    share: of the values read that equal ``value``.
    """

    name: Annotated[str, Shown("Name", "text")]
    role: Annotated[str, Shown("Role")]
    value: Annotated[float, Shown("Value", "magnitude", help="The constant, or the initial value of most entries.")]
    share: Annotated[float, Shown("Share", "share", help="Share of the entries that stand at exactly this value.")]


class Entropy(Record):
    """Shannon entropy of single weights in the dtype of most of them, the limit for a lossless coder that looks at one weight at a time.

    bits_per_weight: of the stored pattern, out of ``stored_bits``; null for fp32. high_half_bits: of the upper 16 bits,
    for 32-bit floats only. exponent_bits: of the exponent alone.
    """

    dtype: str
    stored_bits: int
    bits_per_weight: float | None
    high_half_bits: float | None
    exponent_bits: float


class QuantizationError(Record):
    """Error of rounding finite values to ``format``.

    rms_rel: |rounded - x| / |x| (Frobenius norms); null if all are zero. sqnr_db: -20 log10 of rms_rel; null if nothing is lost. exact:
    share of the values that do not change; saturated: share beyond the format's largest value.
    """

    format: Annotated[QuantizationFormat, Shown("Rounded to")]
    role: Annotated[str, Shown("Role")]
    rms_rel: Annotated[
        float | None, Shown("Error", "share", help="Root mean square of the rounding errors, relative to that of the weights.")
    ]
    sqnr_db: Annotated[
        float | None,
        Shown("SQNR, dB", "magnitude", help="Signal to quantization noise ratio in decibels: an error of 10% is 20 dB, of 1% 40 dB."),
    ]
    exact: Annotated[float | None, Shown("Exact", "share", help="Share of the values that rounding leaves unchanged.")]
    saturated: Annotated[float | None, Shown("Saturated", "share", help="Share of the values beyond the largest of the format.")]


class QuantizationRow(QuantizationError):
    """One matrix, or stack of matrices. values: number of its finite values read."""

    name: Annotated[str, Shown("Name")]
    values: int


class QuantizationRole(QuantizationError):
    """All matrices of a role. blocks: number of blocks of whole rows in a sample, whose error has no interval; null if all were read."""

    tensors: Annotated[int, Shown("Tensors", "count")]
    blocks: Annotated[int | None, Shown("Blocks read", "count", help="Blocks of whole rows that a sample read.")] = None


class TensorLineage(Record):
    """Lineage of one tensor. grid: the coarsest scaled grid that explains its values, or most of their groups."""

    verdict: Annotated[
        Verdict, Shown("History", VERDICT_WORDS.__getitem__, help="Formats that the stored values have provably passed through.")
    ]
    passed_through: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    grid: TensorGrid | None = None


class Grid(Record):
    """Tensors on one scaled grid, or in part on it.

    format, group, columns: as of `grids.TensorGrid`; stored: the dtype of the files; groups_on: groups tested that a scale explains;
    by_chance: bound of the odds that native values pass, the largest of all tensors; bits_needed: per weight, with its share of the scales;
    redundant_bytes: what storing it on the grid would save, 0 unless proven; proven: every group read of these tensors is on the grid.
    """

    format: Annotated[str, Shown("Grid", "format")]
    group: Annotated[str, Shown("Values per scale", help="Number of weights, or shape of the block, that share one scale.")]
    columns: bool
    stored: Annotated[str, Shown("Stored", "dtype")]
    tensors: Annotated[int, Shown("Tensors", "count")]
    parameters: Annotated[int, Shown("Parameters", "count")]
    groups_tested: Annotated[int, Shown("Groups", "count", help="Groups of weights with one scale each that were tested.")]
    groups_on: Annotated[int, Shown("On the grid", "count", help="Groups in which one scale explains every value.")]
    by_chance: float
    roles: Annotated[tuple[str, ...], Shown("Roles", "list")]
    bits_needed: Annotated[
        float, Shown("Bits needed", "magnitude", help="Bits per weight with its share of the scale, if codes were stored.")
    ]
    redundant_bytes: Annotated[int, Shown("Redundant", "size", help="Bytes that storing codes and scales would save.")]
    proven: Annotated[bool, Shown("Proven", "yes", help="Whether every group read lies on the grid.")]


class TensorRow(Record):
    """One tensor.

    norm: scaled up if the tensor was read in part (values_read < parameters). fossil_rows: rows all of whose values are exact in a narrower
    format although the tensor's are not (in quick mode: among the rows read).
    """

    name: Annotated[str, Shown("Name")]
    dtype: Annotated[str, Shown("Stored", "dtype")]
    shape: Annotated[tuple[int, ...], Shown("Shape", "shape")]
    role: Annotated[str, Shown("Role")]
    layer: int | None
    parameters: int
    values_read: Annotated[int, Shown("Read", "count", help="Values read, all of them in exact mode.")]
    lineage: TensorLineage
    fossil_rows: Annotated[int, Shown("Fossil rows", "count", "Rows that hold only values of a narrower format, unlike the others.")]
    abs_max: Annotated[float | None, Shown("Largest", "magnitude")]
    norm: Annotated[float | None, Shown("Norm", "magnitude", help="Frobenius norm; scaled up if the tensor was read in part.")]
    abs_min_nonzero: Annotated[float | None, Shown("Smallest > 0", "magnitude")]
    abs_min: float | None
    zero: Annotated[int, Shown("Zeros", "count")]
    nan: Annotated[int, Shown("NaN", "count")]
    inf: Annotated[int, Shown("Infinite", "count")]
    fp16_overflow: int
    fp16_underflow: int
    fp16_subnormal: int
    fp16_inexact_subnormal: int
    representable: Representable


class LayerRow(Record):
    """All tensors of one layer and role together; ``layer`` is null for tensors outside the layers."""

    layer: Annotated[int | None, Shown("Layer", "count")]
    role: Annotated[str, Shown("Role")]
    tensors: Annotated[int, Shown("Tensors", "count")]
    parameters: Annotated[int, Shown("Parameters", "count")]
    abs_min_nonzero: Annotated[float | None, Shown("Smallest > 0", "magnitude")]
    abs_max: Annotated[float | None, Shown("Largest", "magnitude")]
    rms: Annotated[float | None, Shown("RMS", "magnitude", help="Root mean square of the weights.")]


class BufferRow(Record):
    """A stored tensor that is not a parameter: listed, and excluded from everything else."""

    name: Annotated[str, Shown("Name")]
    dtype: Annotated[str, Shown("Stored", "dtype")]
    shape: Annotated[tuple[int, ...], Shown("Shape", "shape")]
