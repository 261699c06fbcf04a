"""The sketches of all updates as the report has them."""

from dataclasses import asdict
from math import inf, nextafter
from typing import Any

from analyzers.numerics.pair_tables import PairTables, Quantity
from analyzers.numerics.sketches import Summary as Sketched
from analyzers.update_sparsity.report import Absolute, Bin, Energy, Magnitudes, Relative, RelativeSummary, Summary, UlpBin
from analyzers.update_sparsity.statistics import finite

# The shares of coordinates, largest updates first, whose energy is told.
TOPS = (0.001, 0.01, 0.05)


def magnitudes(tables: PairTables) -> Magnitudes:
    """Absolute and relative updates, over all pairs of finite values and over the changed ones."""
    return Magnitudes(
        absolute=Absolute(
            **_fields(tables.summary("absolute", False)),
            changed_only=Summary(**_fields(tables.summary("absolute", True))),
            histogram=_histogram(tables, "absolute"),
        ),
        relative=Relative(
            **_relative(tables, False),
            changed_only=RelativeSummary(**_relative(tables, True)),
            histogram=_histogram(tables, "relative"),
        ),
        nonfinite=tables.nonfinite,
    )


def ulp_histogram(tables: PairTables) -> tuple[UlpBin, ...]:
    """Pairs by how many steps of bf16 lie between them."""
    return tuple(UlpBin(low=each.low, high=each.high, count=each.count) for each in tables.ulp_bins())


def energy(tables: PairTables) -> tuple[Energy, ...]:
    """What the largest updates hold of the sum of squares."""
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
