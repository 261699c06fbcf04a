"""Concludes from evidence which formats stored values have provably passed through.

``native`` means that no narrower ancestor survives in the bits. It is a fact about the file and no proof about training: fp32 masters saved
as bf16 and pure bf16 training look the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from analyzers.dtype.count import ExactRows
from analyzers.dtype.evidence import FP16_IN_BF16, PROOF_DISTINCT, TESTS, count_tested, evidence
from analyzers.dtype.rows import Evidence, Lineage, Part, Verdict
from analyzers.grids import OnGrids, TensorGrid
from analyzers.numerics import BitHistogram, bins

# Tensors that differ from all the others are set aside if they together hold at most this share of the parameters.
SET_ASIDE = 0.001

# The test for each verdict
_TEST_FOR: dict[Verdict, str] = {
    "upcast-from-bf16": "bf16_exact", "downcast-from-bf16": "bf16_exact", "upcast-from-fp16": "fp16_exact",
    "fp16-ancestor": "fp16_grid", "fp8-ancestor": "grid", "fp4-ancestor": "grid", "on-grid": "grid",
}  # fmt: skip
_CAST: tuple[Verdict, ...] = ("upcast-from-bf16", "upcast-from-fp16", "downcast-from-bf16")

# Largest share of the values outside exact rows that may have as few bits as fp16 keeps. Sums of bf16 values, and tf32, have as few in most
# places, so that some of their rows are exact in fp16 by accident.
_FEW_BITS_ELSEWHERE = 1 / 8

# Times that each of the few magnitudes has to occur, so that their pattern is not chance
_REPEATS = 16

_NO_GRIDS = OnGrids()


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict on some values of one dtype, the ancestors that it proves (oldest first), and the evidence.

    dtype, parameters: of the tensor that it is about.
    """

    verdict: Verdict
    passed_through: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    fossil_rows: int = 0
    on_grids: OnGrids = _NO_GRIDS
    dtype: str = ""
    parameters: int = 0

    @property
    def grid(self) -> TensorGrid | None:
        """The grid that the values are on, or most of their groups."""
        return self.on_grids.grid

    def counts(self, test: str | None) -> tuple[int, int]:
        """Return the numbers of values that tell and pass a test, and of exceptions; for "grid" of groups."""
        if test == "grid" and self.grid is not None:
            return self.grid.groups - self.grid.exceptions, self.grid.exceptions
        return next(((each.distinct, each.exceptions) for each in self.evidence if each.test == test), (0, 0))


def judge(values: BitHistogram, on_grids: OnGrids, exact: ExactRows, row: int = 0) -> Judgement:
    """Judge the values of one dtype.

    values: their histogram; on_grids: what quantizers may have left of them; exact: rows that a narrower format holds, of ``row`` values
    each, which are fossils if the rest is not. Values that are all exact, in rows most of which are unlike a float's, are integers with
    scales.
    """
    counts, like_floats = count_tested(values), {"bf16_exact": exact.bf16, "fp16_exact": exact.bf16 + exact.fp16}
    found = {}
    for test in TESTS.get(values.dtype, ()):
        integers = on_grids.fixed_point or 2 * like_floats.get(test.name, exact.examined) < exact.examined
        found[test.name] = evidence(test, values, counts[test.name], on_grids.scaled_floats, integers)
    if values.dtype == "F32" and not found["bf16_exact"].proven:
        del found[FP16_IN_BF16.name]
    verdict, ancestors = _verdict(values.dtype, found)
    grid, rows = on_grids.grid, {name: count for name, count in (("bf16", exact.bf16), ("fp16", exact.fp16)) if count}
    fossils = 0
    if grid is not None and grid.proven:
        verdict, ancestors = _of_grid(grid, verdict, ancestors)
    elif verdict == "native" and (on_grids.unproven or _repeats_few(values)):
        verdict = "undecided"  # no value looks native, but not enough tell what left them
    elif verdict == "native" and grid is None:  # codes times scales of few bits are exact in some rows by accident
        if "fp16" in rows and not _is_wider(values, sum(rows.values()) * row):
            del rows["fp16"]
        if rows:
            verdict, ancestors, fossils = "mixed", tuple(dict.fromkeys((*ancestors, *rows))), sum(rows.values())
    return Judgement(verdict, ancestors, tuple(found.values()), fossils, on_grids)


def _repeats_few(values: BitHistogram) -> bool:
    """Return whether there are few different magnitudes among many values, as of ternary weights."""
    distinct = values.distinct(bins(values.dtype).finite_nonzero)
    return distinct < PROOF_DISTINCT and values.values > _REPEATS * distinct


