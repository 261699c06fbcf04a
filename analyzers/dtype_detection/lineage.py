"""Concludes from evidence which formats stored values have provably passed through.

``native`` means that no narrower ancestor survives in the bits. It is a fact about the file and no proof about training: fp32 masters saved
as bf16 and pure bf16 training look the same.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from analyzers.dtype_detection.evidence import (
    FP16_IN_BF16,
    TESTS,
    block_evidence,
    count_tested,
    evidence,
    run_evidence,
)  # fmt: skip
from analyzers.dtype_detection.report import Evidence, Lineage, Part, Verdict
from analyzers.grids import TensorGrid
from analyzers.numerics import BitHistogram, bins
from analyzers.numerics.few_significands import DULL, FIXED_BF16, FIXED_FP16, MANY, TELLING_8

# Tensors that differ from all the others are set aside if they together hold at most this share of the parameters.
SET_ASIDE = 0.001

# Counters of runs that hold integers or fixed point of no more bits than a format keeps, and the test for each verdict
_FIXED = {"bf16_exact": FIXED_BF16, "fp16_exact": FIXED_FP16}
_TEST_FOR: dict[Verdict, str] = {
    "upcast-from-bf16": "bf16_exact", "downcast-from-bf16": "bf16_exact", "upcast-from-fp16": "fp16_exact",
    "fp16-ancestor": "fp16_grid", "fp8-ancestor": "fp8_runs", "fp4-ancestor": "fp4_blocks",
    "on-grid": "grid",
}  # fmt: skip
_CASTS = ("fp32", "fp16", "bf16")

# Largest share of the values outside exact rows that may have as few bits as fp16 keeps. Sums of bf16 values, and tf32, have as few in most
# places, so that some of their rows are exact in fp16 by accident.
_FEW_BITS_ELSEWHERE = 1 / 8

# A few dull runs, such as those of biases, say nothing about the rest.
_DULL_RUNS = 4

# Tests on neighbours
_NARROW = ("fp4_blocks", "fp8_runs")


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict on some values of one dtype, the ancestors that it proves (oldest first), and the evidence."""

    verdict: Verdict
    passed_through: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    fossil_rows: int = 0
    grid: TensorGrid | None = None

    def counts(self, test: str | None) -> tuple[int, int]:
        """Return the numbers of values that tell and pass a test, and of exceptions; for "grid" of groups."""
        if test == "grid" and self.grid is not None:
            return self.grid.groups - self.grid.exceptions, self.grid.exceptions
        return next(((each.distinct, each.exceptions) for each in self.evidence if each.test == test), (0, 0))


def judge(
    values: BitHistogram,
    runs: NDArray[np.int64],
    exact_rows: dict[str, int] | None = None,
    row: int = 0,
) -> Judgement:
    """Judge the values of one dtype.

    values: their histogram; runs: (RUN_COUNTS,), see `numerics.few_significands`; exact_rows: ancestor -> number of rows exact in it, each
    of ``row`` values, which are fossils if the rest is not.
    """
    dtype, of_runs = values.dtype, runs.tolist()
    informative, counts = count_tested(values)
    # Values that are all powers of two, such as those of a norm of ones, are on every grid, which proves nothing.
    narrow = {e.test: e for e in (run_evidence(of_runs, dtype), block_evidence(of_runs, dtype)) if e and informative}
    grid = any(e.proven for e in narrow.values())
    half = sum(of_runs[MANY : TELLING_8 + 1]) / 2
    found = {
        test.name: evidence(test, values, counts[test.name], grid, test.name in _FIXED and of_runs[_FIXED[test.name]] > half)
        for test in TESTS.get(dtype, ())
    }
    if dtype == "F32" and not found["bf16_exact"].proven:
        del found[FP16_IN_BF16.name]
    found |= narrow
    verdict, ancestors = _verdict(dtype, found)
    if verdict == "native" and of_runs[MANY] == 0 and sum(of_runs[DULL : TELLING_8 + 1]) > _DULL_RUNS:
        verdict = "undecided"  # no run looks native, but these tests do not identify the quantization
    fossils = 0
    if verdict == "native":
        rows = {name: count for name, count in (exact_rows or {}).items() if count}
        if "fp16" in rows and not _is_wider(values, sum(rows.values()) * row):
            del rows["fp16"]
        fossils = sum(rows.values())
        if fossils:
            verdict = "mixed"
            ancestors = tuple(dict.fromkeys((*ancestors, *rows)))
    return Judgement(verdict, ancestors, tuple(found.values()), fossils)


