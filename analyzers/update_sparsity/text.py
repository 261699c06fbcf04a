"""The report as text for a terminal."""

from collections.abc import Iterator

from analyzers.account import coverage_lines
from analyzers.formatting import NOTHING, between, magnitude, plural, shape, share, size
from analyzers.terminal import bar, columns
from analyzers.update_sparsity.report import SparsityReport

CARRIED = "The sizes of updates have no interval: a few of the blocks read carry them, and blocks not read may be as large."
# Entries shown of each list of tensors that were not compared.
_SHOWN = 5


def one(report: SparsityReport) -> list[str]:
    """The headline and what it means, roles, magnitudes, tensors that were not compared, the trajectory and notes."""
    interval = report.interval
    shown = share(report.sparsity)
    between = f" ({share(interval.low)} to {share(interval.high)} with 95% confidence)" if interval else ""
    total = report.base.bytes + sum(side.bytes for side in report.tuned)
    read = f"read {size(report.bytes_read)} of {size(total)} in {report.timing.seconds:.2g} s"
    lines = [
        f"{report.base.ref} @ {report.base.commit[:12]} -> {report.tuned[-1].ref} @ {report.tuned[-1].commit[:12]}; {read}",
        "",
        f"Sparsity {shown}{between}",
        *report.answer_lines(),
        "",
        *_counts(report),
        "",
        *_roles(report),
        "",
        *_layers(report),
        *_magnitudes(report),
    ]
    for part in (_trajectory(report), _spectral(report), _unmatched(report), report.notes):
        found = list(part)
        lines += ["", *found] if found else []
    return [*lines, *coverage_lines(report), f"report {report.id}"]


def tensors(report: SparsityReport) -> list[str]:
    """One line per pair of tensors, also where the report aggregates them."""
    rows: list[tuple[str, ...]] = [
        ("Tensor", "Dtype", "Shape", "Changed", "Sparsity", "Probe", "Lost", "Rows", "Columns", "Largest update", "|D|", "|D|/|W|")
    ]
    rows += [
        (
            row.name if row.name == row.tuned_name else f"{row.name} -> {row.tuned_name}",
            row.dtype if row.dtype == row.tuned_dtype else f"{row.dtype} -> {row.tuned_dtype}",
            shape(row.shape),
            f"{row.num_changed:,}" if row.values_read else "not read",
            *map(share, (row.sparsity, row.probe_sparsity)),
            f"{row.swallowed:,}" if row.values_read else NOTHING,
            *map(share, (row.changed_rows, row.changed_columns)),
            *map(magnitude, (row.max_update, row.update_norm, row.relative_norm)),
        )
        for row in report.full_rows()
    ]
    return columns(rows, right=tuple(range(3, 12)))


def _counts(report: SparsityReport) -> list[str]:
    seen = "" if report.values_compared == report.total_parameters else f", of which {plural(report.values_compared, 'was', 'were')} read"
    swallowed = share(report.swallowed.share) if report.swallowed.meaningful else "not meaningful between different dtypes"
    return columns(
        [
            ("Compared", f"{plural(report.total_parameters, 'parameter')}{seen}"),
            ("Changed in bf16", f"{report.num_changed:,} ({share(report.update_fraction)})"),
            ("Changed by the probe", f"{report.probe.num_changed:,}, sparsity {share(report.probe.sparsity)} (eta {report.eta:g})"),
            ("Lost to bf16 rounding", f"{report.swallowed.count:,} ({swallowed})"),
        ]
    )


def _roles(report: SparsityReport) -> list[str]:
    """Two lines per role, for changes in bf16 and by the probe: the sparsity of all its values, and its spread over the tensors.

    Of a sample a line, with an interval in place of the spread.
    """
    if report.interval is not None:
        found = {role: report.intervals.get(f"roles.{role}.sparsity") for role in report.roles}
        sampled = [("Role", "Layers", "Tensors", "Parameters", "|D|/|W|", "Sparsity", "95% interval")]
        sampled += [
            (
                role,
                f"{row.layers:,}",
                f"{row.tensors:,}",
                f"{row.parameters:,}",
                magnitude(row.relative_norm),
                share(row.sparsity),
                between(found[role]),
            )
            for role, row in report.roles.items()
        ]
        return columns(sampled, right=(1, 2, 3, 4, 5, 6))
    rows: list[tuple[str, ...]] = [("Role", "Layers", "Tensors", "Parameters", "|D|/|W|", "", "Sparsity", "Mean", "Std", "Min", "Max")]
    for role, row in report.roles.items():
        facts = (role, f"{row.layers:,}", f"{row.tensors:,}", f"{row.parameters:,}", magnitude(row.relative_norm))
        rows.append((*facts, "bf16", *map(share, (row.sparsity, row.mean, row.std, row.min, row.max))))
        by_probe = row.probe_sparsity, row.probe_mean, row.probe_std, row.probe_min, row.probe_max
        rows.append((*("" for _ in facts), "probe", *map(share, by_probe)))
    return columns(rows, right=(1, 2, 3, 4, 6, 7, 8, 9, 10))


