"""The rows of the report: by role, by layer, by tensor, and the distributions of all updates."""

from collections.abc import Sequence
from dataclasses import asdict
from fractions import Fraction
from math import inf, nextafter
from typing import Any

import numpy as np

from analyzers.checkpoints import ROLES
from analyzers.numerics.pair_tables import PairTables, Quantity
from analyzers.numerics.sketches import Summary as Sketched
from analyzers.update_sparsity.report import (
    Absolute,
    Bin,
    Energy,
    LayerRow,
    Magnitudes,
    Relative,
    RelativeSummary,
    RoleRow,
    Summary,
    TensorRow,
    UlpBin,
)  # fmt: skip
from analyzers.update_sparsity.statistics import Cell, Pair, cells, finite, weigh_cells

# The shares of coordinates, largest updates first, whose energy is told.
TOPS = (0.001, 0.01, 0.05)


def role_rows(every: Sequence[Cell], weights: Sequence[Fraction]) -> dict[str, RoleRow]:
    """One row for each role that occurs, in the order of `ROLES`."""
    groups = {role: [cell for cell in every if cell.role == role] for role in ROLES}
    return {role: _role_row(group, weights) for role, group in groups.items() if group}


def _role_row(group: Sequence[Cell], weights: Sequence[Fraction]) -> RoleRow:
    whole = weigh_cells(group, weights)
    pairs = [pair for cell in group for pair in cell.pairs]
    counts = [pair.counts for pair in pairs if pair.counts.values]
    spread = _spread([1 - each.changed / each.values for each in counts])
    by_probe = _spread([1 - each.probe / each.values for each in counts])
    return RoleRow(
        layers=len({cell.layer for cell in group} - {None}),
        tensors=len(pairs),
        parameters=sum(pair.parameters for pair in pairs),
        num_changed=sum(cell.counts.changed for cell in group),
        sparsity=whole.sparsity,
        probe_sparsity=whole.probe_sparsity,
        **spread,
        **{f"probe_{name}": value for name, value in by_probe.items()},
        relative_norm=whole.relative_norm,
    )


def _spread(shares: Sequence[float]) -> dict[str, float | None]:
    """Mean, standard deviation (of the population), smallest and largest; None if there are no shares."""
    if not shares:
        return dict.fromkeys(("mean", "std", "min", "max"))
    return {"mean": float(np.mean(shares)), "std": float(np.std(shares)), "min": min(shares), "max": max(shares)}


def layer_rows(every: Sequence[Cell], weights: Sequence[Fraction]) -> list[LayerRow]:
    """One row per layer, in order; tensors outside the layers come last."""
    layers: dict[int | None, list[Cell]] = {}
    for cell in every:
        layers.setdefault(cell.layer, []).append(cell)
    rows = []
    for layer, group in sorted(layers.items(), key=lambda item: (item[0] is None, item[0] or 0)):
        whole = weigh_cells(group, weights)
        roles = {role: [cell for cell in group if cell.role == role] for role in ROLES}
        rows.append(
            LayerRow(
                layer=layer,
                tensors=sum(len(cell.pairs) for cell in group),
                parameters=sum(pair.parameters for cell in group for pair in cell.pairs),
                num_changed=sum(cell.counts.changed for cell in group),
                sparsity=whole.sparsity,
                probe_sparsity=whole.probe_sparsity,
                relative_norm=whole.relative_norm,
                roles={role: weigh_cells(part, weights).sparsity for role, part in roles.items() if part},
            )
        )
    return rows


def tensor_row(pair: Pair) -> TensorRow:
    """One pair's row of the report."""
    return _row(cells([pair]), pair.base.name, pair.tuned.name, pair.shape, [Fraction(1)] * (pair.stratum + 1))