def with_grid(judged: Judgement, grid: TensorGrid | None) -> Judgement:
    """Add the grid of a tensor's values. A proven one names the oldest ancestor, more exactly than counts of significands do."""
    if grid is None or not grid.proven:
        return replace(judged, grid=grid)
    later = tuple(name for name in judged.passed_through if name in _CASTS)
    family: dict[str, Verdict] = {"fp8": "fp8-ancestor", "fp4": "fp4-ancestor"}
    verdict = family.get(next((part for part in ("fp8", "fp4") if part in grid.format and "bnb" not in grid.format), ""), "on-grid")
    if judged.verdict in ("upcast-from-bf16", "upcast-from-fp16", "downcast-from-bf16"):
        verdict = judged.verdict
    return replace(judged, verdict=verdict, passed_through=(grid.format, *later), fossil_rows=0, grid=grid)


def _is_wider(values: BitHistogram, exact: int) -> bool:
    """Return whether values have more bits than fp16 keeps, except for the ``exact`` ones, which are in rows of a narrower format."""
    table = bins(values.dtype)
    few, others = values.count(table.exact["tf32"]) - exact, values.count(table.finite_nonzero) - exact
    return few <= _FEW_BITS_ELSEWHERE * others


def _verdict(dtype: str, found: dict[str, Evidence]) -> tuple[Verdict, tuple[str, ...]]:
    def proven(name: str) -> bool:
        return name in found and found[name].proven

    def refuted(name: str) -> bool:
        return name in found and found[name].exceptions > 0

    older = tuple(found[name].format for name in _NARROW if proven(name))  # at most one, because values that prove fp8 refute fp4
    own_name: Verdict = "fp4-ancestor" if proven("fp4_blocks") else "fp8-ancestor"
    on_grid = ("fp16",) if proven("fp16_grid") else ()  # tested for fp32 and bf16
    if proven("bf16_exact"):
        return ("downcast-from-bf16" if dtype == "F16" else "upcast-from-bf16"), (*older, *on_grid, "bf16")
    if proven("fp16_exact"):
        return "upcast-from-fp16", (*older, "fp16")
    if older:
        return own_name, (*older, *(on_grid if dtype == "BF16" else ()))
    narrower = {"F32": ("bf16_exact", "fp16_exact"), "F16": ("bf16_exact",)}.get(dtype, ())
    if on_grid and all(map(refuted, narrower)):
        return "fp16-ancestor", on_grid
    # fp8 values are not tested for a narrower format.
    told = narrower or (("fp16_grid",) if dtype == "BF16" else ())
    return ("native" if told and all(map(refuted, told)) else "undecided"), ()


@dataclass(frozen=True, slots=True)
class Judged:
    """One tensor's dtype, number of parameters and judgement."""

    dtype: str
    parameters: int
    judgement: Judgement


