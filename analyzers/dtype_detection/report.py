"""The request and the report of dtype detection. Field names are the JSON contract; fields may be added, never renamed.

Shares are numbers in [0, 1]; counts are of elements; a missing number is null (it is undefined). In quick
mode counts and extremes describe the values read, shares are estimates with a 95% interval.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import PrivateAttr

from analyzers.base import CheckpointFacts, Data, Interval, Report, WeightsRequest

if TYPE_CHECKING:
    import pandas

Verdict = Literal[
    "native",
    "upcast-from-bf16",
    "upcast-from-fp16",
    "upcast-from-fp32",
    "downcast-from-bf16",
    "fp16-ancestor",
    "fp8-ancestor",
    "fp4-ancestor",
    "mixed",
    "undecided",
]
RiskLevel = Literal["fits", "caution", "overflow", "unknown"]
Basis = Literal["label", "lineage", "classifier", "rule", "none"]  # "rule": in reports of analysis version 1 only

# Raised whenever the same request would give another result.
ANALYSIS_VERSION = 3


class DtypeRequest(WeightsRequest):
    """Which checkpoint to inspect, and how.

    model: a reference (``org/name``, ``name``, either with ``@revision``; ``sample:NAME``; a local path where allowed).
    The rest is as in `base.WeightsRequest`.
    """

    model: str


class Storage(Data):
    """How much is stored in one dtype: its safetensors name, MXFP4 or NVFP4, or a quantized type of GGUF.

    parameters: scales, which count among tensors and bytes, are none; note: what is not plain floats, and is therefore something else.
    """

    dtype: str
    tensors: int
    parameters: int
    bytes: int
    note: str = ""


class Extremes(Data):
    """Over all selected parameters, finite values only.

    abs_min counts zeros; norms are Frobenius norms per tensor, zero norms excluded. ``exact`` is False in quick
    mode, where magnitudes are those of the sample and the norm of a partly read tensor is extrapolated.
    """

    abs_min: float | None
    abs_min_nonzero: float | None
    abs_max: float | None
    norm_min: float | None
    norm_max: float | None
    exact: bool


class Counts(Data):
    """Among the values read.

    fp16_overflow: finite, |x| >= 65520; fp16_underflow: 0 < |x| <= 2^-25; fp16_subnormal: between that and 2^-14.
    """

    zero: int
    nan: int
    inf: int
    fp16_overflow: int
    fp16_underflow: int
    fp16_subnormal: int


class Representable(Data):
    """Share of the finite nonzero values that the format holds exactly."""

    fp16: float | None
    bf16: float | None
    tf32: float | None
    fp8_e4m3: float | None
    fp8_e5m2: float | None


class Evidence(Data):
    """One test on the stored bits.

    test: its name; format: the ancestor it looks for; stored: the dtype of the tested values, empty in reports of analysis
    version 2 and before; unit: what is counted ("values", "runs" of 128 neighbours, or "blocks"
    of 16). tested: how many were; distinct: how many different bit patterns among those that pass (repeats prove nothing), or
    how many runs or blocks that only a grid of the ancestor explains;
    exceptions: how many fail (one refutes); share: of those tested that pass; chance: share passing if there was no
    such ancestor; log10_chance: log10(chance^distinct), the odds that all pass by accident.
    """

    test: str
    question: str
    format: str
    stored: str = ""
    unit: Literal["values", "runs", "blocks"]
    tested: int
    distinct: int
    exceptions: int
    share: float | None
    chance: float
    log10_chance: float
    proven: bool
    conclusion: str


class Part(Data):
    """The tensors and parameters with one lineage verdict."""

    verdict: Verdict
    tensors: int
    parameters: int


class Lineage(Data):
    """Which formats the stored values have provably passed through.

    stored: the dtype of most parameters; passed_through: proven ancestors, the stored format not among them;
    parts: the tensors by their own verdict; fossil_rows: rows exact in a narrower format in tensors that are not;
    statement: the verdict as a sentence, with its confidence.
    """

    stored: str
    passed_through: tuple[str, ...]
    verdict: Verdict
    evidence: tuple[Evidence, ...]
    parts: tuple[Part, ...]
    fossil_rows: int
    statement: str


class Training(Data):
    """In which precision the model was trained: an inference, or a label.

    verdict: a label's words, "fp16", "bf16", "fp32", "fp8", or "undecided", also where the classifier abstains and gives its
    probabilities all the same. ``probabilities`` sum to 1, or are empty.
    """

    verdict: str
    probabilities: dict[str, float]
    basis: Basis
    explanation: str
    source: str | None


class Fp16Risk(Data):
    """Whether the weights survive a cast to fp16. Says nothing about activations."""

    level: RiskLevel
    reasons: tuple[str, ...]


class Exponent(Data):
    """``count`` of the values read have a magnitude in [2^exponent, 2^(exponent+1))."""

    exponent: int
    count: int


class TensorLineage(Data):
    """One tensor's own lineage."""

    verdict: Verdict
    passed_through: tuple[str, ...]
    evidence: tuple[Evidence, ...]


class TensorRow(Data):
    """One tensor; or, in a checkpoint of very many, all tensors of one layer and role (``tensors`` of them, shape empty).

    norm: scaled up when the tensor was read in part (values_read < parameters). fossil_rows: rows all of whose values
    are exact in a narrower format while the tensor's are not (in quick mode: among the rows read).
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


class LayerRow(Data):
    """All tensors of one layer and role together; ``layer`` is null for tensors outside the layers."""

    layer: int | None
    role: str
    tensors: int
    parameters: int
    abs_min_nonzero: float | None
    abs_max: float | None
    rms: float | None


class BufferRow(Data):
    """A stored tensor that is not a parameter: listed, and excluded from everything else."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class DtypeReport(Report):
    """Everything dtype detection says about one checkpoint."""

    analyzer: Literal["dtype"] = "dtype"
    schema_version: int = 1
    request: DtypeRequest
    checkpoint: CheckpointFacts
    mode: Literal["quick", "exact"]
    bytes_read: int
    values_read: int
    requests: int
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
    layers: tuple[LayerRow, ...]
    tensors: tuple[TensorRow, ...]
    tensors_aggregated: bool
    buffers: tuple[BufferRow, ...]
    notes: tuple[str, ...]

    _full_rows: Callable[[], Sequence[TensorRow]] | None = PrivateAttr(default=None)

    def keep_full_rows(self, rows: Callable[[], Sequence[TensorRow]]) -> None:
        """Remember how to make a row for every tensor, where ``tensors`` is aggregated. Not part of the JSON."""
        self._full_rows = rows

    def full_rows(self) -> Sequence[TensorRow]:
        """A row for every tensor, as long as this object is the one the analyzer made; else ``tensors``."""
        return self._full_rows() if self._full_rows else self.tensors

    def subject(self) -> dict[str, str]:
        """The checkpoint."""
        return {"model": self.checkpoint.ref}

    def full_tables(self) -> "dict[str, pandas.DataFrame]":
        """`tables`, with a row for every tensor (`full_rows`)."""
        from analyzers.dtype_detection.tables import tensor_table

        return self.tables() | {"tensors": tensor_table(self.full_rows())}

    def tables(self) -> "dict[str, pandas.DataFrame]":
        """``summary`` (one row), ``evidence``, ``storage``, ``layers``, ``tensors``, ``exponents``, ``buffers``."""
        from analyzers.dtype_detection.tables import tables

        return tables(self)
