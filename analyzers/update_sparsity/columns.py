"""The tables of update sparsity."""

from collections.abc import Callable, Iterator
from typing import Any

from analyzers.checkpoints import ROLES
from analyzers.columns import TENSOR_NAME, Column, Table, formatted, shape_column
from analyzers.coverage import COVERAGE
from analyzers.formatting import NOTHING, abbreviated, between, count, magnitude, share
from analyzers.records import Interval
from analyzers.terminal import bar
from analyzers.update_sparsity.adapters import columns as adapters
from analyzers.update_sparsity.magnitudes import Bin, Energy, RelativeSummary, UlpBin
from analyzers.update_sparsity.report import Overlap, RoleRow, SparsityReport, Spectrum, TensorRow

_NORM = Column("relative_norm", "|update| / |base|", share)
_PROBE = Column("probe_sparsity", "By the probe", share)
_FACTS = formatted(count, layers="Layers", tensors="Tensors", parameters="Parameters")


def _summary(report: SparsityReport) -> Iterator[dict[str, Any]]:
    yield {
        "base": report.base.ref,
        "base_commit": report.base.short_commit(),
        "tuned": report.tuned[-1].ref,
        "tuned_commit": report.tuned[-1].short_commit(),
        "sparsity": report.sparsity,
        "low": report.interval.low if report.interval else None,
        "high": report.interval.high if report.interval else None,
        **report.model_dump(include={"num_changed", "values_compared", "total_parameters", "eta"}),
        "probe_sparsity": report.probe.sparsity,
        "swallowed": report.swallowed.count,
        "mode": report.mode,
        "coverage": report.covered_share,
        "statement": report.statement,
    }


def _roles(report: SparsityReport) -> Iterator[dict[str, Any]]:
    for role, row in report.roles.items():
        yield {"role": role, "interval": report.intervals.get(f"roles.{role}.sparsity"), **vars(row)}


BY_ROLE = Table(
    "roles",
    _roles,
    (
        Column("role", "Role"),
        Column("sparsity", "Sparsity", share),
        Column("interval", "95% interval", between, only="people"),
        _PROBE,
        _NORM,
        *_FACTS,
    ),
    files=("role", *RoleRow.model_fields),
)


def _spread(report: SparsityReport) -> Iterator[dict[str, Any]]:
    for role, row in report.roles.items():
        yield {"role": role, "measured": "bf16", **vars(row)}
        by_probe = {name: getattr(row, f"probe_{name}") for name in ("sparsity", "mean", "std", "min", "max")}
        yield {"role": role, "measured": "probe", **vars(row), **by_probe}


# Shown to people if every value was read: each role has a row for changes in bf16 and a row for changes by the probe.
ROLE_SPREAD = Table(
    "",
    _spread,
    (
        Column("role", "Role", cell=lambda row: f"{row['role']}, {row['measured']}"),
        *formatted(share, sparsity="Sparsity", mean="Mean of tensors", std="Std", min="Least sparse tensor", max="Most sparse"),
        _NORM,
        *_FACTS,
    ),
)
BY_LAYER = Table(
    "layers",
    lambda report: report.layers,
    lambda report: (
        Column("layer", "Layer", str, cell=lambda row: "not in a layer" if row.layer is None else f"{row.layer}"),
        *_FACTS[1:],
        Column("num_changed", "Changed", count),
        Column("sparsity", "Sparsity", share),
        Column("low", "95% interval", share, cell=between),
        Column("high"),
        _PROBE,
        _NORM,
        *(Column(role, value=f"roles.{role}") for role in ROLES if any(role in row.roles for row in report.layers)),
    ),
)


def _read(key: str, title: str, text: Callable[[Any], str], unread: str = NOTHING) -> Column:
    """Return a column that shows ``unread`` for tensors of which no value was read."""
    return Column(key, title, text, cell=lambda row: text(getattr(row, key)) if row.values_read else unread)


def _dtypes(row: TensorRow) -> str:
    return row.dtype if row.dtype == row.tuned_dtype else f"{row.dtype} → {row.tuned_dtype}"


def _tuned_name(row: TensorRow) -> str:
    return "the same" if row.tuned_name == row.name else row.tuned_name


