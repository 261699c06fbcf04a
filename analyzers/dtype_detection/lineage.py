"""Concludes from evidence which formats stored values have provably passed through.

``native`` means that no narrower ancestor survives in the bits. It is a fact about the file and no proof about training: fp32 masters saved
as bf16 and pure bf16 training look the same.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from analyzers import formatting
from analyzers.dtype_detection.evidence import (
    FEW_SUBNORMALS,
    FP16_IN_BF16,
    PROOF_LOG10,
    TESTS,
    block_evidence,
    count_tested,
    evidence,
    run_evidence,
)  # fmt: skip
from analyzers.dtype_detection.report import VERDICT_WORDS, Evidence, Lineage, Part, Verdict
from analyzers.formatting import plural
from analyzers.grids import TensorGrid, describe
from analyzers.numerics import BitHistogram, bins
from analyzers.numerics.few_significands import DULL, FIXED_BF16, FIXED_FP16, FIXED_FP32, MANY, TELLING_8

FORMAT_OF = {
    "F64": "fp64", "F32": "fp32", "F16": "fp16", "BF16": "bf16", "F8_E4M3": "fp8_e4m3", "F8_E5M2": "fp8_e5m2",
    "F8_E4M3FNUZ": "fp8_e4m3fnuz", "F8_E5M2FNUZ": "fp8_e5m2fnuz",
}  # fmt: skip

# Tensors that differ from all the others are set aside if they together hold at most this share of the parameters.
SET_ASIDE = 0.001

# Counters of runs that hold integers or fixed point of no more bits than a format keeps, and the test for each verdict
_FIXED = {"bf16_exact": FIXED_BF16, "fp16_exact": FIXED_FP16, "fp32_exact": FIXED_FP32}
_TEST_FOR: dict[Verdict, str] = {
    "upcast-from-bf16": "bf16_exact", "downcast-from-bf16": "bf16_exact", "upcast-from-fp16": "fp16_exact",
    "upcast-from-fp32": "fp32_exact", "fp16-ancestor": "fp16_grid", "fp8-ancestor": "fp8_runs", "fp4-ancestor": "fp4_blocks",
    "on-grid": "grid",
}  # fmt: skip
_CASTS = ("fp32", "fp16", "bf16")
_FIXED_POINT = "passes, as integers and fixed point do, which most runs of 128 hold"
_REPEATED = "passes, but within each tensor too few different values do"
_FEW_LEVELS = "passes, but most runs of 128 hold few different values, as constants and dequantized integers do"

# Largest share of the values outside exact rows that may have as few bits as fp16 keeps. Sums of bf16 values, and tf32, have as few in most
# places, so that some of their rows are exact in fp16 by accident.
_FEW_BITS_ELSEWHERE = 1 / 8

# A few dull runs, such as those of biases, say nothing about the rest.
_DULL_RUNS = 4

# Tests on neighbours, and the explanation if one of them finds neither an exception nor a proof
_NARROW = ("fp4_blocks", "fp8_runs")
_UNSURE = {
    "fp4_blocks": "its blocks of 16 lie on the 4-bit float grid, but integers of few steps do too, and too few of them reach from the "
    "smallest value of that grid to its largest",
    "fp8_runs": "its runs of 128 have no more significands than fp8 leaves, but are within reach of integers with scales too",
}
_ELEVEN_BITS = (
    "its values have at most 11 significant bits, as those of fp16, of tf32 and of means of a few bf16 values do, and too few of them are "
    "below 2^-14, where fp16 has fewer"
)


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict on some values of one dtype, the ancestors that it proves (oldest first), and the evidence."""

    verdict: Verdict
    passed_through: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    fossil_rows: int = 0
    grid: TensorGrid | None = None


def judge(
    values: BitHistogram,
    runs: NDArray[np.int64],
    exact_rows: dict[str, int] | None = None,
    row: int = 0,
    parts: Sequence[Judgement] | None = None,
) -> Judgement:
    """Judge the values of one dtype.

    values: their histogram; runs: (RUN_COUNTS,), see `numerics.few_significands`; exact_rows: ancestor -> number of rows exact in it, each
    of ``row`` values, which are fossils if the rest is not. parts: judgements of the single tensors that ``values`` pools: each tensor may
    have its own grid, so the odds are no better than the product of theirs.
    """
    dtype, of_runs = values.dtype, runs.tolist()
    informative, counts = count_tested(values)
    # Values that are all powers of two, such as those of a norm of ones, are on every grid, which proves nothing.
    narrow = {e.test: e for e in (run_evidence(of_runs, dtype), block_evidence(of_runs, dtype)) if e and informative}
    grid = any(e.proven for e in narrow.values())
    found = {test.name: evidence(test, values, counts[test.name], grid) for test in TESTS.get(dtype, ())}
    if dtype == "F32" and not found["bf16_exact"].proven:
        del found[FP16_IN_BF16.name]
    counted = sum(of_runs[MANY : TELLING_8 + 1])
    for name, proof in found.items():
        odds = None if parts is None else sum(e.log10_chance for part in parts for e in part.evidence if e.test == name)
        doubt = ""
        if of_runs[DULL] > max(counted - of_runs[DULL], _DULL_RUNS):  # no independent values
            doubt = _FEW_LEVELS
        elif name in _FIXED and 2 * of_runs[_FIXED[name]] > counted:
            doubt = _FIXED_POINT
        elif odds is not None and odds > PROOF_LOG10:
            doubt = _REPEATED
        if proof.proven and doubt:
            found[name] = replace(proof, proven=False, conclusion=doubt)
    found |= narrow
    verdict, ancestors = _verdict(dtype, found)
    _qualify(found)
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


