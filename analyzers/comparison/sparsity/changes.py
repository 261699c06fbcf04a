"""What changed between sides of a pass: rows by tensor, layer and role, sizes of the updates, a trajectory, with intervals in a sample."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from math import prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import ROLES, Tensor, moved_layers
from analyzers.checkpoints import Unmatched as Found
from analyzers.comparison.sparsity import rows
from analyzers.comparison.table import Sums, Table, unchanged
from analyzers.core.records import Interval
from analyzers.core.report import CheckpointFacts, first_rows
from analyzers.numerics.sketches import Distribution, ulp_bins

# Shares of coordinates, largest updates first, whose energy is reported.
TOPS = (0.001, 0.01, 0.05)

Mask = NDArray[np.bool_]


class Changes:
    """The changes from side ``base`` of a table to the last of the sides ``tuned``, and on the way there.

    read, whole: sums over the tensors that both have, of the values read and estimated for all.
    """

    def __init__(self, table: Table, base: int, tuned: Sequence[int]) -> None:
        self.table, self.base, self.tuned, self.last = table, base, list(tuned), tuned[-1]
        self.held: Mask = table.holders(base, self.last)
        self.numbers: list[int] = np.flatnonzero(self.held).tolist()
        self.read = table.sums(base, self.last, self.held, weighed=False)
        self.whole = table.sums(base, self.last, self.held)
        self._tensors = table.tensors(base, self.last)

    def shape(self, number: int) -> tuple[int, ...]:
        """Return the shape that is compared: the whole tensor, or the rows that both have."""
        return min((self.table.tensor(number, side).shape for side in (self.base, self.last)), key=prod)

    @property
    def parameters(self) -> int:
        """Number of elements that both sides have."""
        return sum(prod(self.shape(number)) for number in self.numbers)

    def since(self, before: int, side: int) -> dict[str, Any]:
        """Return the fields of a report, and of a row of the trajectory, on the changes between two sides."""
        table = self.table
        read, whole = table.sums(before, side, weighed=False), table.sums(before, side)
        (interval,) = table.intervals(before, side, unchanged)
        (of_probe,) = table.intervals(before, side, lambda sums: sums["values"] - sums["probe"])
        (of_swallowed,) = table.intervals(before, side, lambda sums: sums["differ"] - sums["changed"])
        pairs = [(group.sides[before], group.sides[side]) for group in table.groups]
        return {
            "sparsity": interval.estimate if interval is not None else whole.unchanged(),
            "interval": interval,
            "num_changed": int(read["changed"]),
            "num_unchanged": int(unchanged(read)),
            "update_fraction": 1 - interval.estimate if interval is not None else whole.share("changed"),
            "probe": rows.Probe(sparsity=whole.unchanged("probe"), num_changed=int(read["probe"]), interval=of_probe),
            "swallowed": rows.Swallowed(
                count=int(read["differ"] - read["changed"]),
                share=float((whole["differ"] - whole["changed"]) / whole["values"]) if whole["values"] else None,
                meaningful=all(a is None or b is None or a.stored_dtype == b.stored_dtype for a, b in pairs),
                interval=of_swallowed,
            ),
        }

    # Rows

    def roles(self) -> dict[str, rows.RoleRow]:
        """Build one row for each role that occurs, in the order of `ROLES`."""
        masks = self.table.by_role(self.held)
        intervals = dict(zip(masks, self.table.intervals(self.base, self.last, unchanged, masks.values()), strict=True))
        return {role: self._role(masks[role], intervals[role]) for role in ROLES if role in masks}

    def _role(self, mask: Mask, interval: Interval | None) -> rows.RoleRow:
        numbers = np.flatnonzero(mask).tolist()
        sums = [Sums(self._tensors.columns[number]) for number in numbers]
        # For tensors read in part this would be the spread of the samples.
        whole = all(row["values"] == prod(self.shape(number)) for number, row in zip(numbers, sums, strict=True))
        shares = [float(1 - row["changed"] / row["values"]) for row in sums if row["values"]] if whole else []
        return rows.RoleRow(
            **self._group(mask, interval),
            layers=len({self.table.groups[number].base.layer for number in numbers} - {None}),
            mean=float(np.mean(shares)) if shares else None,
            std=float(np.std(shares)) if shares else None,
            min=min(shares, default=None),
            max=max(shares, default=None),
        )

    def _group(self, mask: Mask, interval: Interval | None) -> dict[str, Any]:
        """Return the fields that rows of roles and of layers share."""
        whole = self.table.sums(self.base, self.last, mask)
        return {
            "sparsity": whole.unchanged(),
            "interval": interval,
            "probe_sparsity": whole.unchanged("probe"),
            "relative_norm": relative_norm(whole),
            "num_changed": int(self._tensors["changed"][mask].sum()),
            "tensors": int(mask.sum()),
            "parameters": sum(prod(self.shape(number)) for number in np.flatnonzero(mask).tolist()),
        }

    def _by_role(self, side: int, mask: Mask) -> dict[str, float | None]:
        """Return the sparsity of each role, from the base to a side, over tensors of a mask."""
        roles = self.table.by_role(mask)
        return {role: self.table.sums(self.base, side, roles[role]).unchanged() for role in ROLES if role in roles}

    def layers(self) -> Iterator[rows.LayerRow]:
        """Build one row per layer, in order; tensors outside the layers come last."""
        masks = self.table.by_layer(self.held)
        intervals = dict(zip(masks, self.table.intervals(self.base, self.last, unchanged, masks.values()), strict=True))
        for layer, mask in sorted(masks.items(), key=lambda item: (item[0] is None, item[0] or 0)):
            yield rows.LayerRow(**self._group(mask, intervals[layer]), layer=layer, roles=self._by_role(self.last, mask))

    def tensors(self) -> Iterator[rows.TensorRow]:
        """Build the row of each tensor."""
        largest = self.table.largest(self.base, self.last)
        for number in self.numbers:
            row, base, tuned = Sums(self._tensors.columns[number]), *(self.table.tensor(number, side) for side in (self.base, self.last))
            placed = {self.table.task.since, self.table.task.placed} == {self.base, self.last}
            places, any_finite = self.table.places.get(number) if placed else None, bool(row["values"] > row["nonfinite"])
            columns = places.changed_columns if places is not None else None
            yield rows.TensorRow(
                name=base.name,
                tuned_name=tuned.name,
                dtype=base.stored_dtype,
                tuned_dtype=tuned.stored_dtype,
                shape=self.shape(number),
                parameters=prod(self.shape(number)),
                values_read=int(row["values"]),
                role=self.table.groups[number].base.role,
                layer=self.table.groups[number].base.layer,
                num_changed=int(row["changed"]),
                sparsity=row.unchanged(),
                probe_num_changed=int(row["probe"]),
                probe_sparsity=row.unchanged("probe"),
                swallowed=int(row["differ"] - row["changed"]),
                changed_rows=places.changed_rows / places.rows if places is not None and places.rows else None,
                changed_columns=columns / places.columns if places is not None and columns is not None and places.columns else None,
                max_update=float(largest[number, 0, 0]) if any_finite else None,
                update_norm=sqrt(row["update_square"]) if any_finite else None,
                relative_norm=relative_norm(row),
            )

    # Sizes of the updates

    def magnitudes(self) -> rows.Magnitudes:
        """Summarize absolute and relative updates over all pairs of finite values, and over the changed ones; counts are of pairs read."""
        absolute, relative = (self.table.distribution(self.base, self.last, size) for size in ("update", "relative"))
        return rows.Magnitudes(
            absolute=rows.Absolute(**_sizes(*absolute, False), changed_only=rows.Sizes(**_sizes(*absolute, True))),
            relative=rows.Relative(
                **_relative(*relative, False), changed_only=rows.Sizes(**_relative(*relative, True)), histogram=tuple(_histogram(*relative))
            ),
            nonfinite=int(self.read["nonfinite"]),
        )

    def ulp_histogram(self) -> tuple[rows.UlpBin, ...]:
        """Count pairs by their distance in bf16 ULPs."""
        read, whole = self.table.steps(self.base, self.last)
        total = float(whole.sum()) or 1
        bins = zip(ulp_bins(read), ulp_bins(whole), strict=True)
        return tuple(rows.UlpBin(low=low, high=high, count=int(count), share=part / total) for (low, high, count), (_, _, part) in bins)

    def energy(self) -> tuple[rows.Energy, ...]:
        """Compute the share of the squared update norm in the largest updates."""
        _, whole = self.table.distribution(self.base, self.last, "update")
        return tuple(rows.Energy(top=top, energy=share) for top, share in zip(TOPS, whole.energy(TOPS), strict=True))

    # Several tuned checkpoints

    def trajectory(self, facts: Sequence[CheckpointFacts]) -> Iterator[rows.TrajectoryRow]:
        """Build one row per tuned checkpoint, against the base and against the one before."""
        table, before = self.table, self.base
        for number, (side, of) in enumerate(zip(self.tuned, facts, strict=True)):
            step_read, step = table.sums(before, side, weighed=False), table.sums(before, side)
            probe = rows.Probe(sparsity=step.unchanged("probe"), num_changed=int(step_read["probe"]))
            roles = self._by_role(side, table.holders(side))
            yield rows.TrajectoryRow(
                number=number,
                ref=of.ref,
                commit=of.commit,
                total_parameters=sum(each.elements for group in table.groups if (each := group.sides[side]) is not None),
                relative_norm=relative_norm(table.sums(self.base, side)),
                roles={role: share for role, share in roles.items() if share is not None},
                step=rows.Step(sparsity=step.unchanged(), num_changed=int(step_read["changed"]), probe=probe),
                **self.since(self.base, side),
            )
            before = side

    def overlaps(self) -> Iterator[rows.Overlap]:
        """Compute the overlap of every two tuned checkpoints, over the elements that both have; shares are weighted like all others."""
        task = self.table.task
        if self.table.overlap is None or [self.base, *self.tuned] != [task.since, *task.overlaps]:
            return
        seen = self.table.overlap.sum(axis=0)
        weighed = np.tensordot(np.array([float(weight) for weight in self.table.plan.weights()]), self.table.overlap, axes=1)
        for i, j in combinations(range(len(self.tuned)), 2):
            compared, first, second, shared = (float(weighed[at]) for at in ((0, i, j), (1, i, j), (1, j, i), (2, i, j)))
            either, independent = first + second - shared, None
            if compared and either:
                p, q = first / compared, second / compared
                independent = p * q / (p + q - p * q)
            yield rows.Overlap(
                first=i,
                second=j,
                shared=int(seen[2, i, j]),
                either=int(seen[1, i, j] + seen[1, j, i] - seen[2, i, j]),
                jaccard=shared / either if either else None,
                independent=independent,
            )


def relative_norm(sums: Sums) -> float | None:
    """Return the norm of the update divided by that of the base's values, over pairs of finite values; None if that is 0."""
    return sqrt(sums["update_square"] / sums["square_x"]) if sums["square_x"] > 0 else None


