"""From measured products to the rows of the report."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from analyzers.exit_feedback.alignment import alignment, exact_parallel_energy, loss_bins
from analyzers.exit_feedback.measure import Measured
from analyzers.exit_feedback.points import Point
from analyzers.exit_feedback.report import Alignment, CostRow, Exact, LayerRow, Method, OverSeeds, SweepRow
from analyzers.exit_feedback.signals import NULL, facts_of


def exact_row(point: Point, found: Measured) -> Exact:
    """The exact gradient, from the products of any point."""
    rows, before = found.rows(point), found.rows_before(point)
    return Exact(
        loss=float(found.loss.mean()),
        norm=float(rows[:, 2].mean() ** 0.5),
        parallel_energy=exact_parallel_energy(rows),
        parallel_energy_before_norm=exact_parallel_energy(before),
        zero=int((rows[:, 2] == 0).sum()),
    )


def method_rows(
    points: Iterable[Point], swept: Sequence[Point], found: Measured, over: Measured, costs: Iterable[CostRow]
) -> Mapping[str, Method]:
    """By name. swept, over: the points of a sweep; the spread is taken over those of parameter "seed"."""
    chunked = {row.method: row for row in costs if row.form == "chunked"}
    methods = {}
    for point in points:
        rows = found.rows(point)
        row = chunked.get(point.method)
        methods[point.method] = Method(
            **dict(alignment(rows)),
            settings=point.used(),
            before_norm=alignment(found.rows_before(point)),
            loss_bins=loss_bins(rows, found.loss),
            over_seeds=_over_seeds(point.method, swept, over),
            seconds=row.seconds if row else None,
            peak_bytes=row.peak_bytes if row else None,
        )
    return methods


def null_row(swept: Sequence[Point], over: Measured) -> OverSeeds | None:
    """Of fresh codes; None where no method with random codes was requested."""
    return _over_seeds(NULL, swept, over)


def layer_rows(layer: int, points: Iterable[Point], found: Measured) -> list[LayerRow]:
    """One for each method."""
    loss = float(found.loss.mean())
    rows = []
    for point in points:
        each = alignment(found.rows(point))
        rows.append(
            LayerRow(
                layer=layer,
                method=point.method,
                loss=loss,
                parallel_energy=each.parallel_energy,
                **_closeness(each),
                exact_parallel_energy=exact_parallel_energy(found.rows(point)),
                before_norm_cosine=alignment(found.rows_before(point)).cosine,
            )
        )
    return rows


def sweep_rows(swept: Iterable[Point], found: Measured) -> tuple[SweepRow, ...]:
    """One for each point, in order."""
    rows = []
    for point in swept:
        rows.append(
            SweepRow(
                method=point.method,
                parameter=point.parameter or "seed",
                value=point.value,
                seed=point.settings.seed,
                ceiling=facts_of(point.method).ceiling,
                null=point.method == NULL,
                **_closeness(alignment(found.rows(point))),
            )
        )
    return tuple(rows)


def _closeness(of: Alignment) -> dict[str, Any]:
    """The fields that the rows of layers and sweeps have in common."""
    return {name: getattr(of, name) for name in ("cosine", "total_cosine", "norm_ratio", "best_scale")}


def _over_seeds(method: str, swept: Iterable[Point], found: Measured) -> OverSeeds | None:
    """Tokens share the codes of a seed: only seeds are independent of each other."""
    points = [point for point in swept if point.method == method and point.parameter == "seed"]
    means = {point.settings.seed: alignment(found.rows(point)).cosine for point in points}
    values = {seed: each.mean for seed, each in means.items() if each is not None}
    if not values:
        return None
    each = list(values.values())
    error = stdev(each) / math.sqrt(len(each)) if len(each) > 1 else None
    return OverSeeds(mean=fmean(each), standard_error=error, seeds=tuple(values), values=tuple(each))