def with_grid(judged: Judgement, dtype: str, grid: TensorGrid | None) -> Judgement:
    """Add the grid of a tensor's values. A proven one names the oldest ancestor, more exactly than counts of significands do."""
    if grid is None:
        return judged
    own = replace(judged, evidence=(*judged.evidence, grid_evidence([grid], dtype)), grid=grid)
    if not grid.proven:
        return own
    later = tuple(name for name in judged.passed_through if name in _CASTS)
    family: dict[str, Verdict] = {"fp8": "fp8-ancestor", "fp4": "fp4-ancestor"}
    verdict = family.get(next((part for part in ("fp8", "fp4") if part in grid.format and "bnb" not in grid.format), ""), "on-grid")
    narrowed = judged.verdict in ("upcast-from-bf16", "upcast-from-fp16", "upcast-from-fp32", "downcast-from-bf16")
    return replace(own, verdict=judged.verdict if narrowed else verdict, passed_through=(grid.format, *later), fossil_rows=0)


def grid_evidence(grids: Sequence[TensorGrid], stored: str) -> Evidence:
    """Sum the evidence of tensors on the same grid."""
    first, tested, failed = grids[0], sum(grid.groups for grid in grids), sum(grid.exceptions for grid in grids)
    proven = all(grid.proven for grid in grids)
    aside = sum(grid.outliers for grid in grids)
    if proven:
        conclusion = f"was {describe(first)} before"
    elif aside and not failed:
        conclusion = f"on the grid except for {plural(aside, 'value')}"
    else:
        conclusion = f"{formatting.share((tested - failed) / tested)} of the groups are still on the grid, far more than by chance"
        conclusion += "; fewer bits in larger groups may have been its grid"
    return Evidence(
        test="grid",
        question=f"Does a scale explain each group as {describe(first)}?",
        format=first.format,
        stored=stored,
        unit="groups",
        tested=tested,
        distinct=tested - failed,
        exceptions=failed,
        share=(tested - failed) / tested,
        chance=max(grid.chance for grid in grids),
        log10_chance=max(max(grid.log10_chance for grid in grids), -1e9),
        proven=proven,
        conclusion=conclusion,
    )


def _is_wider(values: BitHistogram, exact: int) -> bool:
    """Return whether values have more bits than fp16 keeps, except for the ``exact`` ones, which are in rows of a narrower format."""
    table = bins(values.dtype)
    few, others = values.count(table.exact["tf32"]) - exact, values.count(table.finite_nonzero) - exact
    return few <= _FEW_BITS_ELSEWHERE * others


def _qualify(found: dict[str, Evidence]) -> None:
    """Qualify findings that follow from another one: bf16 values are mostly exact in fp16, fp4 values in both."""
    for narrow in [e for e in found.values() if e.test in _NARROW and e.proven]:
        for follows in [e for e in found.values() if e.test not in _NARROW and e.tested and not e.exceptions and not e.proven]:
            found[follows.test] = replace(follows, conclusion=f"passes, as values of {narrow.format} may without it")
    for proven, other in (("bf16_exact", "fp16_exact"), ("fp16_exact", "bf16_exact")):
        if proven in found and other in found and found[proven].proven:
            found[other] = replace(found[other], proven=False, conclusion=f"expected of {found[proven].format} values")
            return


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
    if proven("fp32_exact"):
        return "upcast-from-fp32", (*older, "fp32")
    if older:
        return own_name, (*older, *(on_grid if dtype == "BF16" else ()))
    narrower = {"F64": ("fp32_exact",), "F32": ("bf16_exact", "fp16_exact"), "F16": ("bf16_exact",)}.get(dtype, ())
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