def _sizes(read: Distribution, weighed: Distribution, changed_only: bool) -> dict[str, Any]:
    values = weighed.summary(changed_only)
    return values | {"count": int(read.number(changed_only)), "median": values["p50"]}


def _relative(read: Distribution, weighed: Distribution, changed_only: bool) -> dict[str, Any]:
    number = weighed.number(changed_only)
    below = {f"below_2_minus_{exponent}": weighed.below(-exponent, changed_only) / number if number else None for exponent in (8, 7)}
    return _sizes(read, weighed, changed_only) | below


def _histogram(read: Distribution, weighed: Distribution) -> Iterator[rows.Bin]:
    number = weighed.number(changed_only=False) or 1
    for each, part in zip(read.histogram(), weighed.histogram(), strict=True):
        counts, shares = (int(each.count), int(each.changed)), (part.count / number, part.changed / number)
        yield rows.Bin(low=each.low, high=each.high, count=counts[0], changed=counts[1], share=shares[0], changed_share=shares[1])


# Tensors that are not compared one to one: the lists of `rows.Unmatched`, those of pairs with what they have beside names and shapes
_SINGLE, _PAIRS = (
    ("missing", "extra", "integers", "tied"),
    {"misshapen": (), "renamed": (), "resized": ("rows",), "relaid": ("form", "agree")},
)


