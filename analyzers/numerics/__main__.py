"""``python -m analyzers.numerics`` compiles the loops and caches their machine code, so that later starts are fast."""

from analyzers.numerics.warm_up import warm_up

warm_up()
