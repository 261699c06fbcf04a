"""``python -m analyzers.numerics`` compiles the loops and keeps their machine code, so that no later start waits for it."""

from analyzers.numerics.warm_up import warm_up

warm_up()
