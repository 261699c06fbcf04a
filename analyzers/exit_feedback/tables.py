"""The report as pandas tables."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from analyzers.exit_feedback.report import HISTOGRAM_BINS, Alignment, CostRow, Distribution, ExitReport, LayerRow, LossBin, SweepRow
from analyzers.extras import extras_explained
from analyzers.tables import frame

if TYPE_CHECKING:
    import pandas

_COSINES = tuple(f"cosine_{name}" for name in Distribution.model_fields)
_AT = tuple(name for name in Alignment.model_fields if name not in ("cosine", "histogram"))
_OVER = ("seeds", "mean_over_seeds", "standard_error")
_SETTINGS = ("rank", "rank_exact", "rank_tail", "k", "topk_by", "alpha", "residual", "mass_threshold", "anchors", "seed")


@extras_explained()
def tables(report: ExitReport) -> "dict[str, pandas.DataFrame]":
    """``summary`` (one row), ``methods`` (at "head" and "before norm"), ``loss_bins``, ``histogram``, ``layers``, ``sweep``, ``training``,
    ``curves``, ``cost``.
    """
    import pandas

    def rows(lines: Iterator[dict[str, Any]], *columns: str) -> "pandas.DataFrame":
        return pandas.DataFrame(list(lines), columns=list(columns))

    def flat(lines: Any, kind: type[LayerRow] | type[SweepRow]) -> "pandas.DataFrame":
        names = [column for name in kind.model_fields for column in _columns(name)]
        return rows((_flattened(row.model_dump()) for row in lines), *names)

    bins = (name for name in LossBin.model_fields if name != "cosine")
    return {
        "summary": pandas.DataFrame([summary_row(report)]),
        "methods": rows(_methods(report), "method", "at", *_COSINES, *_AT, *_OVER, *_SETTINGS, "seconds", "peak_bytes"),
        "loss_bins": rows(_loss_bins(report), "method", *bins, *_COSINES),
        "histogram": rows(_histogram(report), "method", "at", "low", "high", "tokens"),
        "layers": flat(report.layers, LayerRow),
        "sweep": flat(report.sweep, SweepRow),
        "training": rows(_training(report), "method", "first_loss", "final_loss", "recovered", *_SETTINGS),
        "curves": rows(_curves(report), "method", "step", "loss", "cosine"),
        "cost": frame(report.cost.rows, CostRow),
    }


def summary_row(report: ExitReport) -> dict[str, Any]:
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
    return tuple(f"{name}_{part}" for part in Distribution.model_fields) if name.endswith("cosine") and name != "total_cosine" else (name,)


def _flattened(line: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in line.items():
        if len(_columns(name)) == 1:
            flat[name] = value
        else:
            flat |= {f"{name}_{part}": None if value is None else value[part] for part in Distribution.model_fields}
    return flat


def _sides(report: ExitReport) -> Iterator[tuple[str, str, Alignment]]:
    for name, method in report.methods.items():
        yield name, "head", method
        yield name, "before norm", method.before_norm


def _methods(report: ExitReport) -> Iterator[dict[str, Any]]:
    for name, at, found in _sides(report):
        line = {"method": name, "at": at, **_flattened(found.model_dump(include={"cosine", *_AT}))}
        if at == "head":
            method = report.methods[name]
            over = method.over_seeds
            line |= {"seeds": len(over.values), "mean_over_seeds": over.mean, "standard_error": over.standard_error} if over else {}
            line |= {"seconds": method.seconds, "peak_bytes": method.peak_bytes, **method.settings}
        yield line


def _loss_bins(report: ExitReport) -> Iterator[dict[str, Any]]:
    for name, method in report.methods.items():
        yield from ({"method": name, **_flattened(row.model_dump())} for row in method.loss_bins)


def _histogram(report: ExitReport) -> Iterator[dict[str, Any]]:
    edges = np.linspace(-1.0, 1.0, HISTOGRAM_BINS + 1).tolist()
    for name, at, found in _sides(report):
        for low, high, tokens in zip(edges, edges[1:], found.histogram, strict=False):
            yield {"method": name, "at": at, "low": low, "high": high, "tokens": tokens}


def _training(report: ExitReport) -> Iterator[dict[str, Any]]:
    for row in report.training:
        yield {"method": row.method, **row.model_dump(include={"first_loss", "final_loss", "recovered"}), **row.settings}


def _curves(report: ExitReport) -> Iterator[dict[str, Any]]:
    for row in report.training:
        for step, loss, cosine in zip(report.training_steps, row.losses, row.cosines, strict=True):
            yield {"method": row.method, "step": step, "loss": loss, "cosine": cosine}