def _of_grid(grid: TensorGrid, verdict: Verdict, ancestors: tuple[str, ...]) -> tuple[Verdict, tuple[str, ...]]:
    """Return the verdict on values that are proven to be on a grid, which is their oldest ancestor."""
    if verdict not in _CAST:
        family: dict[str, Verdict] = {"fp8": "fp8-ancestor", "fp4": "fp4-ancestor"}
        verdict = family.get(next((part for part in ("fp8", "fp4") if part in grid.format and "bnb" not in grid.format), ""), "on-grid")
    return verdict, (grid.format, *ancestors)


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

    on_grid = ("fp16",) if proven("fp16_grid") else ()  # tested for fp32 and bf16
    if proven("bf16_exact"):
        return ("downcast-from-bf16" if dtype == "F16" else "upcast-from-bf16"), (*on_grid, "bf16")
    if proven("fp16_exact"):
        return "upcast-from-fp16", ("fp16",)
    narrower = {"F32": ("bf16_exact", "fp16_exact"), "F16": ("bf16_exact",)}.get(dtype, ())
    if on_grid and all(map(refuted, narrower)):
        return "fp16-ancestor", on_grid
    # fp8 values are not tested for a narrower format.
    told = narrower or (("fp16_grid",) if dtype == "BF16" else ())
    return ("native" if told and all(map(refuted, told)) else "undecided"), ()


def on_grids_together(tensors: Sequence[Judgement]) -> OnGrids:
    """Return what the grids of several tensors say of their pooled values: what holds for most of them, or scaled floats in any."""
    found = [(one.on_grids, one.parameters) for one in tensors]
    half = sum(size for _, size in found) / 2
    return OnGrids(
        scaled_floats=any(on.scaled_floats for on, _ in found),
        unproven=sum(size for on, size in found if on.unproven) > half,
        fixed_point=sum(size for on, size in found if on.fixed_point) > half,
    )


def conclude(judged: Sequence[Judgement], pooled: dict[str, Judgement], parameters: dict[str, int]) -> Lineage:
    """Conclude the lineage of a checkpoint from that of its tensors and of all values of each dtype pooled.

    Tensors decide if their bits do; a dtype all of whose tensors are too small to decide is decided by its pooled values. Tensors that
    disagree make the checkpoint ``mixed``, and so do tensors that decide nothing but hold an exception: one refutes "all passed through".
    Only if all that disagree with the leading verdict together hold at most 0.1% of the parameters (a scalar, a few norms) are they set
    aside: the verdict is then that of the rest, and ``parts`` has what was set aside. Nor do a few tensors decide for
    others without evidence: those with evidence must hold half of the parameters.

    pooled: dtype -> judgement over all its values; parameters: dtype -> number of parameters.
    """
    pooled = {dtype: pooled[dtype] for dtype in sorted(pooled, key=lambda name: (-parameters[name], name))}  # whichever was read first
    weight: dict[Verdict, int] = {}
    names: dict[Verdict, tuple[str, ...]] = {}
    for dtype, whole in pooled.items():
        own = [t for t in judged if t.dtype == dtype and t.verdict != "undecided"]
        alike: dict[Verdict, list[Judgement]] = {}
        for one in own or [replace(whole, dtype=dtype, parameters=parameters[dtype])]:
            if (own_verdict := one.verdict) != "undecided":
                weight[own_verdict] = weight.get(own_verdict, 0) + one.parameters
                alike.setdefault(own_verdict, []).append(one)
        names |= {own_verdict: _ancestors_of(group) for own_verdict, group in alike.items()}
        if whole.verdict in alike and set(whole.passed_through) >= set(names[whole.verdict]):
            names[whole.verdict] = whole.passed_through  # oldest first; tensors too small to prove an older format do so together
    everything = sum(one.parameters for one in judged)
    verdict: Verdict = max(weight, key=lambda v: weight[v], default="undecided")
    leads, others = weight.get(verdict, 0), sum(weight.values()) - weight.get(verdict, 0)
    test = _TEST_FOR.get(verdict)
    others += sum(one.parameters for one in judged if one.verdict == "undecided" and one.counts(test)[1])
    if others > SET_ASIDE * everything:
        verdict = "mixed"
    telling = sum(one.parameters for one in judged if one.verdict == verdict or one.counts(test)[0])
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
        evidence=tuple(e for each in pooled.values() for e in each.evidence),
        parts=tuple(_parts(judged)),
        fossil_rows=sum(t.fossil_rows for t in judged),
        telling=telling / max(1, everything),
    )


def _ancestors_of(tensors: Sequence[Judgement]) -> tuple[str, ...]:
    """Join the ancestors of tensors with one verdict. Grids count as one ancestor, if all but 0.1% of the parameters are on one."""
    proven = [one.grid is not None and one.grid.proven for one in tensors]
    grids = [one for one, on in zip(tensors, proven, strict=True) if on]
    on_grid = sum(one.parameters for one in grids) >= (1 - SET_ASIDE) * sum(one.parameters for one in tensors)
    formats = {one.passed_through[0]: None for one in grids}
    rest = [name for one, on in zip(tensors, proven, strict=True) for name in one.passed_through[on:]]
    return tuple(dict.fromkeys(("/".join(formats),) * bool(formats and on_grid) + tuple(rest)))


def _parts(judged: Sequence[Judgement]) -> list[Part]:
    by_verdict: dict[Verdict, list[int]] = {}
    for one in judged:
        by_verdict.setdefault(one.verdict, []).append(one.parameters)
    parts = [Part(verdict=verdict, tensors=len(sizes), parameters=sum(sizes)) for verdict, sizes in by_verdict.items()]
    return sorted(parts, key=lambda part: -part.parameters)
