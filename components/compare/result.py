"""Lays out the result of compare: the answer, and the tabs of parents and of update sparsity."""

from operator import attrgetter

from components.parents.result import RESULT as PARENTS
from components.results.answer import layout_of
from components.results.coverage_tab import COVERAGE
from components.sparsity.result import RESULT as SPARSITY

RESULT = layout_of(
    "Comparison",
    [
        tab.of(attrgetter(part))
        for part, layout in (("parents", PARENTS), ("sparsity", SPARSITY))
        for tab in layout.tabs
        if tab is not COVERAGE
    ],
)
