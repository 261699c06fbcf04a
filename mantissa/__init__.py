"""Answers questions about how a language model was trained from the numbers in its weights, in Python.

report = mantissa.dtype("org/model")
report.summary, report.tables()["tensors"], report.plot("spectrum")
"""

from mantissa.package_shadowing import check_packages

check_packages()

from analyzers import __version__ as __version__  # noqa: E402
from mantissa.api import (  # noqa: E402
    check,
    compare,
    conflict,
    dtype,
    exit,
    merge,
    parents,
    precision,
    read_report,
    shrink,
    sparsity,
    stream,
)  # fmt: skip

__all__ = [
    "check",
    "compare",
    "conflict",
    "dtype",
    "exit",
    "merge",
    "parents",
    "precision",
    "read_report",
    "shrink",
    "sparsity",
    "stream",
]
