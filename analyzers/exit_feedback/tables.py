"""The report as pandas tables."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from analyzers.exit_feedback.results import HISTOGRAM_BINS, Alignment, CostRow, Distribution, LayerRow, LossBin, SweepRow
from analyzers.extras import extras_explained
from analyzers.tables import frame, table

if TYPE_CHECKING:
    import pandas

    from analyzers.exit_feedback.report import ExitReport

_COSINES = tuple(f"cosine_{name}" for name in Distribution.model_fields)
_ALIGNMENT = tuple(name for name in Alignment.model_fields if name not in ("cosine", "histogram"))
_OVER = ("seeds", "mean_over_seeds", "standard_error")
_SETTINGS = ("rank", "rank_exact", "rank_tail", "k", "topk_by", "alpha", "residual", "mass_threshold", "anchors", "seed")


@extras_explained()
def tables(report: "ExitReport") -> "dict[str, pandas.DataFrame]":
    """``summary`` (one row), ``methods`` (a row each at "head" and "before norm"), ``loss_bins``, ``histogram``, ``layers``, ``sweep``,
    ``cost``.
    """
    import pandas

    def flat(lines: Any, kind: type[LayerRow] | type[SweepRow]) -> "pandas.DataFrame":
        return table((_flattened(row.model_dump()) for row in lines), *(column for name in kind.model_fields for column in _columns(name)))

    bins = (name for name in LossBin.model_fields if name != "cosine")
    return {
        "summary": pandas.DataFrame([summary_row(report)]),
        "methods": table(_methods(report), "method", "at", *_COSINES, *_ALIGNMENT, *_OVER, *_SETTINGS, "seconds", "peak_bytes"),
        "loss_bins": table(
            ({"method": name, **_flattened(row.model_dump())} for name, method in report.methods.items() for row in method.loss_bins),
            "method", *bins, *_COSINES,
        ),
        "histogram": table(_histogram(report), "method", "at", "low", "high", "tokens"),
        "layers": flat(report.layers, LayerRow),
        "sweep": flat(report.sweep, SweepRow),
        "cost": frame(report.cost.rows, CostRow),
    }  # fmt: skip


def summary_row(report: "ExitReport") -> dict[str, Any]:
    """One row per report; the cosines of the methods in columns of their own."""
    return {
        "model": report.checkpoint.ref,
        "commit": report.checkpoint.commit[:12],
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


def _columns(name: str) -> tuple[str, ...]:
    """The columns of a field: four for a distribution."""
    return tuple(f"{name}_{part}" for part in Distribution.model_fields) if name in ("cosine", "before_norm_cosine") else (name,)


def _flattened(row: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        parts = [value] if len(_columns(name)) == 1 else [None] * 4 if value is None else value.values()
        flat |= dict(zip(_columns(name), parts, strict=True))
    return flat


def _sides(report: "ExitReport") -> Iterator[tuple[str, str, Alignment]]:
    for name, method in report.methods.items():
        yield name, "head", method
        yield name, "before norm", method.before_norm


def _methods(report: "ExitReport") -> Iterator[dict[str, Any]]:
    for name, at, alignment in _sides(report):
        row = {"method": name, "at": at, **_flattened(alignment.model_dump(include={"cosine", *_ALIGNMENT}))}
        if at == "head":
            method = report.methods[name]
            if over := method.over_seeds:
                row |= dict(zip(_OVER, (len(over.values), over.mean, over.standard_error), strict=True))
            row |= {"seconds": method.seconds, "peak_bytes": method.peak_bytes, **method.settings}
        yield row


def _histogram(report: "ExitReport") -> Iterator[dict[str, Any]]:
    edges = [-1 + 2 * edge / HISTOGRAM_BINS for edge in range(HISTOGRAM_BINS + 1)]
    for name, at, alignment in _sides(report):
        for low, high, tokens in zip(edges, edges[1:], alignment.histogram, strict=False):
            yield {"method": name, "at": at, "low": low, "high": high, "tokens": tokens}