def _layers(report: SparsityReport) -> list[str]:
    """A line per layer of a sample, with its interval."""
    if report.interval is None:
        return []
    rows = [("Layer", "Parameters", "Sparsity", "95% interval")]
    for row in report.layers:
        ends = NOTHING if row.low is None or row.high is None else f"{share(row.low)} to {share(row.high)}"
        rows.append(("none" if row.layer is None else f"{row.layer}", f"{row.parameters:,}", share(row.sparsity), ends))
    return [*columns(rows, right=(0, 1, 2, 3)), ""]


def _magnitudes(report: SparsityReport) -> list[str]:
    sizes = report.magnitudes
    rows: list[tuple[str, ...]] = [("Update", "Mean", "Std", "Min", "25%", "50%", "75%", "90%", "99%", "Max")]
    for name, each in (
        ("|v-w|", sizes.absolute),
        ("|v-w|, changed", sizes.absolute.changed_only),
        ("|v-w|/max(|w|,|v|)", sizes.relative),
        ("the same, changed", sizes.relative.changed_only),
    ):
        rows.append((name, *map(magnitude, (each.mean, each.std, each.min, each.p25, each.p50, each.p75, each.p90, each.p99, each.max))))
    changed = sizes.relative.changed_only
    tops = ", ".join(
        f"{share(each.energy)}{_within(report, f'energy.{number}.energy')} in the largest {share(each.top)}"
        for number, each in enumerate(report.energy)
    )
    mean = report.intervals.get("magnitudes.absolute.mean")
    sampled = f"Mean |v-w|: {magnitude(mean.low)} to {magnitude(mean.high)} with 95% confidence" if mean else CARRIED
    return [
        *columns(rows, right=tuple(range(1, 10))),
        f"Of the changed ones {share(changed.below_2_minus_8)} by less than 2^-8 of their size, "
        f"{share(changed.below_2_minus_7)} by less than 2^-7",
        f"Energy of the update: {tops}",
        *([] if report.interval is None else [sampled]),
        "",
        *_ulps(report),
    ]


def _ulps(report: SparsityReport) -> list[str]:
    """Histogram of the distance between the values in bf16 ULPs."""
    found = [each for each in report.ulp_histogram if each.count]
    shares = report.ulp_shares()
    rows: list[tuple[str, ...]] = [("bf16 ULPs apart", "Values read", "Share", "")]
    for each, part in zip(found, shares, strict=True):
        apart = "sign flips" if each.flipped else f"{each.low:,}" if each.low == each.high else f"{each.low:,} to {each.high:,}"
        rows.append((apart, f"{each.count:,}", share(part), bar(part / max(shares))))
    return columns(rows, right=(0, 1, 2))


def _within(report: SparsityReport, path: str) -> str:
    """The interval of an estimate, in parentheses, if there is one."""
    found = report.intervals.get(path)
    return f" ({between(found)})" if found else ""


def _trajectory(report: SparsityReport) -> Iterator[str]:
    if not report.trajectory:
        return
    rows: list[tuple[str, ...]] = [
        ("", "Checkpoint", "Sparsity", "Probe", "Lost", "|D|/|W|", "Step: sparsity", "Jaccard with last", "By chance")
    ]
    last = len(report.trajectory) - 1
    overlap = {each.first: each for each in report.overlap if each.second == last}
    for i, row in enumerate(report.trajectory):
        shared = overlap.get(i)
        rows.append(
            (
                f"{i + 1}",
                f"{row.ref} @ {row.commit[:12]}",
                *map(share, (row.sparsity, row.probe.sparsity, row.swallowed.share)),
                magnitude(row.relative_norm),
                share(row.step.sparsity),
                magnitude(shared.jaccard if shared else None),
                magnitude(shared.independent if shared else None),
            )
        )
    yield from columns(rows, right=(0, 2, 3, 4, 5, 6, 7, 8))


def _spectral(report: SparsityReport) -> Iterator[str]:
    if not report.spectral:
        return
    rows: list[tuple[str, ...]] = [
        ("Matrix", "k", "Stable rank", "Effective rank", "NSS", "Angle left", "Angle right", "Principal", "Low magnitude", "By chance")
    ]
    for each in report.spectral:
        measures = each.stable_rank, each.effective_rank, each.nss, each.largest_angle_left, each.largest_angle_right
        overlaps = each.principal_overlap, each.low_magnitude_overlap, each.mask_share
        rows.append((each.name, str(each.k), *map(magnitude, measures), *map(share, overlaps)))
    yield from columns(rows, right=tuple(range(1, 10)))


def _unmatched(report: SparsityReport) -> Iterator[str]:
    found = report.unmatched
    for what, names in (
        ("Only in the base", [tensor.name for tensor in found.missing]),
        ("Only in the tuned checkpoint", [tensor.name for tensor in found.extra]),
        ("Of another shape", [f"{each.name} {shape(each.shape)} and {shape(each.tuned_shape)}" for each in found.misshapen]),
        ("No plain floats", [tensor.name for tensor in found.integers]),
    ):
        if names:
            yield f"{what}: {', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}"
