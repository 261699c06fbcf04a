"""The tables of update sparsity: roles, sizes, trajectory, published fine-tunes, matching, singular values, tensors."""

from collections.abc import Callable, Sequence

from analyzers.update_sparsity.magnitudes import RelativeSummary, Summary
from analyzers.update_sparsity.published import SOURCE, published
from analyzers.update_sparsity.report import NamedTensor, SparsityReport, TensorRow
from components.results.data_table import Column, DataTable, optional
from components.sparsity.text import read_whole, short, tuned_names
from components.text import numbers
from components.text.markup import table
from components.text.names import commit, tensor_name
from components.text.plain_text import html, shown

_ESTIMATED = "Values, smallest and largest of the sample; the others estimated for all"
_PERCENTILES = ("p25", "p50", "p75", "p90", "p99", "max")


def roles(report: SparsityReport) -> str:
    """Two rows per role: its sparsity and the spread over its tensors, in bf16 and by the probe; of a sample a row with the interval."""
    if report.interval is not None:
        return _sampled_roles(report) + _sampled_layers(report)
    rows = []
    for role, row in report.roles.items():
        facts = numbers.share(row.relative_norm), numbers.count(row.tensors), numbers.parameters(row.parameters)
        in_bf16 = row.sparsity, row.mean, row.std, row.min, row.max
        by_probe = row.probe_sparsity, row.probe_mean, row.probe_std, row.probe_min, row.probe_max
        for measure, shares in (("bf16", in_bf16), ("probe", by_probe)):
            rows.append((shown(role), measure, *map(numbers.share, shares), *facts))
    titles = (
        "Role", "Measured", "Sparsity", "Mean of tensors", "Std", "Least sparse tensor", "Most sparse", "|update| / |base|", "Tensors",
        "Parameters",
    )  # fmt: skip
    return table(titles, rows, frozenset(range(2, 10)), stacked=True)


def _sampled_roles(report: SparsityReport) -> str:
    rows = [
        (
            shown(role),
            numbers.share(row.sparsity),
            numbers.between(report.intervals.get(f"roles.{role}.sparsity")),
            numbers.share(row.probe_sparsity),
            numbers.share(row.relative_norm),
            numbers.count(row.tensors),
            numbers.parameters(row.parameters),
        )
        for role, row in report.roles.items()
    ]
    titles = ("Role", "Sparsity", "95% interval", "By the probe", "|update| / |base|", "Tensors", "Parameters")
    return table(titles, rows, frozenset(range(1, 7)), stacked=True)


def _sampled_layers(report: SparsityReport) -> str:
    rows = [
        (
            "not in a layer" if row.layer is None else f"{row.layer}",
            numbers.share(row.sparsity),
            numbers.NOTHING if row.low is None or row.high is None else f"{numbers.share(row.low)} to {numbers.share(row.high)}",
            numbers.share(row.probe_sparsity),
            numbers.parameters(row.parameters),
        )
        for row in report.layers
    ]
    return table(("Layer", "Sparsity", "95% interval", "By the probe", "Parameters"), rows, frozenset(range(1, 5)), stacked=True)


def sizes(report: SparsityReport) -> str:
    """Sizes of the updates, over all values and over the changed ones; and the share of the update held by the largest."""
    absolute, relative = report.magnitudes.absolute, report.magnitudes.relative
    rows = [
        _distribution("Absolute, all", absolute, numbers.magnitude),
        _distribution("Absolute, changed", absolute.changed_only, numbers.magnitude),
        _distribution("Relative, all", relative, numbers.share),
        _distribution("Relative, changed", relative.changed_only, numbers.share),
    ]
    titles = ("Size of the update", "Values", "Mean", "Std", "Smallest", "25%", "Median", "75%", "90%", "99%", "Largest")
    spread = table(titles, rows, frozenset(range(1, 11)), "" if read_whole(report) else _ESTIMATED, stacked=True)
    return f'{spread}<div class="m-pair"><div>{_below(report)}</div><div>{_energy(report)}</div></div>'


