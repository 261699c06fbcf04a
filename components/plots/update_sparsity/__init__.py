"""The figures of update sparsity: location, size and origin of the changes, and comparison with published fine-tunes."""

from components.plots.update_sparsity.amounts import relative, ulps
from components.plots.update_sparsity.places import beside, heat_map, roles
from components.plots.update_sparsity.steps import overlap, steps

__all__ = ["beside", "heat_map", "overlap", "relative", "roles", "steps", "ulps"]
