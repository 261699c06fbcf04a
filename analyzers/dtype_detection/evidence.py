"""The questions put to the bits: each test, its odds by chance, and what its outcome means.

A value that every format holds (zero, a power of two) proves nothing and is left out of all tests. One exception
refutes that all values passed through a format. When there is none, the proof is as good as the number of
*different* patterns seen: if each passes by accident with probability p, all n do with p^n.
"""

from dataclasses import dataclass
from functools import cache
from math import log10

import numpy as np
from numpy.typing import NDArray

from analyzers.dtype_detection.report import Evidence
from analyzers.numerics import FP16, Bins, BitHistogram, bins

# A proof needs p^n below 10^-9, so that none of a million tensors passes by accident, and 8 different values.
PROOF_LOG10 = -9.0
PROOF_DISTINCT = 8

# The ancestor's last mantissa bit must be in use in so many binades. On an integer grid (dequantized integers, counts,
# fixed point) values are no independent draws: all with few significant bits pass together, and fill the topmost alone.
PROOF_BINADES = 2

# Runs of 128 neighbours: fewest runs that prove a scaled fp8 grid. The odds of a single one are below 10^-28.
PROOF_RUNS = 4
_RUN_CHANCE = (8 / 128) ** 24


@dataclass(frozen=True, slots=True)
class Test:
    """One question to the values of a dtype.

    domain: name of the Bins mask the question applies to; exact: key of Bins.exact that a value must satisfy.
    """

    name: str
    format: str
    question: str
    domain: str
    exact: str
    chance: float


_BF16_IN_FP32 = Test("bf16_exact", "bf16", "Low 16 bits zero?", "finite_nonzero", "bf16", 2.0**-16)
_FP16_IN_FP32 = Test("fp16_exact", "fp16", "On fp16's grid and in its range?", "finite_nonzero", "fp16", 2.0**-13)
_GRID_QUESTION = "On fp16's grid: below 2^-18 multiples of 2^-24, none beyond its range?"

# The expected share by chance is that of values spread evenly within each power of two, as weights near zero are.
TESTS: dict[str, tuple[Test, ...]] = {
    "F64": (
        Test("fp32_exact", "fp32", "Exact in fp32?", "finite_nonzero", "fp32", 2.0**-29),
        Test("bf16_exact", "bf16", "Exact in bf16?", "finite_nonzero", "bf16", 2.0**-45),
        Test("fp16_exact", "fp16", "On fp16's grid and in its range?", "finite_nonzero", "fp16", 2.0**-42),
    ),
    "F32": (
        _BF16_IN_FP32,
        _FP16_IN_FP32,
        Test("fp16_grid", "fp16", _GRID_QUESTION, "low_magnitude", "fp16_grid", 1e-5),
    ),
    "F16": (Test("bf16_exact", "bf16", "Low 3 mantissa bits zero on normals?", "normal", "bf16", 0.125),),
    "BF16": (Test("fp16_grid", "fp16", _GRID_QUESTION, "low_magnitude", "fp16_grid", 0.16),),
}

# fp32 that holds bf16 values throughout is put the question of bf16, with bf16's odds.
GRID_OF_BF16_VALUES = TESTS["BF16"][0]


def evidence(test: Test, values: BitHistogram) -> Evidence:
    """Put ``test`` to the ``values`` of one dtype."""
    masks = _masks(test, values.dtype)
    tested, exceptions, distinct = values.count(masks.tested), values.count(masks.exceptions), values.distinct(masks.informative)
    floating = masks.last_bit is None or values.binades(masks.last_bit) >= PROOF_BINADES
    return _evidence(test.name, test.question, test.format, "values", tested, distinct, exceptions, test.chance, floating)


@dataclass(frozen=True, slots=True)
class _Masks:
    """Bins that a test is put to, that fail it, that pass it and prove something, and that use the ancestor's last bit."""

    tested: NDArray[np.bool_]
    exceptions: NDArray[np.bool_]
    informative: NDArray[np.bool_]
    last_bit: NDArray[np.bool_] | None