def trajectory(report: SparsityReport) -> str:
    """A row per tuned checkpoint, numbered as in the figures; empty if there is only one."""
    rows = [
        (
            f"{number}. {name}" + (f" @ {commit(facts)}" if commit(facts) else ""),
            numbers.share(row.sparsity),
            numbers.share(row.step.sparsity),
            numbers.share(row.probe.sparsity),
            numbers.share(row.swallowed.share) if row.swallowed.meaningful else numbers.NOTHING,
            numbers.share(row.relative_norm),
        )
        for number, (name, facts, row) in enumerate(zip(tuned_names(report), report.tuned, report.trajectory, strict=False), 1)
    ]
    titles = (
        "Checkpoint",
        "Sparsity, from the base",
        "From the one before",
        "By the probe",
        "Lost to rounding",
        "|update| / |base|",
    )
    return table(titles, rows, frozenset(range(1, 6)), stacked=True) if rows else ""


def among_published(report: SparsityReport) -> str:
    """This pair among the published fine-tunes, sparsest last, with their sources."""
    rows = [(row.sparsity, row.finetuned, row.base, row.algorithm, row.data) for row in published()]
    here = (report.sparsity or 0.0, short(report.request.tuned[-1]), short(report.request.base), "this pair", "")
    rows = sorted([*rows, *([here] if report.sparsity is not None else [])], key=lambda row: row[0])
    marked = frozenset(index for index, row in enumerate(rows) if row is here)
    texts = [(tuned, numbers.share(sparsity), base, algorithm, data) for sparsity, tuned, base, algorithm, data in rows]
    listed = table(("Tuned", "Sparsity in bf16", "From", "Algorithm", "Data"), texts, frozenset({1}), marked=marked, stacked=True)
    link = f'<a href="{SOURCE}" rel="noopener noreferrer" target="_blank">Zhu et al., The Path Not Taken, arXiv 2511.08567, Table 1</a>'
    return f'{listed}<p class="m-say m-below">Source of the others: {link}. OURS: the authors\' own runs.</p>'


def _distribution(name: str, found: Summary, show: Callable[[float | None], str]) -> tuple[str, ...]:
    return (name, numbers.count(found.count), *(show(getattr(found, key)) for key in ("mean", "std", "min", *_PERCENTILES)))


def _below(report: SparsityReport) -> str:
    relative = report.magnitudes.relative

    def row(name: str, found: RelativeSummary) -> tuple[str, str, str]:
        return name, numbers.share(found.below_2_minus_8), numbers.share(found.below_2_minus_7)

    titles = ("Relative updates", f"Below {numbers.power(-8)}", f"Below {numbers.power(-7)}")
    return table(titles, [row("All", relative), row("Changed", relative.changed_only)], frozenset({1, 2}))


def _energy(report: SparsityReport) -> str:
    rows = []
    for number, each in enumerate(report.energy):
        found = report.intervals.get(f"energy.{number}.energy")
        rows.append((f"Largest {numbers.share(each.top)}", numbers.share(each.energy) + (f" ({numbers.between(found)})" if found else "")))
    return table(("Updates of all values compared", "Share of squared update norm"), rows, frozenset({1}))


# Maximum rows of a table on the page; the downloads are complete.
_LISTED = 200
_ABOUT = {
    "missing": "Only in the base, not compared",
    "extra": "Only in the tuned checkpoint, not compared",
    "misshapen": "Of another shape, not compared",
    "integers": "No plain floats, not compared",
    "resized": "Of another number of rows: the rows both have were compared",
    "renamed": "Compared under different names",
    "tied": "The same as the input embedding, counted once",
}


def matching(report: SparsityReport) -> str:
    """One table per kind, after a sentence with the totals."""
    found = report.unmatched
    tables: dict[str, tuple[tuple[str, ...], Sequence[tuple[str, ...]]]] = {
        "missing": _named(found.missing),
        "extra": _named(found.extra),
        "misshapen": (
            ("Tensor", "In the tuned checkpoint", "Shape", "Tuned shape", ""),
            [(e.name, e.tuned_name, _shape(e.shape), _shape(e.tuned_shape), "transposed" if e.transposed else "") for e in found.misshapen],
        ),
        "integers": _named(found.integers),
        "resized": (
            ("Tensor", "In the tuned checkpoint", "Shape", "Tuned shape", "Rows compared"),
            [(e.name, e.tuned_name, _shape(e.shape), _shape(e.tuned_shape), numbers.count(e.rows)) for e in found.resized],
        ),
        "renamed": (("Tensor", "In the tuned checkpoint"), [(e.name, e.tuned_name) for e in found.renamed]),
        "tied": (("Tensor",), [(name,) for name in found.tied]),
    }
    parts = []
    for kind, (titles, rows) in tables.items():
        if rows:
            count = found.counts.get(kind, len(rows))
            more = f", the first {_LISTED} listed here" if count > _LISTED else ""
            parts.append(table(titles, rows[:_LISTED], caption=f"{_ABOUT[kind]} ({numbers.plural(count, 'tensor')}{more})"))
    return f'<p class="m-say">{html(_sentence(report), 1_000)}</p>{"".join(parts)}'


