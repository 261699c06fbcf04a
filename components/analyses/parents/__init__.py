"""The result of parents, which the page Compare shows: its tabs and figures."""
