"""The report as text for a terminal."""

from collections.abc import Iterator

from analyzers.coverage_tables import coverage_lines
from analyzers.formatting import duration, magnitude, plural, shape, share, size
from analyzers.terminal import columns
from analyzers.update_sparsity.adapters.columns import LOSERS, MODULES, OVERLAP, SURVIVAL
from analyzers.update_sparsity.columns import BY_LAYER, BY_ROLE, ENERGY, MAGNITUDES, ROLE_SPREAD, SPECTRAL, TENSORS, TRAJECTORY, ULPS
from analyzers.update_sparsity.report import SparsityReport

CARRIED = "The sizes of updates have no interval: a few of the blocks read carry them, and blocks not read may be as large."
# Names shown of each kind of tensor that was not compared.
_SHOWN = 5
_MODULES = 40  # lines of the table of an adapter's modules; files have all


def one(report: SparsityReport) -> list[str]:
    """Return the lines of a report: answer, roles, magnitudes, trajectory, spectra, tensors that were not compared, and notes."""
    interval = report.interval
    shown = share(report.sparsity)
    between = f" ({share(interval.low)} to {share(interval.high)} with 95% confidence)" if interval else ""
    total = report.base.bytes + sum(side.bytes for side in report.tuned)
    again = ", parts of it twice," if report.bytes_read > total else ""
    read = f"read {size(report.bytes_read)} of {size(total)}{again} in {duration(report.timing.seconds)}"
    lines = [
        f"{report.base.ref} @ {report.base.short_commit()} -> {report.tuned[-1].ref} @ {report.tuned[-1].short_commit()}; {read}",
        "",
        f"Sparsity {shown}{between}",
        *report.answer_lines(),
        "",
        *_counts(report),
    ]
    for part in (
        SURVIVAL.lines(report),
        LOSERS.lines(report),
        MODULES.lines(report)[:_MODULES],
        OVERLAP.lines(report),
        *([ROLE_SPREAD.lines(report)] if report.interval is None else [BY_ROLE.lines(report), BY_LAYER.lines(report)]),
        _magnitudes(report),
        ENERGY.lines(report),
        _ulps(report),
        TRAJECTORY.lines(report),
        SPECTRAL.lines(report),
        list(_unmatched(report)),
        report.notes,
    ):
        lines += ["", *part] if part else []
    return [*lines, *coverage_lines(report), f"report {report.id}"]


def tensors(report: SparsityReport) -> list[str]:
    """Return one line per pair of tensors, even if the report aggregates them."""
    return TENSORS.lines(report, report.full_rows())


def _counts(report: SparsityReport) -> list[str]:
    read = "" if report.values_compared == report.total_parameters else f", of which {plural(report.values_compared, 'was', 'were')} read"
    swallowed = share(report.swallowed.share) if report.swallowed.meaningful else "not meaningful between different dtypes"
    return columns(
        [
            ("Compared", f"{plural(report.total_parameters, 'parameter')}{read}"),
            ("Changed in bf16", f"{report.num_changed:,} ({share(report.update_fraction)})"),
            (
                "Changed by the probe",
                f"{report.probe.num_changed:,}, sparsity {share(report.probe.sparsity)} (by more than {report.eta:g} of the larger value)",
            ),
            ("Lost to bf16 rounding", f"{report.swallowed.count:,} ({swallowed})"),
        ]
    )


def _magnitudes(report: SparsityReport) -> list[str]:
    mean = report.intervals.get("magnitudes.absolute.mean")
    sampled = f"Mean |v-w|: {magnitude(mean.low)} to {magnitude(mean.high)} with 95% confidence" if mean else CARRIED
    return [*MAGNITUDES.lines(report), *([] if report.interval is None else [sampled])]


def _ulps(report: SparsityReport) -> list[str]:
    """Return the histogram of distances in bf16 ULPs, without empty bins."""
    return ULPS.lines(report, [row for row in ULPS.rows(report) if row["count"]])


def _unmatched(report: SparsityReport) -> Iterator[str]:
    unmatched = report.unmatched
    for what, names in (
        ("Only in the base", [tensor.name for tensor in unmatched.missing]),
        ("Only in the tuned checkpoint", [tensor.name for tensor in unmatched.extra]),
        ("Of another shape", [f"{each.name} {shape(each.shape)} and {shape(each.tuned_shape)}" for each in unmatched.misshapen]),
        ("No plain floats", [tensor.name for tensor in unmatched.integers]),
    ):
        if names:
            yield f"{what}: {', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}"
