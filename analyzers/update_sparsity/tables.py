"""The report as pandas tables."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from analyzers.account import coverage_tables
from analyzers.checkpoints import ROLES
from analyzers.data import Interval
from analyzers.extras import extras_explained
from analyzers.tables import frame, table
from analyzers.update_sparsity.magnitudes import Bin, Energy, RelativeSummary, UlpBin
from analyzers.update_sparsity.report import Misshapen, Overlap, Resized, RoleRow, SparsityReport, Spectrum, TensorRow, TrajectoryRow

if TYPE_CHECKING:
    import pandas


@extras_explained()
def tables(report: SparsityReport) -> "dict[str, pandas.DataFrame]":
    """``summary`` (one row), ``roles``, ``layers``, ``tensors``, ``magnitudes``, ``updates`` (their histograms), ``ulp``, ``energy``,
    ``intervals``, ``unmatched``, ``trajectory``, ``overlap``, ``spectral``, and those of `coverage_tables`.
    """
    sizes = report.magnitudes
    intervals = ({"sparsity": report.interval} if report.interval else {}) | report.intervals
    distributions = [
        {"update": name, "over": over, **each.model_dump(include=set(RelativeSummary.model_fields))}
        for name, of_all in (("absolute", sizes.absolute), ("relative", sizes.relative))
        for over, each in (("all", of_all), ("changed", of_all.changed_only))
    ]
    bins = [
        {"update": name, **each.model_dump()}
        for name, histogram in (("absolute", sizes.absolute.histogram), ("relative", sizes.relative.histogram))
        for each in histogram
    ]
    return {
        "summary": table([summary_row(report)], *summary_row(report)),
        "roles": table(({"role": role, **row.model_dump()} for role, row in report.roles.items()), "role", *RoleRow.model_fields),
        "layers": layer_table(report),
        "tensors": tensor_table(report.tensors),
        "magnitudes": table(distributions, "update", "over", *RelativeSummary.model_fields),
        "updates": table(bins, "update", *Bin.model_fields),
        "ulp": frame(report.ulp_histogram, UlpBin),
        "energy": frame(report.energy, Energy),
        "intervals": table(({"share": name, **each.model_dump()} for name, each in intervals.items()), "share", *Interval.model_fields),
        "unmatched": table(_unmatched(report), "kind", "name", "tuned_name", "shape", "tuned_shape", "dtype", "rows"),
        "trajectory": table(map(_trajectory_line, report.trajectory), *_TRAJECTORY),
        "overlap": frame(report.overlap, Overlap),
        "spectral": table((row.model_dump() | {"shape": _shape(row.shape)} for row in report.spectral), *Spectrum.model_fields),
        **coverage_tables(report.coverage),
    }


def summary_row(report: SparsityReport) -> dict[str, Any]:
    """One row per report."""
    return {
        "base": report.base.ref,
        "base_commit": report.base.commit[:12],
        "tuned": report.tuned[-1].ref,
        "tuned_commit": report.tuned[-1].commit[:12],
        "sparsity": report.sparsity,
        **_bounds(report.interval),
        **report.model_dump(include={"num_changed", "values_compared", "total_parameters", "eta"}),
        "probe_sparsity": report.probe.sparsity,
        "swallowed": report.swallowed.count,
        "mode": report.mode,
        "coverage": report.covered_share,
        "statement": report.statement,
    }


def layer_table(report: SparsityReport) -> "pandas.DataFrame":
    """One line per layer, with the sparsity of each role in a column of its own."""
    import pandas

    roles = [role for role in ROLES if any(role in row.roles for row in report.layers)]
    lines = [row.model_dump(exclude={"roles"}) | {role: row.roles.get(role) for role in roles} for row in report.layers]
    return pandas.DataFrame(lines)


def tensor_table(rows: Sequence[TensorRow]) -> "pandas.DataFrame":
    """One line per pair of tensors."""
    import pandas

    return pandas.DataFrame([row.model_dump() | {"shape": _shape(row.shape)} for row in rows], columns=list(TensorRow.model_fields))


_TRAJECTORY = (
    "ref", "commit", "sparsity", "low", "high", "num_changed", "total_parameters", "probe_sparsity", "swallowed", "relative_norm",
    "step_sparsity", "step_num_changed", "step_probe_sparsity", *ROLES,
)  # fmt: skip


def _trajectory_line(row: TrajectoryRow) -> dict[str, Any]:
    return {
        **row.model_dump(include={"ref", "commit", "sparsity", "num_changed", "total_parameters", "relative_norm"}),
        **_bounds(row.interval),
        "probe_sparsity": row.probe.sparsity,
        "swallowed": row.swallowed.count,
        "step_sparsity": row.step.sparsity,
        "step_num_changed": row.step.num_changed,
        "step_probe_sparsity": row.step.probe.sparsity,
        **row.roles,
    }


def _unmatched(report: SparsityReport) -> Iterator[dict[str, Any]]:
    found = report.unmatched
    for kind, tensors in (("missing", found.missing), ("extra", found.extra), ("integers", found.integers)):
        for tensor in tensors:
            shape = "tuned_shape" if kind == "extra" else "shape"
            yield {"kind": kind, "name": tensor.name, shape: _shape(tensor.shape), "dtype": tensor.dtype}
    for each in found.misshapen:
        yield {"kind": "transposed" if each.transposed else "misshapen", **_both(each)}
    for resized in found.resized:
        yield {"kind": "resized", "rows": resized.rows, **_both(resized)}
    for renamed in found.renamed:
        yield {"kind": "renamed", "name": renamed.name, "tuned_name": renamed.tuned_name}
    for name in found.tied:
        yield {"kind": "tied", "name": name}


def _both(pair: Misshapen | Resized) -> dict[str, str]:
    shapes = {"shape": _shape(pair.shape), "tuned_shape": _shape(pair.tuned_shape)}
    return {"name": pair.name, "tuned_name": pair.tuned_name, **shapes}


def _bounds(interval: Interval | None) -> dict[str, float | None]:
    return {"low": interval.low if interval else None, "high": interval.high if interval else None}


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