def conclude(tensors: Iterable[Judged], pooled: dict[str, Judgement], parameters: dict[str, int], unseen: float | None = None) -> Lineage:
    """Conclude the lineage of a checkpoint from that of its tensors and of all values of each dtype pooled.

    Tensors decide if their bits do; a dtype all of whose tensors are too small to decide is decided by its pooled values. Tensors that
    disagree make the checkpoint ``mixed``, and so do tensors that decide nothing but hold an exception: one refutes "all passed through".
    Only if all that disagree with the leading verdict together hold at most 0.1% of the parameters (a scalar, a few norms) are they set
    aside: the verdict is then that of the rest, and the statement and ``parts`` say what was set aside. Nor do a few tensors decide for
    others without evidence: those with evidence must hold half of the parameters.

    pooled: dtype -> judgement over all its values; parameters: dtype -> number of parameters. unseen: for a sample, the bound with 95%
    confidence on the share of all values in a kind of block of which none was read.
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
    everything = sum(one.parameters for one in judged)
    verdict: Verdict = max(weight, key=lambda v: weight[v], default="undecided")
    leads, others = weight.get(verdict, 0), sum(weight.values()) - weight.get(verdict, 0)
    test = _TEST_FOR.get(verdict)
    others += sum(
        one.parameters
        for one in judged
        if one.judgement.verdict == "undecided" and any(e.test == test and e.exceptions for e in one.judgement.evidence)
    )
    if others > SET_ASIDE * everything:
        verdict = "mixed"
    telling = sum(
        one.parameters
        for one in judged
        if one.judgement.verdict == verdict or any(e.test == test and e.distinct for e in one.judgement.evidence)
    )
    if 2 * (leads if verdict == "native" else telling) < everything and verdict != "mixed":
        verdict = "undecided"
    stored = max(parameters, key=lambda dtype: parameters[dtype])
    if stored not in TESTS and verdict != "mixed":
        verdict = "undecided"  # fp8 values are not tested for a narrower format: their norms must not decide for them
    deciding = names if verdict == "mixed" else {verdict: names.get(verdict, ())}
    ancestors = tuple(dict.fromkeys(name for each in deciding.values() for name in each))
    parts = _parts(judged)
    fossils = sum(t.judgement.fossil_rows for t in judged)
    found = tuple(e for dtype in sorted(pooled, key=lambda d: -parameters[d]) for e in pooled[dtype].evidence)
    read = "" if unseen is None else " read"
    found += _grid_evidence(judged)
    statement = _statement(verdict, stored, ancestors, parts, len(judged), fossils, found, read)
    if unseen is not None and verdict not in ("mixed", "undecided"):
        statement += f" Blocks of another history, of which none was read, are at most {formatting.share(unseen)} of all (95% confidence)."
    if ancestors and verdict != "mixed" and everything - telling > SET_ASIDE * everything:
        statement += f" Values that tell are in tensors of {formatting.share(telling / everything)} of the parameters."
    if verdict != "mixed":
        statement += _besides([part for part in parts if part.verdict not in (verdict, "undecided")], everything, read)
    return Lineage(
        stored=stored,
        passed_through=ancestors,
        verdict=verdict,
        evidence=found,
        parts=tuple(parts),
        fossil_rows=fossils,
        statement=statement,
    )


def _grid_evidence(judged: Sequence[Judged]) -> tuple[Evidence, ...]:
    """Build a row for each grid and stored dtype, proven ones first."""
    by_grid: dict[tuple[bool, str, str], list[TensorGrid]] = {}
    for one in judged:
        if (grid := one.judgement.grid) is not None:
            by_grid.setdefault((not grid.proven, one.dtype, describe(grid)), []).append(grid)
    return tuple(grid_evidence(grids, dtype) for (_, dtype, _), grids in sorted(by_grid.items(), key=lambda item: item[0]))


def _ancestors_of(tensors: Sequence[Judged]) -> tuple[str, ...]:
    """Join the ancestors of tensors with one verdict. Grids count as one ancestor, if all but 0.1% of the parameters are on one."""
    proven = [one.judgement.grid is not None and one.judgement.grid.proven for one in tensors]
    grids = [one for one, on in zip(tensors, proven, strict=True) if on]
    on_grid = sum(one.parameters for one in grids) >= (1 - SET_ASIDE) * sum(one.parameters for one in tensors)
    formats = {one.judgement.passed_through[0]: None for one in grids}
    rest = [name for one, on in zip(tensors, proven, strict=True) for name in one.judgement.passed_through[on:]]
    return tuple(dict.fromkeys(("/".join(formats),) * bool(formats and on_grid) + tuple(rest)))


def _besides(parts: Sequence[Part], everything: int, read: str) -> str:
    """Write a sentence on the tensors that did not decide. read: as in `_statement`."""
    if not parts:
        return ""
    said = ", ".join(f"{plural(part.tensors, 'tensor')} ({VERDICT_WORDS[part.verdict]})" for part in parts)
    seen = ", by what was read" if read else ""
    of_all = formatting.share(sum(part.parameters for part in parts) / max(1, everything))
    return f" Judged differently: {said}, {of_all} of the parameters{seen}."


def _parts(judged: Sequence[Judged]) -> list[Part]:
    by_verdict: dict[Verdict, list[int]] = {}
    for one in judged:
        by_verdict.setdefault(one.judgement.verdict, []).append(one.parameters)
    parts = [Part(verdict=verdict, tensors=len(sizes), parameters=sum(sizes)) for verdict, sizes in by_verdict.items()]
    return sorted(parts, key=lambda part: -part.parameters)


def _statement(
    verdict: Verdict,
    stored: str,
    ancestors: tuple[str, ...],
    parts: list[Part],
    tensors: int,
    fossils: int,
    found: Sequence[Evidence],
    read: str,
) -> str:
    """Write the verdict as a sentence. read: " read" if it is about a sample, else an empty text."""
    here = FORMAT_OF.get(stored, stored)
    if verdict in ("native", "undecided") and any(e.test == "grid" and not e.proven for e in found):
        return f"No narrower format holds all of the {here} values{read}, but groups of them lie on the grid of a quantizer (see evidence)."
    if verdict == "mixed":
        whole = max(1, sum(part.parameters for part in parts))
        shares = ", ".join(f"{VERDICT_WORDS[part.verdict]} {formatting.share(part.parameters / whole)}" for part in parts)
        one = f"row{read} is exact in a narrower format, as one never updated since is"
        many = f"rows{read} are exact in a narrower format, as rows never updated since are"
        rows = f"; {plural(fossils, one, many)}" if fossils else ""
        judged = ", each tensor judged by what was read of it" if read else ""
        return f"Parts of it have different histories: {shares} of the parameters{judged}{rows}."
    if verdict == "undecided" and stored not in TESTS:
        return f"No narrower format is tested for {here} values."
    unsure = next((e for e in found if e.test in _NARROW and not e.exceptions and not e.proven), None)
    if verdict == "undecided" and any(e.conclusion == FEW_SUBNORMALS and e.stored == stored for e in found):
        return f"What preceded {here} is undecided: {_ELEVEN_BITS}."
    if verdict == "undecided" and unsure:
        return f"What preceded {FORMAT_OF[unsure.stored]} is undecided: {_UNSURE[unsure.test]}."
    if verdict == "undecided" and any(part.verdict != "undecided" for part in parts):
        return f"Most of the parameters are in tensors without values that tell what came before {here}."
    if verdict == "undecided":
        return f"Too few different informative values to tell what came before {here}."
    if verdict == "native":
        tested = max((e for e in found if e.exceptions and e.stored == stored), key=lambda e: e.tested, default=None)
        seen = ""
        if tested:
            rule = "rules" if tested.exceptions == 1 else "rule"
            seen = f": {tested.exceptions:,} of {plural(tested.tested, tested.unit[:-1])} {rule} {tested.format} out"
        return f"No narrower format survives in the {here} values{read}{seen}. A wider one is never excluded."
    if verdict == "on-grid":
        return f"{' then '.join((*ancestors, here))}: every group{read} of these tensors has a scale that explains all of its values."
    narrow = verdict in ("fp4-ancestor", "fp8-ancestor")
    proof = next((e for e in found if e.proven and (e.test in _NARROW or not narrow)), None)
    if "fp16" in ancestors and "bf16" in ancestors:
        path = f"fp16 and bf16, in an unknown order, then {here}"
    else:
        path = " then ".join((*ancestors, here))
    if proof is None:
        part = next(part for part in parts if part.verdict == verdict)
        others = "; the others are undecided" if part.tensors < tensors else ""
        return f"{path}: proven in {part.tensors:,} of {plural(tensors, 'tensor')}{others}."
    if proof.test == "fp8_runs":
        return (
            f"{path}: of {plural(proof.tested, 'run')} of 128 neighbours none has more significands than {proof.format} leaves, "
            f"and {proof.distinct:,} reach deeper than integers do."
        )
    if proof.test == "fp4_blocks":
        return (
            f"{path}: of {plural(proof.tested, 'block')} of 16 neighbours none is off the 4-bit float grid, "
            f"and {proof.distinct:,} reach from its smallest to its largest."
        )
    return (
        f"{path}: {plural(proof.tested, proof.unit[:-1])} tested, none an exception. That so many different values of one grid "
        f"({proof.distinct:,}) are all exact in {proof.format} by accident has odds of 1 in 10^{-proof.log10_chance:.0f}."
    )