def unmatched(found: Found) -> rows.Unmatched:
    """List the tensors that are not compared one to one; lists end after `limits.REPORT_TENSORS` entries."""

    def single(tensor: Tensor) -> rows.Listed:
        return rows.Listed(name=tensor.name, shape=tensor.shape, dtype=tensor.stored_dtype)

    def pair(each: Any, fields: Sequence[str]) -> rows.Listed:
        names = {"name": each.base.name, "tuned_name": each.tuned.name, "shape": each.base.shape, "tuned_shape": each.tuned.shape}
        return rows.Listed(**names, **{name: getattr(each, name) for name in fields})

    lists = {name: tuple(map(single, first_rows(getattr(found, name)))) for name in _SINGLE}
    lists |= {name: tuple(pair(each, fields) for each in first_rows(getattr(found, name))) for name, fields in _PAIRS.items()}
    return rows.Unmatched(
        **lists,
        moved_layers=tuple(rows.MovedLayer(layer=layer, tuned_layer=source) for layer, source in first_rows(moved_layers(found))),
        counts={name: len(getattr(found, name)) for name in lists},
        missing_parameters=sum(tensor.elements for tensor in found.missing),
        extra_parameters=sum(tensor.elements for tensor in found.extra),
    )


def turned(found: Found) -> Found:
    """Return what is unmatched of the two sides exchanged. Layers that moved are named by the one that has them."""
    pairs = {name: [replace(each, base=each.tuned, tuned=each.base) for each in getattr(found, name)] for name in _PAIRS}
    layers = [replace(each, moved={b: a for a, b in each.moved.items() if b is not None}, repeated={}) for each in found.layers]
    return replace(found, missing=found.extra, extra=found.missing, layers=layers, **pairs)
