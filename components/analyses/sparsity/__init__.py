"""The result of update sparsity, which the page Compare shows: its tabs and figures."""
