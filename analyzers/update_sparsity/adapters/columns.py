"""The tables of an adapter."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from analyzers.columns import Column, Table, formatted
from analyzers.formatting import NOTHING, count, magnitude, share
from analyzers.update_sparsity.adapters.report import AdapterModule, AdapterOverlap
from analyzers.update_sparsity.adapters.sentences import lost

if TYPE_CHECKING:
    from analyzers.update_sparsity.report import SparsityReport


_NAMED = 4  # modules of each format that people read; files have more


def _modules(report: "SparsityReport") -> Iterator[dict[str, Any]]:
    if report.adapter is not None:
        yield from (vars(module) for module in report.adapter.modules)


MODULES = Table(
    "adapter_modules",
    _modules,
    (
        Column("name", "Module", width=318),
        Column("role", "Role", width=104),
        Column("relative_norm", "|update| / |base|", share),
        *formatted(count, rank="Rank", rank_used="Rank used"),
        *formatted(magnitude, effective_rank="Effective rank", scale="Scale"),
        Column("empty", "Empty", cell=lambda row: {True: "yes", False: "no", None: NOTHING}[row["empty"]]),
    ),
    files=AdapterModule.model_fields,
    title="Modules of the adapter",
)


def _survival(report: "SparsityReport") -> Iterator[dict[str, Any]]:
    for name, found in (report.adapter.survival if report.adapter else {}).items():
        if found is not None:
            yield {"format": name, "of": "all", "name": "all", **vars(found)}
            yield from ({"format": name, "of": "role", **vars(row)} for row in found.roles)
            yield from ({"format": name, "of": "module", "rank": rank, **vars(row)} for rank, row in enumerate(found.worst))


def _between(low: float | None, high: float | None) -> str:
    return NOTHING if low is None or high is None else f"{lost(low)} to {lost(high)}"


def _whole(report: "SparsityReport") -> list[dict[str, Any]]:
    """Return the rows of all weights in each format, followed by those of each role."""
    return sorted((row for row in _survival(report) if row["of"] != "module"), key=lambda row: row["of"] != "all")


_LOST = Column("lost_norm", "Norm lost", lost)
_COUNTS = (Column("changed_share", "Share that changes", share), Column("touched", "Weights with an update", count))
# Shown to people, who find the worst modules in `LOSERS`; files have both.
SURVIVAL = Table(
    "",
    _whole,
    (
        Column("format", "Merged into"),
        Column("name", "Weights"),
        _LOST,
        Column("interval", "95% interval", cell=lambda row: _between(row["low"], row["high"]), only="people"),
        *_COUNTS,
    ),
    title="What survives a merge",
)
LOSERS = Table(
    "",
    lambda report: (row for row in _survival(report) if row["of"] == "module" and row["rank"] < _NAMED),
    (Column("format", "Merged into"), _LOST, Column("name", "Module", width=318), *_COUNTS),
    title="Modules that lose most",
)
OVERLAP = Table(
    "adapter_overlap",
    lambda report: report.adapter.overlap if report.adapter else (),
    (
        Column("first", "Adapter", width=200),
        Column("second", "Compared with", width=200),
        Column("modules", "Modules of both", count),
        *formatted(magnitude, cosine="Cosine of updates", cosine_by_chance="By chance"),
        *formatted(share, rows="Row spaces shared", rows_by_chance="By chance"),
        *formatted(share, columns="Column spaces shared", columns_by_chance="By chance"),
        Column("smallest_angle", "Smallest angle", lambda angle: f"{angle:.3g}°"),
        Column("worst", "Module with the lowest cosine", width=318),
        Column("worst_cosine", "Its cosine", magnitude),
    ),
    files=AdapterOverlap.model_fields,
    title="Overlap of adapters",
)
TABLES = (
    MODULES,
    Table(
        "adapter_survival",
        _survival,
        files=("format", "of", "name", "touched", "changed_share", "lost_norm", "low", "high", "overflowed"),
    ),
    OVERLAP,
)