def aggregate_rows(every: Sequence[Cell], weights: Sequence[Fraction]) -> list[TensorRow]:
    """One row per layer, role and dtypes, for checkpoints of very many tensors."""
    groups: dict[tuple[int | None, str, str, str], list[Cell]] = {}
    for cell in every:
        groups.setdefault((cell.layer, cell.role, cell.dtype, cell.tuned_dtype), []).append(cell)
    rows = []
    for (layer, role, _, _), group in groups.items():
        name = f"{'not in a layer' if layer is None else f'layer {layer}'}: {role}"
        rows.append(_row(group, name, name, (), weights))
    return rows


def _row(group: Sequence[Cell], name: str, tuned_name: str, shape: tuple[int, ...], weights: Sequence[Fraction]) -> TensorRow:
    """Of cells that differ in nothing but the stratum."""
    whole = weigh_cells(group, weights)
    pairs = [pair for cell in group for pair in cell.pairs]
    places = [pair.places for pair in pairs if pair.places is not None]
    rows, columns = sum(p.rows for p in places), sum(p.columns for p in places)
    values = sum(cell.counts.values for cell in group)
    any_finite = any(cell.counts.values > cell.counts.nonfinite for cell in group)
    return TensorRow(
        name=name,
        tuned_name=tuned_name,
        dtype=group[0].dtype,
        tuned_dtype=group[0].tuned_dtype,
        shape=shape,
        tensors=len(pairs),
        parameters=sum(pair.parameters for pair in pairs),
        values_read=values,
        role=group[0].role,
        layer=group[0].layer,
        num_changed=sum(cell.counts.changed for cell in group),
        sparsity=whole.sparsity,
        probe_num_changed=sum(cell.counts.probe for cell in group),
        probe_sparsity=whole.probe_sparsity,
        swallowed=sum(cell.counts.swallowed for cell in group),
        changed_rows=sum(p.changed_rows for p in places) / rows if rows else None,
        changed_columns=sum(p.changed_columns for p in places) / columns if columns else None,
        max_update=whole.max_update if any_finite else None,
        update_norm=whole.update_norm if any_finite else None,
        relative_norm=whole.relative_norm,
    )


def magnitudes(tables: PairTables) -> Magnitudes:
    """Absolute and relative updates, over all pairs of finite values and over the changed ones."""
    return Magnitudes(
        absolute=Absolute(
            **_fields(tables.summary("absolute", False)),
            changed_only=Summary(**_fields(tables.summary("absolute", True))),
            histogram=_histogram(tables, "absolute"),
        ),
        relative=Relative(
            **_relative(tables, False), changed_only=RelativeSummary(**_relative(tables, True)), histogram=_histogram(tables, "relative")
        ),
        nonfinite=tables.nonfinite,
    )


def ulp_histogram(tables: PairTables) -> tuple[UlpBin, ...]:
    """Pairs by their distance in bf16 ULPs."""
    return tuple(UlpBin(low=each.low, high=each.high, count=each.count) for each in tables.ulp_bins())


def energy(tables: PairTables) -> tuple[Energy, ...]:
    """The share of the squared update norm in the largest updates."""
    return tuple(Energy(top=top, energy=share) for top, share in zip(TOPS, tables.energy(TOPS), strict=True))


def _fields(sketched: Sketched) -> dict[str, Any]:
    values = {name: None if value is None else finite(value) for name, value in asdict(sketched).items()}
    return values | {"count": sketched.count, "median": values["p50"]}


def _relative(tables: PairTables, changed_only: bool) -> dict[str, Any]:
    fields = _fields(tables.summary("relative", changed_only))
    count = fields["count"]
    for exponent in (8, 7):
        fields[f"below_2_minus_{exponent}"] = tables.below(-exponent, changed_only) / count if count else None
    return fields


def _histogram(tables: PairTables, quantity: Quantity) -> tuple[Bin, ...]:
    """No bin is empty: those next to zero are narrower than the steps of float64 there, and end at the next one."""
    bins = tables.histogram(quantity)
    return tuple(Bin(low=b.low, high=max(b.high, nextafter(b.low, inf)), count=b.count, changed=b.changed) for b in bins)