def _sentence(report: SparsityReport) -> str:
    found = report.unmatched
    said = f"{numbers.count(report.total_parameters)} parameters have a counterpart and were compared."
    for count, side in ((found.missing_parameters, "base"), (found.extra_parameters, "tuned checkpoint")):
        if count:
            said += f" {numbers.plural(count, 'parameter')} of the {side} {'has' if count == 1 else 'have'} none."
    uncomparable = found.counts.get("misshapen", 0) + found.counts.get("integers", 0)
    if uncomparable:
        of_them = numbers.plural(uncomparable, "tensor")
        said += f" {of_them} of another shape or of no plain floats {'was' if uncomparable == 1 else 'were'} not compared."
    if not any(found.counts.values()):
        said += " Every tensor has a counterpart of the same name and shape."
    return said + (" Of several tuned checkpoints, this is said of the last." if len(report.tuned) > 1 else "")


def _named(tensors: tuple[NamedTensor, ...]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    return ("Tensor", "Shape", "Dtype"), [(each.name, _shape(each.shape), each.dtype) for each in tensors]


def _shape(shape: tuple[int, ...]) -> str:
    return numbers.shape(shape, "scalar")


_degrees = optional(lambda angle: f"{angle:.3g}°")
_SPECTRAL_COLUMNS = (
    Column("Matrix", 318, "name"),
    Column("Shape", 104, lambda row: numbers.shape(row.shape)),
    Column("Stable rank", 123, "stable_rank", numbers.magnitude),
    Column("Effective rank", 144, "effective_rank", numbers.magnitude),
    Column("Spectral drift", 144, "nss", numbers.magnitude),
    Column("Angle, left", 123, "largest_angle_left", _degrees),
    Column("Mean, left", 116, "mean_angle_left", _degrees),
    Column("Angle, right", 130, "largest_angle_right", _degrees),
    Column("Mean, right", 123, "mean_angle_right", _degrees),
    Column("In principal mask", 165, "principal_overlap", numbers.share),
    Column("In low-magnitude mask", 193, "low_magnitude_overlap", numbers.share),
)
SPECTRAL: DataTable[SparsityReport] = DataTable(
    "Singular values and subspaces", "m-spectral", _SPECTRAL_COLUMNS, lambda report: report.spectral
)


def _dtypes(row: TensorRow) -> str:
    return shown(row.dtype if row.dtype == row.tuned_dtype else f"{row.dtype} → {row.tuned_dtype}")


_TENSOR_COLUMNS = (
    Column("Name", 318, tensor_name),
    Column("Role", 98, "role"),
    Column("Sparsity", 92, "sparsity", numbers.share, read=lambda row: numbers.share(row.sparsity) if row.values_read else "not read"),
    Column("By the probe", 116, "probe_sparsity", numbers.share),
    Column("Rows changed", 120, "changed_rows", numbers.share),
    Column("Columns changed", 140, "changed_columns", numbers.share),
    Column("|update| / |base|", 136, "relative_norm", numbers.share),
    Column("Changed", 104, "num_changed", numbers.count, read=lambda row: _read_count(row, row.num_changed)),
    Column("Largest update", 124, "max_update", numbers.magnitude),
    Column("Lost to rounding", 124, "swallowed", numbers.count, read=lambda row: _read_count(row, row.swallowed)),
    Column("Dtypes", 110, _dtypes),
    Column("Shape", 112, lambda row: shown(numbers.shape(row.shape), 60)),
    Column(
        "In the tuned checkpoint", 318, "tuned_name", read=lambda row: shown(row.tuned_name) if row.tuned_name != row.name else "the same"
    ),
)
TENSORS: DataTable[SparsityReport] = DataTable("Tensors", "m-tensors", _TENSOR_COLUMNS, lambda report: report.tensors)


def _read_count(row: TensorRow, count: int) -> str:
    return numbers.count(count) if row.values_read else numbers.NOTHING
