"""The compiled loops, as numba compiles them. Nothing here is imported but to compile: `machine_code` loads what came of it.

Each function that others call documents itself; `plain` and its kin compute the same by numpy.
"""
