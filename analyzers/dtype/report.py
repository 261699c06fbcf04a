"""The request and the report of dtype detection: see `rows` for its records."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, field_validator

from analyzers.checkpoints import DTYPE_BITS
from analyzers.checkpoints.stated_dtype import TORCH_NAMES
from analyzers.core.columns import Column, Table
from analyzers.core.formatting import magnitude, share
from analyzers.core.options import Option
from analyzers.core.records import Interval, Record
from analyzers.core.report import CheckpointFacts, Report
from analyzers.core.request import Reference, WeightsRequest
from analyzers.core.rows import Rows
from analyzers.core.tensor_words import dtype_name, format_name
from analyzers.core.words import write
from analyzers.dtype.rows import (
    BufferRow,
    Counts,
    Entropy,
    Evidence,
    Exponent,
    Extremes,
    Fp16Risk,
    Grid,
    LayerRow,
    Lineage,
    Movable,
    QuantizationFormat,
    QuantizationRole,
    QuantizationRow,
    Representable,
    Storage,
    TensorRow,
    Training,
    Untouched,
)

# Raised whenever the same request would give another result
ANALYSIS_VERSION = 18

TORCH = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}
BITS = {name: DTYPE_BITS[dtype] for dtype in TORCH_NAMES for name in (dtype, dtype_name(dtype))}


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


class Facts(Record):
    """What was found in one checkpoint.

    movable: in bf16; movable_fp16: of the weights stored in fp16, in fp16. quantization: only as requested, worst tensors of each format
    first; quantization_ignore: by format the modules whose error is more than 1.5 times the median, in the form of llm-compressor's
    ``ignore`` and torchao's filters. blocks: number read in quick mode, null if everything was read; grid_blocks: number of spans that were
    searched for grids; unseen: the largest share of all values, with 95% confidence, in blocks of a kind of which none was read. grids:
    scaled grids that explain values, proven ones first.
    tensors: at most `limits.REPORT_TENSORS`, in the order of the files; layers: of all tensors.
    """

    mode: Literal["quick", "exact"]
    bytes_read: int
    values_read: int
    requests: int
    blocks: int | None = None
    grid_blocks: int = 0
    unseen: float | None = None
    selected_tensors: int
    selected_parameters: int
    storage: Annotated[tuple[Storage, ...], Rows("Storage")]
    config_dtype: str | None
    quantization_config: dict[str, str] | None
    extremes: Extremes
    counts: Counts
    representable: Representable
    intervals: dict[str, Interval]
    lineage: Lineage
    training: Training
    fp16_risk: Fp16Risk
    exponents: Annotated[tuple[Exponent, ...], Rows()]
    movable: Movable | None = None
    movable_fp16: Movable | None = None
    untouched: Annotated[tuple[Untouched, ...], Rows("Constant, or mostly at an initial value")] = ()
    entropy: Entropy | None = None
    grids: Annotated[tuple[Grid, ...], Rows("Grids")] = ()
    quantization: Annotated[tuple[QuantizationRow, ...], Rows("Quantized tensors")] = ()
    quantization_roles: Annotated[tuple[QuantizationRole, ...], Rows("Quantization by role")] = ()
    quantization_ignore: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    layers: Annotated[tuple[LayerRow, ...], Rows("Layers")]
    tensors: Annotated[tuple[TensorRow, ...], Rows("Tensors")]
    buffers: Annotated[tuple[BufferRow, ...], Rows("Buffers")]

    @property
    def ancestor(self) -> str:
        """The last format that the stored values have provably passed through; empty if none is proven."""
        return self.lineage.passed_through[-1] if self.lineage.passed_through else ""

    @property
    def narrower(self) -> str:
        """The format that provably holds every value (read) of a wider file, "bf16" or "fp16"; else empty."""
        lineage, ancestor = self.lineage, self.ancestor
        if ancestor not in TORCH or BITS.get(lineage.stored, 0) <= BITS[ancestor]:
            return ""
        return ancestor if getattr(self.representable, ancestor) == 1 else ""

    @property
    def refutation(self) -> Evidence:
        """The test that refutes a narrower format with most values, of a checkpoint that is native."""
        own = [each for each in self.lineage.evidence if each.stored == self.lineage.stored and each.exceptions]
        return max(own, key=lambda each: each.tested)

    @property
    def narrower_saves(self) -> int:
        """Bytes that `narrower` saves on tensors of the dtype of most parameters; 0 without one."""
        stored, name = self.lineage.stored, self.narrower
        nbytes = sum(row.bytes for row in self.storage if row.dtype == stored)
        return nbytes * (BITS[stored] - BITS[name]) // BITS[stored] if name else 0


def _shares(report: Facts) -> Iterator[dict[str, Any]]:
    """Yield the share of the values that each format holds exactly, then the other shares that a sample estimates."""
    known = {f"representable.{name}": value for name, value in report.representable.model_dump().items()}
    for name in dict.fromkeys((*known, *report.intervals)):
        interval = report.intervals.get(name)
        yield {"share": name, "estimate": interval.estimate if interval else known[name], "interval": interval}


def _named_share(row: dict[str, Any]) -> str:
    name = row["share"].removeprefix("representable.")
    others = {
        "zero": "zero",
        "fp16_underflow": "zero in fp16 only",
        "fp16_subnormal": "subnormal in fp16",
        "fp16_inexact_subnormal": "subnormal in fp16 and rounded there",
    }
    return others.get(name) or f"exact in {format_name(name)}"


def _between(row: dict[str, Any]) -> str:
    return write(row["interval"], "between")


def _movable(report: Facts) -> Iterator[dict[str, Any]]:
    """Yield a row per format and role with the share of the weights that each step leaves unchanged."""
    for each in filter(None, (report.movable, report.movable_fp16)):
        for role, shares in {"all": each.frozen, **each.roles}.items():
            yield {"format": each.format, "role": role, **dict(zip(map(step_name, each.steps), shares, strict=True))}


def _ignored(report: Facts) -> Iterator[dict[str, str]]:
    yield from ({"format": name, "module": module} for name, modules in report.quantization_ignore.items() for module in modules)


def step_name(step: float) -> str:
    """Format a step like ``1e-6``."""
    mantissa, exponent = f"{step:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _steps(made: Facts | None) -> Sequence[Column]:
    """Return the columns of `_movable`: people see every second step."""
    steps = made.movable.steps if made is not None and made.movable is not None else ()
    named = [Column(step_name(step), step_name(step) if number % 2 == 0 else "", share) for number, step in enumerate(steps)]
    return (Column("format", "Format"), Column("role", "Role"), *named)


class DtypeReport(Facts, Report):
    """Result of dtype detection for one checkpoint."""

    DERIVED: ClassVar[tuple[Table, ...]] = (
        Table(
            "shares",
            _shares,
            (
                Column("share", "Values", cell=_named_share),
                Column("estimate", "Share", share),
                Column("low", value="interval.low"),
                Column("high", value="interval.high"),
                Column("interval", "95% interval", cell=_between, only="people"),
            ),
            title="Shares of the values",
        ),
        Table("movable", _movable, _steps, title="Share of the weights that a step does not move"),
        Table(
            "quantization_ignore",
            _ignored,
            (Column("format", "Rounded to"), Column("module", "Module")),
            title="Modules to leave unquantized: more than 1.5 times the median error",
        ),
    )

    analyzer: Literal["dtype"] = "dtype"
    schema_version: int = 1
    request: DtypeRequest
    checkpoint: CheckpointFacts

    def beside(self) -> dict[str, str]:
        """Return the cells of the tiles, and the smallest and the largest norm of a tensor."""
        return super().beside() | {"Norms": f"{magnitude(self.extremes.norm_min)} to {magnitude(self.extremes.norm_max)}"}
