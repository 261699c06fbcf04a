"""The progress and the report of exit feedback. Field names are the JSON contract."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from analyzers.core.columns import Column, Table
from analyzers.core.formatting import cosine, magnitude, share
from analyzers.core.report import CheckpointFacts, Report
from analyzers.core.request import Progress
from analyzers.core.rows import Rows, columns
from analyzers.exit.measurements import (
    HISTOGRAM_BINS,
    Alignment,
    Cost,
    Exact,
    Head,
    Inputs,
    LayerRow,
    LossBin,
    Method,
    OverSeeds,
    SweepRow,
)
from analyzers.exit.request import ExitRequest
from analyzers.exit.signals import CEILINGS, EXACT
from analyzers.exit.words import energy_share, give_or_take, settings, signal_name

Stage = Literal["model", "methods", "layers", "sweep", "cost"]


class ExitProgress(Progress):
    """Progress in steps of very different lengths. cosines: mean cosine of each method measured so far, at the last layer."""

    stage: Stage
    cosines: dict[str, float | None] = Field(default_factory=dict)


_SIGNAL = Column("method", "Signal", cell=lambda row: signal_name(row["method"]))


def _methods(report: "ExitReport") -> Iterator[dict[str, Any]]:
    for name, method in report.methods.items():
        yield {"method": name, **vars(method)}


def _energy(report: "ExitReport") -> Iterator[dict[str, Any]]:
    exact = report.exact
    yield {"method": EXACT, "head": exact.parallel_energy, "before_norm": exact.parallel_energy_before_norm}
    for name, method in report.methods.items():
        yield {"method": name, "head": method.parallel_energy, "before_norm": method.before_norm.parallel_energy}


def _loss_bins(report: "ExitReport") -> Iterator[dict[str, Any]]:
    for name, method in report.methods.items():
        yield from ({"method": name, **vars(row)} for row in method.loss_bins)


def _histogram(report: "ExitReport") -> Iterator[dict[str, Any]]:
    edges = [-1 + 2 * edge / HISTOGRAM_BINS for edge in range(HISTOGRAM_BINS + 1)]
    sides: list[tuple[str, str, Alignment]] = []
    for name, method in report.methods.items():
        sides += [(name, "head", method), (name, "before norm", method.before_norm)]
    for name, at, alignment in sides:
        for low, high, tokens in zip(edges, edges[1:], alignment.histogram, strict=False):
            yield {"method": name, "at": at, "low": low, "high": high, "tokens": tokens}


METHODS = Table(
    "methods",
    _methods,
    (
        _SIGNAL,
        Column("cosine_mean", "Mean cosine", cosine, "cosine.mean", help="Cosine with the exact gradient of a token, mean over tokens."),
        Column("cosine_p10", "10%", cosine, "cosine.p10", help="A tenth of the tokens have a smaller cosine."),
        Column("cosine_p50", "Median", cosine, "cosine.p50"),
        Column("cosine_p90", "90%", cosine, "cosine.p90", help="A tenth of the tokens have a larger cosine."),
        Column("total_cosine", "Total cosine", cosine, help="Cosine of the gradients of all tokens, as one vector."),
        Column("norm_ratio", "Norm ratio", magnitude, help="Norm of the signal, relative to that of the exact gradient."),
        Column(
            "before_norm_cosine",
            "Before the norm",
            cosine,
            "before_norm.cosine.mean",
            help="Mean cosine once both gradients are backpropagated through the final norm.",
        ),
        Column(
            "over_seeds_mean",
            "Over seeds",
            value="over_seeds.mean",
            cell=lambda row: give_or_take(row["over_seeds"]),
            help="Mean cosine over several draws of random codes, with its standard error.",
        ),
        Column("settings", "Settings", value=lambda row: settings(row["settings"])),
        Column("best_scale"),
        *(Column(name) for name in ("tokens", "zero", "parallel_energy", "seconds", "peak_bytes")),
        Column("before_norm_total_cosine", value="before_norm.total_cosine"),
        Column("before_norm_norm_ratio", value="before_norm.norm_ratio"),
        Column("before_norm_best_scale", value="before_norm.best_scale"),
        Column("before_norm_parallel_energy", value="before_norm.parallel_energy"),
        Column("standard_error", value="over_seeds.standard_error"),
    ),
    title="Signals",
)
ENERGY = Table(
    "energy",
    _energy,
    (
        _SIGNAL,
        Column("head", "Along the hidden state, at the head", energy_share),
        Column("before_norm", "Before the norm", energy_share, help="The same share of the gradient at the input of the final norm."),
    ),
    title="Energy along the hidden state",
)
LOSS_BINS = Table(
    "loss_bins",
    _loss_bins,
    (
        _SIGNAL,
        Column("low", "Loss from", magnitude),
        Column("high", "to", magnitude),
        *(column for column in columns(LossBin) if column.key not in ("low", "high", "exact_energy")),
        Column("exact_energy", "Exact gradient's energy", share, help="Share of the squared norm of the exact gradient in these tokens."),
    ),
    title="By loss",
)


class ExitReport(Report):
    """The alignment of each signal with the exact gradient. methods: by name, in the requested order, at the last layer.

    null: mean cosine of fresh random codes over seeds. layers: rows of the logit lens, including the last layer.
    """

    DERIVED: ClassVar[tuple[Table, ...]] = (METHODS, ENERGY, LOSS_BINS, Table("histogram", _histogram))

    analyzer: Literal["exit"] = "exit"
    schema_version: int = 1
    request: ExitRequest
    checkpoint: CheckpointFacts
    dtype: str
    head: Head
    inputs: Inputs
    exact: Exact
    methods: dict[str, Method]
    null: OverSeeds | None
    layers: Annotated[tuple[LayerRow, ...], Rows("By layer, through the logit lens")]
    sweep: Annotated[tuple[SweepRow, ...], Rows("Sweep")]
    cost: Cost

    @property
    def closest(self) -> str | None:
        """Return the signal with the largest mean cosine, a ceiling only if nothing else was measured; None without an exact gradient."""
        return closest(self.methods)


def closest(methods: dict[str, Method]) -> str | None:
    """Return the signal with the largest mean cosine, among those that read no row of the head's weight if there are any."""
    cosines = {name: method.cosine.mean for name, method in methods.items() if method.cosine is not None}
    free = {name: mean for name, mean in cosines.items() if name not in CEILINGS}
    return max(free or cosines, key=(free or cosines).__getitem__, default=None)