@cache  # a checkpoint may have 90,000 tensors, and an fp32 histogram has 330,000 bins
def _masks(test: Test, dtype: str) -> _Masks:
    table = bins(dtype)
    domain = _domain(test, table)
    passing = domain & table.exact[test.exact]
    tested = domain & ~(passing & table.one_bit)
    exceptions = domain & ~table.exact[test.exact]
    if test.name == "fp16_grid":
        tested, exceptions = tested | table.beyond_fp16, exceptions | table.beyond_fp16
    last_bit = None if test.name == "fp16_grid" else passing & _last_bit(test, dtype, table)
    return _Masks(tested, exceptions, passing & ~table.one_bit, last_bit)


def _last_bit(test: Test, dtype: str, table: Bins) -> NDArray[np.bool_]:
    """Bins of normal values that need every mantissa bit of the ancestor."""
    index = np.arange(table.value.size)
    if dtype == "F16":
        return np.asarray(index & 0xF == 8)
    plane, high_half = index >> 16, index & 0xFFFF
    if test.format == "bf16":
        return np.asarray((plane == 4) & (high_half & 1 == 1))
    if test.format == "fp16":
        return np.asarray((plane == 1) & (np.abs(table.value) >= FP16.smallest_normal))
    return np.asarray(plane == 0)


def _domain(test: Test, table: Bins) -> NDArray[np.bool_]:
    domains = {"finite_nonzero": table.finite_nonzero, "low_magnitude": table.low_magnitude, "normal": table.normal}
    return domains[test.domain]


def run_evidence(runs: NDArray[np.int64]) -> Evidence | None:
    """The fp8 question, from ``runs`` (10,): how many runs of 128 neighbours hold 0, 1, ... 8, more significands.

    Runs with fewer than 3 significands say nothing here: constants, ternary and 4-bit weights have those.
    None when no run could be examined.
    """
    exceptions = int(runs[9])
    passing = int(runs[3:9].sum())
    if exceptions + passing == 0:
        return None
    # Two-bit mantissas (E5M2) leave at most 4 significands in any run; E4M3 leaves up to 8.
    few = int(runs[3:5].sum()) == passing
    name = "fp8_e5m2" if few and passing else "fp8_e4m3"
    question = f"At most {4 if name == 'fp8_e5m2' else 8} different significands in each run of 128?"
    return _evidence("fp8_runs", question, name, "runs", passing + exceptions, passing, exceptions, _RUN_CHANCE)


def _evidence(
    name: str,
    question: str,
    ancestor: str,
    unit: str,
    tested: int,
    distinct: int,
    exceptions: int,
    chance: float,
    floating: bool = True,
) -> Evidence:
    share = (tested - exceptions) / tested if tested else None
    odds = distinct * log10(chance)
    needed = PROOF_RUNS if unit == "runs" else PROOF_DISTINCT
    proven = exceptions == 0 and distinct >= needed and odds <= PROOF_LOG10 and floating
    if proven:
        conclusion = f"was {ancestor} before"
    elif exceptions and share is not None and share >= max(2 * chance, chance + 0.01):
        conclusion = f"{100 * share:.4g} % of the {unit} are as if from {ancestor}, far more than by chance"
    elif exceptions:
        conclusion = f"not from {ancestor}"
    elif tested and not floating:
        conclusion = "too few different values to tell, or values on one integer grid"
    elif tested:
        conclusion = "too few different values to tell"
    else:
        conclusion = "no value the question applies to"
    return Evidence(
        test=name,
        question=question,
        format=ancestor,
        unit="runs" if unit == "runs" else "values",
        tested=tested,
        distinct=distinct,
        exceptions=exceptions,
        share=share,
        chance=chance,
        log10_chance=max(odds, -1e9),
        proven=proven,
        conclusion=conclusion,
    )
