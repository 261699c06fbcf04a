"""The tables under the headline: roles, magnitudes, checkpoints of a trajectory, published fine-tunes."""

from collections.abc import Callable

from analyzers.update_sparsity.published import SOURCE, published
from analyzers.update_sparsity.report import RelativeSummary, SparsityReport, Summary
from components.sparsity.names import read_whole, short, tuned_names
from components.text import numbers
from components.text.markup import table
from components.text.names import commit
from components.text.plain_text import shown

_PERCENTILES = ("p25", "p50", "p75", "p90", "p99", "max")


def roles(report: SparsityReport) -> str:
    """Two rows per role: its sparsity and the spread over its tensors, in bf16 and by the probe."""
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
    spread = table(titles, rows, frozenset(range(1, 11)), "" if read_whole(report) else "As seen in the sample", stacked=True)
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
    rows = [(f"Largest {numbers.share(each.top)}", numbers.share(each.energy)) for each in report.energy]
    return table(("Updates of all values compared", "Share of squared update norm"), rows, frozenset({1}))