def conclude(tensors: Iterable[Judged], pooled: dict[str, Judgement], parameters: dict[str, int]) -> Lineage:
    """Conclude the lineage of a checkpoint from that of its tensors and of all values of each dtype pooled.

    Tensors decide if their bits do; a dtype all of whose tensors are too small to decide is decided by its pooled values. Tensors that
    disagree make the checkpoint ``mixed``, and so do tensors that decide nothing but hold an exception: one refutes "all passed through".
    Only if all that disagree with the leading verdict together hold at most 0.1% of the parameters (a scalar, a few norms) are they set
    aside: the verdict is then that of the rest, and ``parts`` has what was set aside. Nor do a few tensors decide for
    others without evidence: those with evidence must hold half of the parameters.

    pooled: dtype -> judgement over all its values; parameters: dtype -> number of parameters.
    """
    judged = list(tensors)
    weight: dict[Verdict, int] = {}
    names: dict[Verdict, tuple[str, ...]] = {}
    for dtype, whole in pooled.items():
        own = [t for t in judged if t.dtype == dtype and t.judgement.verdict != "undecided"]
        alike: dict[Verdict, list[Judged]] = {}
        for one in own or [Judged(dtype, parameters[dtype], whole)]:
            if (own_verdict := one.judgement.verdict) != "undecided":
                weight[own_verdict] = weight.get(own_verdict, 0) + one.parameters
                alike.setdefault(own_verdict, []).append(one)
        names |= {own_verdict: _ancestors_of(group) for own_verdict, group in alike.items()}
        if whole.verdict in alike and set(whole.passed_through) >= set(names[whole.verdict]):
            names[whole.verdict] = whole.passed_through  # oldest first; tensors too small to prove an older format do so together
    everything = sum(one.parameters for one in judged)
    verdict: Verdict = max(weight, key=lambda v: weight[v], default="undecided")
    leads, others = weight.get(verdict, 0), sum(weight.values()) - weight.get(verdict, 0)
    test = _TEST_FOR.get(verdict)
    others += sum(one.parameters for one in judged if one.judgement.verdict == "undecided" and one.judgement.counts(test)[1])
    if others > SET_ASIDE * everything:
        verdict = "mixed"
    telling = sum(one.parameters for one in judged if one.judgement.verdict == verdict or one.judgement.counts(test)[0])
    if 2 * (leads if verdict == "native" else telling) < everything and verdict != "mixed":
        verdict = "undecided"
    stored = max(parameters, key=lambda dtype: parameters[dtype])
    if stored not in TESTS and verdict != "mixed":
        verdict = "undecided"  # fp8 values are not tested for a narrower format: their norms must not decide for them
    deciding = names if verdict == "mixed" else {verdict: names.get(verdict, ())}
    ancestors = tuple(dict.fromkeys(name for each in deciding.values() for name in each))
    return Lineage(
        stored=stored,
        passed_through=ancestors,
        verdict=verdict,
        evidence=tuple(e for dtype in sorted(pooled, key=lambda d: -parameters[d]) for e in pooled[dtype].evidence),
        parts=tuple(_parts(judged)),
        fossil_rows=sum(t.judgement.fossil_rows for t in judged),
        telling=telling / max(1, everything),
    )


def _ancestors_of(tensors: Sequence[Judged]) -> tuple[str, ...]:
    """Join the ancestors of tensors with one verdict. Grids count as one ancestor, if all but 0.1% of the parameters are on one."""
    proven = [one.judgement.grid is not None and one.judgement.grid.proven for one in tensors]
    grids = [one for one, on in zip(tensors, proven, strict=True) if on]
    on_grid = sum(one.parameters for one in grids) >= (1 - SET_ASIDE) * sum(one.parameters for one in tensors)
    formats = {one.judgement.passed_through[0]: None for one in grids}
    rest = [name for one, on in zip(tensors, proven, strict=True) for name in one.judgement.passed_through[on:]]
    return tuple(dict.fromkeys(("/".join(formats),) * bool(formats and on_grid) + tuple(rest)))


def _parts(judged: Sequence[Judged]) -> list[Part]:
    by_verdict: dict[Verdict, list[int]] = {}
    for one in judged:
        by_verdict.setdefault(one.judgement.verdict, []).append(one.parameters)
    parts = [Part(verdict=verdict, tensors=len(sizes), parameters=sum(sizes)) for verdict, sizes in by_verdict.items()]
    return sorted(parts, key=lambda part: -part.parameters)
