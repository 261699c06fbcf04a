"""Compiles the loops and caches their machine code, so that later starts are fast: ``python -m analyzers.numerics``."""

from analyzers.numerics.warm_up import warm_up

warm_up()
