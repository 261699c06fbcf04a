"""From measured products to the rows of the report."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from analyzers.exit_feedback.alignment import alignment, exact_parallel_energy, loss_bins
from analyzers.exit_feedback.measure import Measured
from analyzers.exit_feedback.points import Point
from analyzers.exit_feedback.results import Alignment, CostRow, Exact, LayerRow, Method, OverSeeds, SweepRow
from analyzers.exit_feedback.signals import facts_of


def exact_row(point: Point, measured: Measured) -> Exact:
    """The exact gradient, from the products of any point."""
    rows = measured.rows(point)
    return Exact(
        loss=float(measured.loss.mean()),
        norm=float(rows[:, 2].mean() ** 0.5),
        parallel_energy=exact_parallel_energy(rows),
        parallel_energy_before_norm=exact_parallel_energy(measured.rows_before(point)),
        zero=int((rows[:, 2] == 0).sum()),
    )


def method_rows(
    points: Iterable[Point], measured: Measured, over_seeds: Mapping[str, OverSeeds], costs: Iterable[CostRow]
) -> dict[str, Method]:
    """By name."""
    chunked = {row.method: row for row in costs if row.form == "chunked"}
    methods = {}
    for point in points:
        rows, cost = measured.rows(point), chunked.get(point.method)
        methods[point.method] = Method(
            **dict(alignment(rows)),
            settings=point.used(),
            before_norm=alignment(measured.rows_before(point)),
            loss_bins=loss_bins(rows, measured.loss),
            over_seeds=over_seeds.get(point.method),
            seconds=cost.seconds if cost else None,
            peak_bytes=cost.peak_bytes if cost else None,
        )
    return methods


def layer_rows(layer: int, points: Iterable[Point], measured: Measured) -> list[LayerRow]:
    """One for each method."""
    loss = float(measured.loss.mean())
    rows = []
    for point in points:
        at_head = alignment(measured.rows(point))
        rows.append(
            LayerRow(
                layer=layer,
                method=point.method,
                loss=loss,
                parallel_energy=at_head.parallel_energy,
                **_closeness(at_head),
                exact_parallel_energy=exact_parallel_energy(measured.rows(point)),
                before_norm_cosine=alignment(measured.rows_before(point)).cosine,
            )
        )
    return rows


def sweep_rows(swept: Iterable[Point], measured: Measured) -> tuple[SweepRow, ...]:
    """One for each point, in order."""
    return tuple(
        SweepRow(
            method=point.method,
            parameter=point.parameter or "seed",
            value=point.value,
            seed=point.settings.seed,
            ceiling=facts_of(point.method).ceiling,
            null=point.is_null,
            **_closeness(alignment(measured.rows(point))),
        )
        for point in swept
    )


def _closeness(alignment: Alignment) -> dict[str, Any]:
    """The fields that the rows of layers and sweeps have in common."""
    return {name: getattr(alignment, name) for name in ("cosine", "total_cosine", "norm_ratio", "best_scale")}


def spreads(swept: Sequence[Point], measured: Measured) -> dict[str, OverSeeds]:
    """By method, over the points of parameter "seed". Tokens share the codes of a seed: only seeds are independent of each other."""
    means: dict[str, dict[int, float]] = {}
    for point in swept:
        if point.parameter == "seed" and (cosine := alignment(measured.rows(point)).cosine) is not None:
            means.setdefault(point.method, {})[point.settings.seed] = cosine.mean
    result = {}
    for method, by_seed in means.items():
        values = tuple(by_seed.values())
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        result[method] = OverSeeds(mean=fmean(values), standard_error=error, seeds=tuple(by_seed), values=values)
    return result