TENSORS = Table(
    "tensors",
    lambda report: report.tensors,
    (
        TENSOR_NAME,
        Column("role", "Role"),
        _read("sparsity", "Sparsity", share, "not read"),
        _PROBE,
        *formatted(share, changed_rows="Rows changed", changed_columns="Columns changed"),
        _NORM,
        _read("num_changed", "Changed", count),
        *formatted(magnitude, max_update="Largest update", update_norm="|update|"),
        _read("swallowed", "Lost to rounding", count),
        Column("dtype", "Dtypes", cell=_dtypes),
        shape_column("shape", "Shape"),
        Column("tuned_name", "In the tuned checkpoint", width=318, cell=_tuned_name),
    ),
    files=TensorRow.model_fields,
    title="Tensors",
)


def _magnitudes(report: SparsityReport) -> Iterator[dict[str, Any]]:
    for update, of_all in (("absolute", report.magnitudes.absolute), ("relative", report.magnitudes.relative)):
        for over, sizes in (("all", of_all), ("changed", of_all.changed_only)):
            yield {"update": update, "over": over, **vars(sizes)}


def _size(key: str, title: str) -> Column:
    """Return a column that formats absolute sizes as numbers and relative sizes as shares."""
    return Column(key, title, share, cell=lambda row: (share if row["update"] == "relative" else magnitude)(row[key]))


MAGNITUDES = Table(
    "magnitudes",
    _magnitudes,
    (
        Column("update", "Size of the update", cell=lambda row: f"{row['update'].capitalize()}, {row['over']}"),
        Column("count", "Values", count),
        *map(_size, ("mean", "std", "min", "p25", "p50"), ("Mean", "Std", "Smallest", "25%", "Median")),
        *map(_size, ("p75", "p90", "p99", "max"), ("75%", "90%", "99%", "Largest")),
        *formatted(share, below_2_minus_8="Below 2^-8", below_2_minus_7="Below 2^-7"),
    ),
    files=("update", "over", *RelativeSummary.model_fields),
)


def _updates(report: SparsityReport) -> Iterator[dict[str, Any]]:
    for update, sizes in (("absolute", report.magnitudes.absolute), ("relative", report.magnitudes.relative)):
        yield from ({"update": update, **vars(each)} for each in sizes.histogram)


def _ulps(report: SparsityReport) -> Iterator[dict[str, Any]]:
    shares = report.ulp_shares()
    parts = iter(shares)
    for each in report.ulp_histogram:
        part = next(parts) if each.count else 0.0
        yield {**vars(each), "flipped": each.flipped, "part": part, "bar": bar(part / max(shares)) if each.count else ""}


def _apart(row: Any) -> str:
    return "sign flips" if row["flipped"] else count(row["low"]) if row["low"] == row["high"] else f"{row['low']:,} to {row['high']:,}"


# Shown in a terminal; the page has a figure instead.
ULPS = Table(
    "ulp",
    _ulps,
    (
        Column("low", "bf16 ULPs apart", count, cell=_apart),
        Column("count", "Values read", count),
        Column("part", "Share", share, only="people"),
        Column("bar", "Compared with the most frequent", only="people"),
    ),
    files=UlpBin.model_fields,
)


def _energy(report: SparsityReport) -> Iterator[dict[str, Any]]:
    for number, each in enumerate(report.energy):
        yield {**vars(each), "interval": report.intervals.get(f"energy.{number}.energy")}


ENERGY = Table(
    "energy",
    _energy,
    (
        Column("top", "Updates of all values compared", cell=lambda row: f"Largest {share(row['top'])}"),
        Column("energy", "Share of squared update norm", share),
        Column("interval", "95% interval", between, only="people"),
    ),
    files=Energy.model_fields,
)


def _unmatched(report: SparsityReport) -> Iterator[dict[str, Any]]:
    unmatched = report.unmatched
    for kind in ("missing", "extra", "integers"):
        shape = "tuned_shape" if kind == "extra" else "shape"
        yield from ({"kind": kind, "name": each.name, shape: each.shape, "dtype": each.dtype} for each in getattr(unmatched, kind))
    for each in unmatched.misshapen:
        yield {"kind": "transposed", "note": "transposed", **vars(each)} if each.transposed else {"kind": "misshapen", **vars(each)}
    yield from ({"kind": "resized", **vars(each)} for each in unmatched.resized)
    yield from ({"kind": "renamed", **vars(each)} for each in unmatched.renamed)
    yield from ({"kind": "tied", "name": name} for name in unmatched.tied)


