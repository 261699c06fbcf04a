"""``python -m analyzers.numerics`` compiles the kernels into numba's cache, so that no later start waits for it."""

from analyzers.numerics import warm

warm()
