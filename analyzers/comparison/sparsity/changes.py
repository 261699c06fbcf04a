"""What changed between sides of a pass: rows by tensor, layer and role, sizes of the updates, a trajectory, with intervals in a sample."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import ROLES, Tensor
from analyzers.comparison.sparsity.magnitudes import Absolute, Bin, Energy, Magnitudes, Relative, RelativeSummary, Summary, UlpBin
from analyzers.comparison.sparsity.report import LayerRow, Overlap, Probe, RoleRow, Step, Swallowed, TensorRow, TrajectoryRow
from analyzers.comparison.table import Sums, Table
from analyzers.core.records import Interval
from analyzers.core.report import CheckpointFacts
from analyzers.numerics.sketches import Distribution, ulp_bins

# Shares of coordinates, largest updates first, whose energy is reported.
TOPS = (0.001, 0.01, 0.05)

Mask = NDArray[np.bool_]


@dataclass(slots=True)
class Estimates:
    """95% intervals of a sample; empty if everything was read. named: by their path in the report; blocks: number of blocks read."""

    named: dict[str, Interval] = field(default_factory=dict)
    layers: dict[int | None, Interval | None] = field(default_factory=dict)
    trajectory: list[Interval | None] = field(default_factory=list)
    blocks: int | None = None


class Changes:
    """The changes from side ``base`` of a table to the last of the sides ``tuned``, and on the way there."""

    def __init__(self, table: Table, base: int, tuned: Sequence[int]) -> None:
        self._table, self.base, self.tuned, self.last = table, base, list(tuned), tuned[-1]
        self.held: Mask = table.holders(base) & table.holders(self.last)
        self.numbers: list[int] = np.flatnonzero(self.held).tolist()
        self.read = table.sums(base, self.last, self.held, weighed=False)
        self.whole = table.sums(base, self.last, self.held)
        self._tensors = table.tensors(base, self.last)
        self.estimates = self._estimates()

    def tensor(self, number: int, side: int) -> Tensor:
        """Return the tensor of a side."""
        tensor = self._table.groups[number].sides[side]
        assert tensor is not None
        return tensor

    def shape(self, number: int) -> tuple[int, ...]:
        """Return the shape that is compared: the whole tensor, or the rows that both have."""
        return min(self.tensor(number, self.base).shape, self.tensor(number, self.last).shape, key=prod)

    @property
    def parameters(self) -> int:
        """Number of elements that both sides have."""
        return sum(prod(self.shape(number)) for number in self.numbers)

    def same_dtypes(self, tuned: int) -> bool:
        """Return whether a side is stored in the dtypes of the base."""
        sides = [(group.sides[self.base], group.sides[tuned]) for group in self._table.groups]
        return all(a is None or b is None or a.dtype == b.dtype for a, b in sides)

    def swallowed(self, tuned: int | None = None) -> Swallowed:
        """Return the values that differ as stored and not in bf16."""
        side = self.last if tuned is None else tuned
        read, whole = self._table.sums(self.base, side, weighed=False), self._table.sums(self.base, side)
        lost = read["differ"] - read["changed"]
        share = float((whole["differ"] - whole["changed"]) / whole["values"]) if whole["values"] else None
        return Swallowed(count=int(lost), share=share, meaningful=self.same_dtypes(side))

    def _estimates(self) -> Estimates:
        table, base, last, blocks = self._table, self.base, self.last, self._table.blocks()
        if blocks is None:
            return Estimates(trajectory=[None] * len(self.tuned))
        changed, probe = Interval.each(blocks.unchanged(base, last, ("changed", "probe")))
        (swallowed,) = Interval.each(blocks.swallowed(base, last))
        roles, layers = table.by_role(self.held), table.by_layer(self.held)
        of_roles, of_layers = (Interval.each(blocks.unchanged(base, last, ("changed",), masks.values())) for masks in (roles, layers))
        named = {"sparsity": changed, "probe.sparsity": probe, "swallowed.share": swallowed}
        named |= {f"roles.{role}.sparsity": interval for role, interval in zip(roles, of_roles, strict=True)}
        trajectory = [Interval.each(blocks.unchanged(base, side, ("changed",)))[0] for side in self.tuned]
        by_layer = dict(zip(layers, of_layers, strict=True))
        return Estimates({path: each for path, each in named.items() if each is not None}, by_layer, trajectory, len(blocks.number))

    # Rows

    def roles(self) -> dict[str, RoleRow]:
        """Build one row for each role that occurs, in the order of `ROLES`."""
        masks = self._table.by_role(self.held)
        return {role: self._role(masks[role]) for role in ROLES if role in masks}

    def _role(self, mask: Mask) -> RoleRow:
        numbers = np.flatnonzero(mask).tolist()
        rows = [Sums(self._tensors.columns[number]) for number in numbers]
        # For tensors read in part this would be the spread of the samples.
        whole = all(row["values"] == prod(self.shape(number)) for number, row in zip(numbers, rows, strict=True))
        counted = [row for row in rows if row["values"]] if whole else []
        by_probe = _spread([1 - row["probe"] / row["values"] for row in counted])
        return RoleRow(
            **self._group(mask),
            layers=len({self._table.groups[number].base.layer for number in numbers} - {None}),
            **_spread([1 - row["changed"] / row["values"] for row in counted]),
            **{f"probe_{name}": value for name, value in by_probe.items()},
        )

    def _group(self, mask: Mask) -> dict[str, Any]:
        """Return the fields that rows of roles and of layers share."""
        whole = self._table.sums(self.base, self.last, mask)
        return {
            "sparsity": whole.unchanged(),
            "probe_sparsity": whole.unchanged("probe"),
            "relative_norm": relative_norm(whole),
            "num_changed": int(self._tensors["changed"][mask].sum()),
            "tensors": int(mask.sum()),
            "parameters": sum(prod(self.shape(number)) for number in np.flatnonzero(mask).tolist()),
        }

    def layers(self) -> Iterator[LayerRow]:
        """Build one row per layer, in order; tensors outside the layers come last."""
        for layer, mask in sorted(self._table.by_layer(self.held).items(), key=lambda item: (item[0] is None, item[0] or 0)):
            roles = self._table.by_role(mask)
            interval = self.estimates.layers.get(layer)
            yield LayerRow(
                **self._group(mask),
                layer=layer,
                low=interval.low if interval else None,
                high=interval.high if interval else None,
                roles={role: self._table.sums(self.base, self.last, roles[role]).unchanged() for role in ROLES if role in roles},
            )

    def tensors(self) -> Iterator[TensorRow]:
        """Build the row of each tensor."""
        for number in self.numbers:
            row, base, tuned = Sums(self._tensors.columns[number]), self.tensor(number, self.base), self.tensor(number, self.last)
            places, any_finite = self._table.places.get(number), bool(row["values"] > row["nonfinite"])
            yield TensorRow(
                name=base.name,
                tuned_name=tuned.name,
                dtype=base.dtype,
                tuned_dtype=tuned.dtype,
                shape=self.shape(number),
                parameters=prod(self.shape(number)),
                values_read=int(row["values"]),
                role=self._table.groups[number].base.role,
                layer=self._table.groups[number].base.layer,
                num_changed=int(row["changed"]),
                sparsity=row.unchanged(),
                probe_num_changed=int(row["probe"]),
                probe_sparsity=row.unchanged("probe"),
                swallowed=int(row["differ"] - row["changed"]),
                changed_rows=places.changed_rows / places.rows if places and places.rows else None,
                changed_columns=places.changed_columns / places.columns
                if places and places.columns and places.changed_columns is not None
                else None,
                max_update=float(self._table.fact(number, self.base, self.last).largest[0, 0]) if any_finite else None,
                update_norm=sqrt(row["update_square"]) if any_finite else None,
                relative_norm=relative_norm(row),
            )

    # Sizes of the updates

    def magnitudes(self) -> Magnitudes:
        """Summarize absolute and relative updates over all pairs of finite values, and over the changed ones; counts are of pairs read."""
        absolute, relative = (self._table.distribution(self.base, self.last, size) for size in ("update", "relative"))
        return Magnitudes(
            absolute=Absolute(**_fields(*absolute, False), changed_only=Summary(**_fields(*absolute, True))),
            relative=Relative(
                **_relative(*relative, False),
                changed_only=RelativeSummary(**_relative(*relative, True)),
                histogram=_histogram(*relative),
            ),
            nonfinite=int(self.read["nonfinite"]),
        )

    def ulp_histogram(self) -> tuple[UlpBin, ...]:
        """Count pairs by their distance in bf16 ULPs."""
        read, whole = self._table.steps(self.base, self.last)
        total = float(whole.sum()) or 1
        bins = zip(ulp_bins(read), ulp_bins(whole), strict=True)
        return tuple(UlpBin(low=low, high=high, count=int(count), share=part / total) for (low, high, count), (_, _, part) in bins)

    def energy(self) -> tuple[Energy, ...]:
        """Compute the share of the squared update norm in the largest updates."""
        _, whole = self._table.distribution(self.base, self.last, "update")
        return tuple(Energy(top=top, energy=share) for top, share in zip(TOPS, whole.energy(TOPS), strict=True))

    # Several tuned checkpoints

    def trajectory(self, facts: Sequence[CheckpointFacts]) -> Iterator[TrajectoryRow]:
        """Build one row per tuned checkpoint, against the base and against the one before."""
        table, before = self._table, self.base
        for side, of, interval in zip(self.tuned, facts, self.estimates.trajectory, strict=True):
            read, whole = table.sums(self.base, side, weighed=False), table.sums(self.base, side)
            step_read, step = table.sums(before, side, weighed=False), table.sums(before, side)
            roles = table.by_role(table.holders(side))
            shares = {role: table.sums(self.base, side, roles[role]).unchanged() for role in ROLES if role in roles}
            sparsity = interval.estimate if interval is not None else whole.unchanged()
            yield TrajectoryRow(
                ref=of.ref,
                commit=of.commit,
                sparsity=sparsity,
                num_changed=int(read["changed"]),
                num_unchanged=int(read["values"] - read["changed"]),
                total_parameters=sum(each.elements for group in table.groups if (each := group.sides[side]) is not None),
                update_fraction=1 - interval.estimate if interval is not None else whole.share("changed"),
                interval=interval,
                probe=Probe(sparsity=whole.unchanged("probe"), num_changed=int(read["probe"])),
                swallowed=self.swallowed(side),
                relative_norm=relative_norm(whole),
                roles={role: share for role, share in shares.items() if share is not None},
                step=Step(
                    sparsity=step.unchanged(),
                    num_changed=int(step_read["changed"]),
                    probe=Probe(sparsity=step.unchanged("probe"), num_changed=int(step_read["probe"])),
                ),
            )
            before = side

    def overlaps(self) -> Iterator[Overlap]:
        """Compute the overlap of every two tuned checkpoints, over the elements that both have; shares are weighted like all others."""
        if self._table.overlap is None:
            return
        seen = self._table.overlap.sum(axis=0)
        weighed = np.tensordot(np.array([float(weight) for weight in self._table.plan.weights()]), self._table.overlap, axes=1)
        for i in range(len(self.tuned)):
            for j in range(i + 1, len(self.tuned)):
                compared, first, second, shared = (float(weighed[at]) for at in ((0, i, j), (1, i, j), (1, j, i), (2, i, j)))
                either, independent = first + second - shared, None
                if compared and either:
                    p, q = first / compared, second / compared
                    independent = p * q / (p + q - p * q)
                yield Overlap(
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


def _spread(shares: Sequence[float]) -> dict[str, Any]:
    """Compute mean, standard deviation (of the population), minimum and maximum; all None if there are no shares."""
    if not shares:
        return dict.fromkeys(("mean", "std", "min", "max"))
    return {"mean": float(np.mean(shares)), "std": float(np.std(shares)), "min": float(min(shares)), "max": float(max(shares))}


def _fields(read: Distribution, weighed: Distribution, changed_only: bool) -> dict[str, Any]:
    values = asdict(weighed.summary(changed_only))
    return values | {"count": int(read.number(changed_only)), "median": values["p50"]}


def _relative(read: Distribution, weighed: Distribution, changed_only: bool) -> dict[str, Any]:
    fields, number = _fields(read, weighed, changed_only), weighed.number(changed_only)
    for exponent in (8, 7):
        fields[f"below_2_minus_{exponent}"] = weighed.below(-exponent, changed_only) / number if number else None
    return fields


def _histogram(read: Distribution, weighed: Distribution) -> tuple[Bin, ...]:
    number = weighed.number(changed_only=False) or 1
    return tuple(
        Bin(
            low=b.low,
            high=b.high,
            count=int(b.count),
            changed=int(b.changed),
            share=part.count / number,
            changed_share=part.changed / number,
        )
        for b, part in zip(read.histogram(), weighed.histogram(), strict=True)
    )
