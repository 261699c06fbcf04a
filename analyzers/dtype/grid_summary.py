"""The grids of a checkpoint: which tensors are on which, and what storing them so would save."""

from collections.abc import Sequence

from analyzers.checkpoints import ROLES, Tensor
from analyzers.dtype.report import Grid
from analyzers.grids.tensor_grid import TensorGrid

Found = Sequence[tuple[Tensor, TensorGrid | None]]


def grid_rows(found: Found) -> tuple[Grid, ...]:
    """Sum the grids of tensors by format, group and stored dtype: proven ones first, then by parameters."""
    by_grid: dict[tuple[bool, str, str, bool, str], list[tuple[Tensor, TensorGrid]]] = {}
    for tensor, grid in found:
        if grid is not None:
            by_grid.setdefault((grid.proven, grid.format, grid.group, grid.columns, tensor.dtype), []).append((tensor, grid))
    rows = []
    for (proven, name, group, columns, stored), members in by_grid.items():
        parameters = sum(tensor.elements for tensor, _ in members)
        needed = sum(tensor.elements * grid.bits for tensor, grid in members)
        roles = {tensor.role for tensor, _ in members}
        rows.append(
            Grid(
                format=name,
                group=group,
                columns=columns,
                stored=stored,
                tensors=len(members),
                parameters=parameters,
                groups_tested=sum(grid.groups for _, grid in members),
                groups_on=sum(grid.groups - grid.exceptions for _, grid in members),
                by_chance=10 ** max(max(grid.log10_chance for _, grid in members), -300.0),
                roles=tuple(role for role in ROLES if role in roles),
                bits_needed=needed / parameters,
                redundant_bytes=sum(tensor.nbytes for tensor, _ in members) - int(needed / 8) if proven else 0,
                proven=proven,
            )
        )
    return tuple(sorted(rows, key=lambda row: (not row.proven, -row.parameters)))
