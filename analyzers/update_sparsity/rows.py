"""The rows of the report: by role, by layer, by tensor."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from analyzers.checkpoints import ROLES
from analyzers.update_sparsity.report import LayerRow, RoleRow, TensorRow
from analyzers.update_sparsity.statistics import Cell, Pair, cells, weigh_cells


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
    """One row per layer, layers in order, what stands outside them last."""
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
