"""Adapters as changes of a base: W + s B A, computed while the weights are read."""
