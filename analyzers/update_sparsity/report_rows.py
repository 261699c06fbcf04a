"""Builds the rows of the report by role, by layer and by tensor, and the distributions of all updates."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from math import inf, nextafter
from typing import Any

import numpy as np

from analyzers.base import finite
from analyzers.checkpoints import ROLES
from analyzers.numerics import PairTables
from analyzers.numerics.sketches import Distribution
from analyzers.records import Interval
from analyzers.tensor_words import layer_name
from analyzers.update_sparsity.magnitudes import Absolute, Bin, Energy, Magnitudes, Relative, RelativeSummary, Summary, UlpBin
from analyzers.update_sparsity.report import LayerRow, RoleRow, TensorRow
from analyzers.update_sparsity.statistics import Number, Pair, total, weigh_pairs

# Shares of coordinates, largest updates first, whose energy is reported
TOPS = (0.001, 0.01, 0.05)


def role_rows(pairs: Sequence[Pair], weights: Sequence[Number]) -> dict[str, RoleRow]:
    """Build one row for each role that occurs, in the order of `ROLES`."""
    groups = {role: [pair for pair in pairs if pair.base.role == role] for role in ROLES}
    return {role: _role_row(group, weights) for role, group in groups.items() if group}


def _role_row(group: Sequence[Pair], weights: Sequence[Number]) -> RoleRow:
    whole = weigh_pairs(group, weights)
    counts = [pair.counts for pair in group if pair.counts.values]
    # For tensors read in part this would be the spread of the samples.
    whole_tensors = all(pair.counts.values == pair.parameters for pair in group)
    spread = _spread([1 - each.changed / each.values for each in counts if whole_tensors])
    by_probe = _spread([1 - each.probe / each.values for each in counts if whole_tensors])
    return RoleRow(
        layers=len({pair.base.layer for pair in group} - {None}),
        tensors=len(group),
        parameters=sum(pair.parameters for pair in group),
        num_changed=sum(each.changed for each in counts),
        sparsity=whole.sparsity,
        probe_sparsity=whole.probe_sparsity,
        **spread,
        **{f"probe_{name}": value for name, value in by_probe.items()},
        relative_norm=whole.relative_norm,
    )


def _spread(shares: Sequence[float]) -> dict[str, float | None]:
    """Compute mean, standard deviation (of the population), minimum and maximum; all None if there are no shares."""
    if not shares:
        return dict.fromkeys(("mean", "std", "min", "max"))
    return {"mean": float(np.mean(shares)), "std": float(np.std(shares)), "min": min(shares), "max": max(shares)}


def layer_rows(pairs: Sequence[Pair], weights: Sequence[Number], intervals: Mapping[int | None, Interval | None]) -> Iterator[LayerRow]:
    """Build one row per layer, in order; tensors outside the layers come last. intervals: of the sparsity of layers, in a sample."""
    layers: dict[int | None, list[Pair]] = {}
    for pair in pairs:
        layers.setdefault(pair.base.layer, []).append(pair)
    for layer, group in sorted(layers.items(), key=lambda item: (item[0] is None, item[0] or 0)):
        whole = weigh_pairs(group, weights)
        roles = {role: [pair for pair in group if pair.base.role == role] for role in ROLES}
        interval = intervals.get(layer)
        yield LayerRow(
            layer=layer,
            tensors=len(group),
            parameters=sum(pair.parameters for pair in group),
            num_changed=sum(pair.counts.changed for pair in group),
            sparsity=whole.sparsity,
            low=interval.low if interval else None,
            high=interval.high if interval else None,
            probe_sparsity=whole.probe_sparsity,
            relative_norm=whole.relative_norm,
            roles={role: weigh_pairs(part, weights).sparsity for role, part in roles.items() if part},
        )


def tensor_row(pair: Pair) -> TensorRow:
    """Build the row of one pair."""
    return _row([pair], pair.base.name, pair.tuned.name, pair.shape, [1] * (pair.stratum + 1))


def aggregate_rows(pairs: Sequence[Pair], weights: Sequence[Number]) -> Iterator[TensorRow]:
    """Build one row per layer, role and dtypes, for checkpoints of very many tensors."""
    groups: dict[tuple[int | None, str, str, str], list[Pair]] = {}
    for pair in pairs:
        groups.setdefault((pair.base.layer, pair.base.role, pair.base.dtype, pair.tuned.dtype), []).append(pair)
    for (layer, role, _, _), group in groups.items():
        name = f"{layer_name(layer)}: {role}"
        yield _row(group, name, name, (), weights)


def _row(group: Sequence[Pair], name: str, tuned_name: str, shape: tuple[int, ...], weights: Sequence[Number]) -> TensorRow:
    """Build the row of all pairs of one layer, role and dtypes."""
    whole, counts = weigh_pairs(group, weights), total(pair.counts for pair in group)
    places = [pair.places for pair in group if pair.places is not None]
    rows, columns = sum(p.rows for p in places), sum(p.columns for p in places)
    any_finite = counts.values > counts.nonfinite
    return TensorRow(
        name=name,
        tuned_name=tuned_name,
        dtype=group[0].base.dtype,
        tuned_dtype=group[0].tuned.dtype,
        shape=shape,
        tensors=len(group),
        parameters=sum(pair.parameters for pair in group),
        values_read=counts.values,
        role=group[0].base.role,
        layer=group[0].base.layer,
        num_changed=counts.changed,
        sparsity=whole.sparsity,
        probe_num_changed=counts.probe,
        probe_sparsity=whole.probe_sparsity,
        swallowed=counts.swallowed,
        changed_rows=sum(p.changed_rows for p in places) / rows if rows else None,
        changed_columns=sum(p.changed_columns for p in places) / columns if columns else None,
        max_update=whole.max_update if any_finite else None,
        update_norm=whole.update_norm if any_finite else None,
        relative_norm=whole.relative_norm,
    )


def magnitudes(read: PairTables, weighed: PairTables) -> Magnitudes:
    """Summarize absolute and relative updates over all pairs of finite values and over the changed ones; only counts are not weighted."""
    return Magnitudes(
        absolute=Absolute(
            **_fields(read.absolute, weighed.absolute, False),
            changed_only=Summary(**_fields(read.absolute, weighed.absolute, True)),
            histogram=_histogram(read.absolute, weighed.absolute),
        ),
        relative=Relative(
            **_relative(read.relative, weighed.relative, False),
            changed_only=RelativeSummary(**_relative(read.relative, weighed.relative, True)),
            histogram=_histogram(read.relative, weighed.relative),
        ),
        nonfinite=read.nonfinite,
    )


def ulp_histogram(read: PairTables, weighed: PairTables) -> tuple[UlpBin, ...]:
    """Count pairs by their distance in bf16 ULPs."""
    total = float(weighed.steps.sum()) or 1
    bins = zip(read.ulp_bins(), weighed.ulp_bins(), strict=True)
    return tuple(UlpBin(low=low, high=high, count=int(count), share=part / total) for (low, high, count), (_, _, part) in bins)


def energy(tables: PairTables) -> tuple[Energy, ...]:
    """Compute the share of the squared update norm in the largest updates."""
    return tuple(Energy(top=top, energy=share) for top, share in zip(TOPS, tables.absolute.energy(TOPS), strict=True))


def _fields(read: Distribution, weighed: Distribution, changed_only: bool) -> dict[str, Any]:
    values = {name: None if value is None else finite(value) for name, value in asdict(weighed.summary(changed_only)).items()}
    return values | {"count": int(read.number(changed_only)), "median": values["p50"]}


def _relative(read: Distribution, weighed: Distribution, changed_only: bool) -> dict[str, Any]:
    fields, number = _fields(read, weighed, changed_only), weighed.number(changed_only)
    for exponent in (8, 7):
        fields[f"below_2_minus_{exponent}"] = weighed.below(-exponent, changed_only) / number if number else None
    return fields


def _histogram(read: Distribution, weighed: Distribution) -> tuple[Bin, ...]:
    """Build the bins. None is empty: bins next to zero are narrower than the steps of float64 there, and are extended to the next value."""
    number = weighed.number(changed_only=False) or 1
    return tuple(
        Bin(
            low=b.low,
            high=max(b.high, nextafter(b.low, inf)),
            count=int(b.count),
            changed=int(b.changed),
            share=part.count / number,
            changed_share=part.changed / number,
        )
        for b, part in zip(read.histogram(), weighed.histogram(), strict=True)
    )
