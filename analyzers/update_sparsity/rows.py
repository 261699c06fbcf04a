"""Builds the rows of the report by role, by layer and by tensor, the distributions of all updates, and the lists of unmatched tensors."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from math import inf, nextafter
from typing import Any

import numpy as np

from analyzers.checkpoints import ROLES, Tensor, moved_layers
from analyzers.checkpoints import Unmatched as Found
from analyzers.core.records import Interval
from analyzers.core.report import finite, first_rows
from analyzers.numerics import PairTables
from analyzers.numerics.sketches import Distribution
from analyzers.update_sparsity.magnitudes import Absolute, Bin, Energy, Magnitudes, Relative, RelativeSummary, Summary, UlpBin
from analyzers.update_sparsity.report import (
    LayerRow,
    Misshapen,
    MovedLayer,
    NamedTensor,
    Relaid,
    Renamed,
    Resized,
    RoleRow,
    TensorRow,
    Unmatched,
)
from analyzers.update_sparsity.statistics import Number, Pair, weigh, weigh_pairs

# Shares of coordinates, largest updates first, whose energy is reported
TOPS = (0.001, 0.01, 0.05)


def role_rows(pairs: Sequence[Pair], weights: Sequence[Number]) -> dict[str, RoleRow]:
    """Build one row for each role that occurs, in the order of `ROLES`."""
    groups = {role: [pair for pair in pairs if pair.base.role == role] for role in ROLES}
    return {role: _role_row(group, weights) for role, group in groups.items() if group}


def _role_row(group: Sequence[Pair], weights: Sequence[Number]) -> RoleRow:
    counts = [pair.counts for pair in group if pair.counts.values]
    # For tensors read in part this would be the spread of the samples.
    whole_tensors = all(pair.counts.values == pair.parameters for pair in group)
    by_probe = _spread([1 - each.probe / each.values for each in counts if whole_tensors])
    return RoleRow(
        **_changes(group, weights),
        layers=len({pair.base.layer for pair in group} - {None}),
        **_spread([1 - each.changed / each.values for each in counts if whole_tensors]),
        **{f"probe_{name}": value for name, value in by_probe.items()},
    )


def _changes(group: Sequence[Pair], weights: Sequence[Number]) -> dict[str, Any]:
    """Return the fields that rows of roles and of layers share."""
    whole = weigh_pairs(group, weights)
    return {
        "sparsity": whole.sparsity,
        "probe_sparsity": whole.probe_sparsity,
        "relative_norm": whole.relative_norm,
        "num_changed": sum(pair.counts.changed for pair in group),
        "tensors": len(group),
        "parameters": sum(pair.parameters for pair in group),
    }


def _spread(shares: Sequence[float]) -> dict[str, Any]:
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
        roles = {role: [pair for pair in group if pair.base.role == role] for role in ROLES}
        interval = intervals.get(layer)
        yield LayerRow(
            **_changes(group, weights),
            layer=layer,
            low=interval.low if interval else None,
            high=interval.high if interval else None,
            roles={role: weigh_pairs(part, weights).sparsity for role, part in roles.items() if part},
        )


def tensor_row(pair: Pair) -> TensorRow:
    """Build the row of one pair."""
    counts, places = pair.counts, pair.places
    whole = weigh([(0, counts)], [1])
    any_finite = counts.values > counts.nonfinite
    return TensorRow(
        name=pair.base.name,
        tuned_name=pair.tuned.name,
        dtype=pair.base.dtype,
        tuned_dtype=pair.tuned.dtype,
        shape=pair.shape,
        parameters=pair.parameters,
        values_read=counts.values,
        role=pair.base.role,
        layer=pair.base.layer,
        num_changed=counts.changed,
        sparsity=whole.sparsity,
        probe_num_changed=counts.probe,
        probe_sparsity=whole.probe_sparsity,
        swallowed=counts.swallowed,
        changed_rows=places.changed_rows / places.rows if places and places.rows else None,
        changed_columns=places.changed_columns / places.columns if places and places.columns else None,
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


# Lists of `Unmatched` whose lengths are in ``counts``
_LISTS = ("missing", "extra", "misshapen", "renamed", "resized", "relaid", "integers", "tied")


def unmatched(found: Found) -> Unmatched:
    """Build the lists of tensors that are not compared one to one, which end after `limits.REPORT_TENSORS` entries."""

    def pairs(kind: type[Any], *fields: str) -> tuple[Any, ...]:
        listed = first_rows(getattr(found, kind.__name__.lower()))
        return tuple(kind(**_of_pair(each, kind), **{name: getattr(each, name) for name in fields}) for each in listed)

    return Unmatched(
        missing=_named(found.missing),
        extra=_named(found.extra),
        misshapen=pairs(Misshapen, "transposed"),
        renamed=pairs(Renamed),
        resized=pairs(Resized, "rows"),
        integers=_named(found.integers),
        tied=tuple(tensor.name for tensor in first_rows(found.tied)),
        relaid=pairs(Relaid, "form", "agree"),
        moved_layers=tuple(MovedLayer(layer=layer, tuned_layer=source) for layer, source in first_rows(moved_layers(found))),
        counts={name: len(getattr(found, name)) for name in _LISTS},
        missing_parameters=sum(tensor.elements for tensor in found.missing),
        extra_parameters=sum(tensor.elements for tensor in found.extra),
    )


def _of_pair(pair: Any, kind: type[Renamed]) -> dict[str, Any]:
    shapes = {"shape": pair.base.shape, "tuned_shape": pair.tuned.shape} if "shape" in kind.model_fields else {}
    return {"name": pair.base.name, "tuned_name": pair.tuned.name} | shapes


def _named(tensors: Sequence[Tensor]) -> tuple[NamedTensor, ...]:
    return tuple(NamedTensor(name=tensor.name, shape=tensor.shape, dtype=tensor.dtype) for tensor in first_rows(tensors))
