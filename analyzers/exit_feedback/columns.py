"""The tables of exit feedback."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from analyzers.columns import Column, Table, formatted
from analyzers.exit_feedback.measurements import HISTOGRAM_BINS, Alignment, CostRow, Distribution, LayerRow, LossBin, SweepRow
from analyzers.exit_feedback.signals import CEILINGS, EXACT, NULL
from analyzers.formatting import NOTHING, count, fixed, magnitude, share, size

if TYPE_CHECKING:
    from analyzers.exit_feedback.report import ExitReport

_OVER = ("seeds", "mean_over_seeds", "standard_error")
_SETTINGS = ("rank", "rank_exact", "rank_tail", "k", "topk_by", "alpha", "residual", "mass_threshold", "anchors", "seed")
_LABELS = {"rank_exact": "exact", "topk_by": "top-k by", "residual": "lambda", "mass_threshold": "mass"}
RESOLVED = 1e-6
"""The smallest share of energy that fp32 resolves."""


def cosine(value: float | None) -> str:
    """Write a cosine with three decimals: ``0.860``, ``-0.018``."""
    return NOTHING if value is None else fixed(value, 3).replace("-0.000", "0.000")


def signal_name(name: str) -> str:
    """Write the name of a signal, and for a reference what it is: ``svd (ceiling)``, ``fresh_codes (null)``."""
    return f"{name} (ceiling)" if name in CEILINGS else f"{name} (null)" if name == NULL else name


def energy_share(value: float | None) -> str:
    """Write a share of energy without the digits that fp32 does not resolve: ``9.24%``, ``< 0.0001%``; 0 and 1 up to 1e-12 are exact."""
    value = None if value is None else round(value, 12)
    if value is not None and 0 < value < RESOLVED:
        return f"< {100 * RESOLVED:.4f}%"
    return f"> {100 - 100 * RESOLVED:.4f}%" if value is not None and 1 - RESOLVED < value < 1 else share(value)


def mean(distribution: Distribution | None) -> str:
    """Write the mean of a distribution of cosines."""
    return cosine(None if distribution is None else distribution.mean)


def spread(distribution: Distribution | None) -> str:
    """Write the tenth and ninetieth percentiles of a distribution of cosines."""
    return NOTHING if distribution is None else f"{cosine(distribution.p10)} to {cosine(distribution.p90)}"


def settings(given: Any) -> str:
    """Write the settings of a signal, apart from its seed: ``rank 32, k 8``; a dash if it has none."""
    hidden = ("seed", "fresh", "rank_tail")
    named = {_LABELS.get(key, key): value for key, value in given.items() if value is not None and key not in hidden}
    return ", ".join(f"{name} {value if isinstance(value, str) else f'{value:,g}'}" for name, value in named.items()) or NOTHING


def _files(*fields: str) -> tuple[str, ...]:
    """Return the names of columns in files, four for each distribution of cosines."""
    spreads = {name: [f"{name}_{part}" for part in Distribution.model_fields] for name in ("cosine", "before_norm_cosine")}
    return tuple(name for field in fields for name in spreads.get(field, [field]))


_COSINES = (
    Column("cosine_mean", "Mean cosine", cosine, "cosine.mean"),
    Column("cosine_p10", "80% of tokens", cosine, "cosine.p10", cell=lambda row: spread(Column("cosine").value_of(row)), width=146),
    Column("cosine_p50", "Median", cosine, "cosine.p50"),
    Column("cosine_p90", value="cosine.p90"),
    Column("total_cosine", "Total cosine", cosine),
    *formatted(magnitude, norm_ratio="Norm ratio", best_scale="Best scale"),
)


def _sides(report: "ExitReport") -> Iterator[tuple[str, str, Alignment]]:
    for name, method in report.methods.items():
        yield name, "head", method
        yield name, "before norm", method.before_norm


def _methods(report: "ExitReport") -> Iterator[dict[str, Any]]:
    for name, at, alignment in _sides(report):
        row = {"method": name, "at": at, **vars(alignment)}
        if at == "head":
            row |= report.methods[name].settings
            if over := report.methods[name].over_seeds:
                row |= dict(zip(_OVER, (len(over.values), over.mean, over.standard_error), strict=True))
        yield row


_SIGNAL = Column("method", "Signal", cell=lambda row: signal_name(Column("method").value_of(row)), width=170)
METHODS = Table(
    "methods",
    _methods,
    (
        _SIGNAL,
        *_COSINES,
        Column("before_norm", "Mean cosine before the norm", cosine, "before_norm.cosine.mean", only="people"),
        Column("inner_ratio", "Norm ratio before the norm", magnitude, "before_norm.norm_ratio", only="people"),
        Column("settings", "Settings", cell=lambda row: settings(row["settings"]), only="people"),
    ),
    files=("method", "at", *_files("cosine"), *(name for name in Alignment.model_fields if name not in ("cosine", "histogram")),
           *_OVER, *_SETTINGS, "seconds", "peak_bytes"),
)  # fmt: skip
# The table for people has one row for each signal, with the values before the norm in further columns.
SIGNALS = replace(METHODS, rows=lambda report: [row for row in _methods(report) if row["at"] == "head"])


def _seeds(report: "ExitReport") -> Iterator[dict[str, Any]]:
    """Yield the draws of each method with random codes, then those of the null."""
    for name, over in [*((name, method.over_seeds) for name, method in report.methods.items()), (NULL, report.null)]:
        if over is not None:
            yield {"method": name, **vars(over)}


SEEDS = Table(
    "",
    _seeds,
    (
        replace(_SIGNAL, title="Random codes"),
        Column("seeds", "Seeds", count, lambda row: len(row["values"])),
        Column("mean", "Mean cosine", cosine),
        Column("standard_error", "Standard error", lambda error: f"{error:.2g}"),
        Column("values", "Range", str, cell=lambda row: f"{cosine(min(row['values']))} to {cosine(max(row['values']))}"),
    ),
    title="Draws of random codes on this frozen model",
)


def _energy(report: "ExitReport") -> Iterator[dict[str, Any]]:
    exact = report.exact
    yield {"method": EXACT, "head": exact.parallel_energy, "before_norm": exact.parallel_energy_before_norm}
    for name, method in report.methods.items():
        yield {"method": name, "head": method.parallel_energy, "before_norm": method.before_norm.parallel_energy}


def _orthogonal(energy: float) -> str:
    return energy_share(1 - energy)


ENERGY = Table(
    "",
    _energy,
    (
        replace(_SIGNAL, title="Gradient"),
        Column("head", "Along the hidden state, at the head", energy_share),
        Column("head_rest", "Orthogonal, at the head", _orthogonal, "head"),
        Column("before_norm", "Along the hidden state, before the norm", energy_share),
        Column("before_norm_rest", "Orthogonal, before the norm", _orthogonal, "before_norm"),
    ),
)


def _loss_bins(report: "ExitReport") -> Iterator[dict[str, Any]]:
    for name, method in report.methods.items():
        yield from ({"method": name, **vars(row)} for row in method.loss_bins)


def _by_loss(report: "ExitReport") -> Iterator[dict[str, Any]]:
    for name, method in report.methods.items():
        yield {"method": name, **{f"{row.low}": mean(row.cosine) for row in method.loss_bins}}
    bins = next((method.loss_bins for method in report.methods.values()), ())
    yield {"method": "Exact gradient's energy", **{f"{row.low}": share(row.exact_energy) for row in bins}}


BY_LOSS = Table(
    "",
    _by_loss,
    lambda report: (
        replace(_SIGNAL, title="Mean cosine"),
        *(
            Column(f"{row.low}", f"Loss {row.low:.2g} to {row.high:.2g}", str)
            for row in next((method.loss_bins for method in report.methods.values()), ())
        ),
    ),
)


def _by_layer(report: "ExitReport") -> Iterator[dict[str, Any]]:
    """Yield one row for each layer, with a column for each method, the last layer first."""
    for layer in sorted({row.layer for row in report.layers}, reverse=True):
        rows = [row for row in report.layers if row.layer == layer]
        yield {**vars(rows[0]), **{row.method: row.cosine and row.cosine.mean for row in rows}}


BY_LAYER = Table(
    "",
    _by_layer,
    lambda report: (
        Column("layer", "Logit lens, layer", str),
        Column("loss", "Loss", lambda loss: fixed(loss, 3)),
        Column("exact_parallel_energy", "Exact gradient along the hidden state", share),
        *(Column(name, signal_name(name), cosine) for name in report.methods),
    ),
)


def _histogram(report: "ExitReport") -> Iterator[dict[str, Any]]:
    edges = [-1 + 2 * edge / HISTOGRAM_BINS for edge in range(HISTOGRAM_BINS + 1)]
    for name, at, alignment in _sides(report):
        for low, high, tokens in zip(edges, edges[1:], alignment.histogram, strict=False):
            yield {"method": name, "at": at, "low": low, "high": high, "tokens": tokens}


# People read the rows of settings before those of seeds; files keep the order of the report.
SWEEP = Table(
    "sweep",
    lambda report: sorted(report.sweep, key=lambda row: row.parameter == "seed"),
    (
        _SIGNAL,
        Column("parameter", "Setting"),
        Column("value", "Value", count),
        Column("seed", "Seed", str),
        *_COSINES,
        Column("kind", "Kind", value=lambda row: "ceiling" if row.ceiling else "null" if row.null else "signal", only="people"),
    ),
    files=_files(*SweepRow.model_fields),
    title="Sweep",
)


def _swept(report: "ExitReport") -> Iterator[dict[str, Any]]:
    by_setting: dict[tuple[str, str, int], list[SweepRow]] = {}
    for row in report.sweep:
        if row.parameter != "seed" and row.cosine is not None:
            by_setting.setdefault((row.method, row.parameter, row.value), []).append(row)
    for rows in by_setting.values():
        means = {
            "mean": sum(row.cosine.mean for row in rows if row.cosine) / len(rows),
            "total": sum(row.total_cosine or 0.0 for row in rows) / len(rows),
        }
        yield {**vars(rows[0]), "seeds": len(rows), **means}


# A terminal shows means over seeds.
SWEPT = Table(
    "",
    _swept,
    (
        *SWEEP.columns[:3],  # type: ignore[index]
        Column("seeds", "Seeds", count),
        *formatted(cosine, mean="Mean cosine", total="Total cosine"),
    ),
    title="Sweep",
)
COST = Table(
    "cost",
    lambda report: report.cost.rows,
    (
        replace(_SIGNAL, title="Gradient"),
        Column("form", "Form"),
        Column("seconds", "Time", lambda seconds: f"{1e3 * seconds:.3g} ms"),
        Column("time_ratio", "Time vs exact", lambda ratio: fixed(ratio, 2)),
        Column("peak_bytes", "Memory", size),
        Column("memory_ratio", "Memory vs exact", lambda ratio: fixed(ratio, 2)),
    ),
    files=CostRow.model_fields,
    title="Cost, relative to the fastest run of the exact gradient",
)


def _summary(report: "ExitReport") -> Iterator[dict[str, Any]]:
    """Yield the summary row, with a column for each method's cosine."""
    yield {
        "model": report.checkpoint.ref,
        "commit": report.checkpoint.short_commit(),
        "vocabulary": report.head.vocabulary,
        "width": report.head.width,
        "data": report.inputs.source,
        "samples": report.inputs.samples,
        "measured": report.inputs.measured,
        "dtype": report.dtype,
        "loss": report.exact.loss,
        "exact_parallel_energy": report.exact.parallel_energy,
        "exact_parallel_energy_before_norm": report.exact.parallel_energy_before_norm,
        **{f"cosine_{name}": method.cosine.mean if method.cosine else None for name, method in report.methods.items()},
        "statement": report.statement,
    }


_BEFORE_NORM = tuple(Column(f"before_norm_cosine_{part}", value=f"before_norm_cosine.{part}") for part in Distribution.model_fields)
TABLES = (
    Table("summary", _summary),
    METHODS,
    Table("loss_bins", _loss_bins, _COSINES[:-1], files=("method", *(n for n in LossBin.model_fields if n != "cosine"), *_files("cosine"))),
    Table("histogram", _histogram, files=("method", "at", "low", "high", "tokens")),
    Table("layers", lambda report: report.layers, (*_COSINES, *_BEFORE_NORM), files=_files(*LayerRow.model_fields)),
    replace(SWEEP, rows=lambda report: report.sweep),
    COST,
)