UNMATCHED = Table(
    "unmatched",
    _unmatched,
    (
        Column("name", "Tensor"),
        Column("tuned_name", "In the tuned checkpoint"),
        shape_column("shape", "Shape"),
        shape_column("tuned_shape", "Tuned shape"),
        Column("dtype", "Dtype"),
        Column("rows", "Rows compared", count),
        Column("note", "Note", only="people"),
    ),
    files=("kind", "name", "tuned_name", "shape", "tuned_shape", "dtype", "rows"),
)


def _trajectory(report: SparsityReport) -> Iterator[dict[str, Any]]:
    last = len(report.trajectory) - 1
    overlap = {each.first: each for each in report.overlap if each.second == last}
    for number, (name, row) in enumerate(zip(report.request.tuned, report.trajectory, strict=False)):
        pinned = "" if row.ref.startswith("sample:") else f" @ {abbreviated(row.commit, 7)}"
        yield {"checkpoint": f"{number + 1}. {name}{pinned}", "overlap": overlap.get(number), **vars(row)}


TRAJECTORY = Table(
    "trajectory",
    _trajectory,
    (
        Column("checkpoint", "Checkpoint", only="people"),
        Column("sparsity", "Sparsity, from the base", share),
        Column("step_sparsity", "From the one before", share, "step.sparsity"),
        Column("probe_sparsity", "By the probe", share, "probe.sparsity"),
        Column(
            "lost",
            "Lost to rounding",
            share,
            lambda row: row["swallowed"].share if row["swallowed"].meaningful else None,
            only="people",
        ),
        _NORM,
        Column("jaccard", "Jaccard with last", magnitude, "overlap.jaccard", only="people"),
        Column("independent", "By chance", magnitude, "overlap.independent", only="people"),
        Column("low", value="interval.low"),
        Column("high", value="interval.high"),
        Column("swallowed", value="swallowed.count"),
        Column("step_num_changed", value="step.num_changed"),
        Column("step_probe_sparsity", value="step.probe.sparsity"),
        *(Column(role, value=f"roles.{role}") for role in ROLES),
    ),
    files=(
        "ref", "commit", "sparsity", "low", "high", "num_changed", "total_parameters", "probe_sparsity", "swallowed", "relative_norm",
        "step_sparsity", "step_num_changed", "step_probe_sparsity", *ROLES,
    ),
)  # fmt: skip


def _degrees(angle: float) -> str:
    return f"{angle:.3g}°"


SPECTRAL = Table(
    "spectral",
    lambda report: report.spectral,
    (
        Column("name", "Matrix", width=318),
        shape_column("shape", "Shape"),
        Column("k", "k", count),
        *formatted(magnitude, stable_rank="Stable rank", effective_rank="Effective rank", nss="Spectral drift"),
        *formatted(_degrees, largest_angle_left="Angle, left", mean_angle_left="Mean, left"),
        *formatted(_degrees, largest_angle_right="Angle, right", mean_angle_right="Mean, right"),
        *formatted(share, principal_overlap="In principal mask", low_magnitude_overlap="In low-magnitude mask", mask_share="By chance"),
    ),
    files=Spectrum.model_fields,
    title="Singular values and subspaces",
)


def _intervals(report: SparsityReport) -> Iterator[dict[str, Any]]:
    intervals = ({"sparsity": report.interval} if report.interval else {}) | report.intervals
    yield from ({"share": name, **vars(interval)} for name, interval in intervals.items())


TABLES = (
    Table("summary", _summary),
    BY_ROLE,
    BY_LAYER,
    TENSORS,
    MAGNITUDES,
    Table("updates", _updates, files=("update", *Bin.model_fields)),
    ULPS,
    ENERGY,
    Table("intervals", _intervals, files=("share", *Interval.model_fields)),
    UNMATCHED,
    TRAJECTORY,
    Table("overlap", lambda report: report.overlap, files=Overlap.model_fields),
    SPECTRAL,
    *adapters.TABLES,
    *COVERAGE,
)
