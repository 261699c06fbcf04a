"""Sentences that answer dtype detection, the advice that follows, and the limits of the answer."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from analyzers import limits
from analyzers.base import NextStep
from analyzers.checkpoints import DTYPE_BITS, Checkpoint, account_notes
from analyzers.checkpoints.stated_dtype import TORCH_NAMES
from analyzers.coverage import unseen
from analyzers.formatting import listed, plural, share, size
from analyzers.grids.tensor_grid import describe
from analyzers.tensor_words import dtype_name, format_name, role_plural

if TYPE_CHECKING:
    from analyzers.dtype_detection.collect import Chosen
    from analyzers.dtype_detection.report import DtypeReport, Lineage

_TORCH = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}
# Below twice the least, and from twice the largest on, the bins of a histogram do not tell the exponent of 32- and 64-bit floats.
LEAST_EXPONENT, LARGEST_EXPONENT = -134, 127
# Share of the parameters that may be on no grid although "these weights" are; norms are. Most grids that a sentence names
_SET_ASIDE, _MOST_GRIDS = 0.001, 3
# Verdicts that name no ancestor, in words.
NOTHING_PROVEN = {"native": "nothing narrower", "undecided": "undecided"}
# The repository of the labelled models and of the rule of thumb, and what an answer takes from a source, by its basis.
SOURCE = "stas00/ml-ways"
SOURCES = {"label": "source", "family": "labels", "classifier": "rule"}
BITS = {name: DTYPE_BITS[dtype] for dtype in TORCH_NAMES for name in (dtype, dtype_name(dtype))}


def headline(report: "DtypeReport", trained: str = "") -> str:
    """State what is wrong, the training precision and its basis, what the values are, and how far that reaches.

    trained: replaces the sentence on the training precision.
    """
    return " ".join(filter(None, (_wrong(report), on_grids(report), trained or _trained(report), _held(report), report.reach())))


def stored_dtypes(report: "DtypeReport") -> str:
    """Return the dtypes of the tensors that are stored, without those that a merge computes."""
    return " ".join(row.dtype for row in report.storage if not row.computed) or "nothing"


def on_grids(report: "DtypeReport") -> str:
    """State the grids that hold for all values read of some tensors, what storing those so would save, and what is on none; or nothing."""
    proven = [grid for grid in report.grids if grid.proven]
    if not proven:
        return ""
    share_on = sum(grid.parameters for grid in proven) / max(1, report.selected_parameters)
    whole, exact = share_on >= 1 - _SET_ASIDE, report.extremes.exact
    stored = listed([dtype_name(dtype) for dtype in dict.fromkeys(grid.stored for grid in proven)])
    which = f"These {stored} weights" if whole and report.whole else f"{share(share_on)} of the weights, stored in {stored},"
    roles: dict[str, dict[str, None]] = {}
    for grid in proven:
        roles.setdefault(describe(grid), {}).update(dict.fromkeys(map(role_plural, grid.roles)))
    alone = whole and len(roles) == 1
    names = [name if alone else f"{name} ({listed(list(own))})" for name, own in roles.items()][:_MOST_GRIDS]
    names += ["on other grids"] * (len(roles) > _MOST_GRIDS)
    others = [f"part of {role}" if any(role in own for own in roles.values()) else role for role in map(role_plural, report.off_grid)]
    left = f" No grid is proven for {listed(others)}." if others else ""
    redundant, of_all = sum(grid.redundant_bytes for grid in proven), sum(row.bytes for row in report.storage)
    seen = "" if exact else f", by all groups read of {plural(sum(grid.tensors for grid in proven), 'tensor')}"
    return f"{which} are {listed(names)}{seen}: {'' if exact else 'about '}{size(redundant)} of {size(of_all)} are redundant.{left}"


def _wrong(report: "DtypeReport") -> str:
    """Say what makes the weights unusable, everywhere or in fp16; empty if nothing does."""
    counts, least = report.counts, "" if report.extremes.exact else "at least "
    if counts.nan or counts.inf:
        return f"Broken: {least}{_not_finite(report)}."
    if counts.fp16_overflow:
        become = plural(counts.fp16_overflow, "weight is too large and becomes", "weights are too large and become")
        return f"Not safe in fp16: {least}{become} infinite."
    return ""


def _not_finite(report: "DtypeReport") -> str:
    """Count the weights that are not finite: ``2 weights are NaN``."""
    kinds = {"NaN": report.counts.nan, "infinite": report.counts.inf}
    return f"{plural(sum(kinds.values()), 'weight is', 'weights are')} {' or '.join(kind for kind, count in kinds.items() if count)}"


def _trained(report: "DtypeReport") -> str:
    training = report.training
    if training.basis == "label":
        return f"Trained in {training.verdict} ({'known' if report.checkpoint.ref.startswith('sample:') else 'documented'})."
    if claimed(report):
        return f"Probably trained in {training.verdict} (inferred)."
    if report.outdated and training.verdict != "undecided":
        return "An older version of the analysis inferred the training precision: run it again."
    why = f" {undecided(report.lineage)}" if training.basis in ("classifier", "lineage") else ""
    return f"The training precision cannot be told from the weights.{why}"


def undecided(lineage: "Lineage") -> str:
    """Say in a sentence why the stored values do not tell how they were trained."""
    own = dtype_name(lineage.stored)
    held = own if lineage.verdict == "mixed" or not lineage.passed_through else format_name(lineage.passed_through[-1])
    return f"Every kind of training {'writes fp32 masters' if held in ('fp32', 'fp64') else f'can be saved in {held}'}."


def claimed(report: "DtypeReport") -> bool:
    """Return whether the training precision is inferred. What an older version of the analysis inferred is not repeated."""
    return report.training.verdict != "undecided" and not report.outdated


def _held(report: "DtypeReport") -> str:
    stored, ancestor = dtype_name(report.lineage.stored), _ancestor(report)
    seen, bounded = "" if report.extremes.exact and report.whole else " read", _bounded(report)
    if report.lineage.verdict == "mixed":
        return "Its tensors have different histories."
    if not ancestor and any(row.computed for row in report.storage):
        merged = sum(row.parameters for row in report.storage if row.computed) / max(1, sum(row.parameters for row in report.storage))
        others = listed([dtype_name(dtype) for dtype in dict.fromkeys(row.dtype for row in report.storage if not row.computed)])
        return f"Merging computes {share(merged)} of its weights, in fp32{others and f'; the others are stored in {others}'}."
    if not ancestor:
        if left := _left_on_grids(report):
            return f"It is stored in {stored}. No narrower format holds all of the values{seen}, but {left}."
        if report.lineage.verdict == "native":
            return f"It is stored in {stored}, and no narrower format survives in the values{seen}{bounded}."
        return f"It is stored in {stored}; the values{seen} do not tell what they were before."
    if held := narrower(report):
        if seen:
            lost = f"saving it as {held} should lose nothing" if report.whole else "of the others nothing is known"
            return f"Every value read from the {stored} file is a {held} value{bounded}: {lost}."
        return f"The {stored} file holds only {held} values: saving it as {held} loses nothing."
    return f"{_which(report)} {stored} values{seen} have passed through {ancestor}{bounded}."


def _left_on_grids(report: "DtypeReport") -> str:
    """Say how many groups of tensors that are not on a grid as a whole are on one, as after training a few of the values; or nothing."""
    rows = [grid for grid in report.grids if not grid.proven]
    if not rows:
        return ""
    tested, off, aside = (sum(getattr(grid, name) for grid in rows) for name in ("groups_tested", "exceptions", "outliers"))
    outliers = f", but for {plural(aside, 'value')}" if aside else ""
    tensors = plural(sum(grid.tensors for grid in rows), "tensor")
    read = "" if report.extremes.exact else " read"
    names = list(dict.fromkeys(map(describe, rows)))
    named = f"{listed(names[:_MOST_GRIDS])}{' and others' * (len(names) > _MOST_GRIDS)}"
    return f"{share(1 - off / tested)} of the groups{read} of {tensors} lie on the grid of a quantizer ({named}){outliers}"


def _which(report: "DtypeReport") -> str:
    """Choose the quantifier: not "All" if some of the values are none of the ancestor's, though the stored format holds each of those."""
    lineage = report.lineage
    if lineage.verdict == "on-grid" and _ancestor(report) not in _TORCH and not all(part.verdict == "on-grid" for part in lineage.parts):
        return "Nearly all"  # norms and the like are left aside
    if (
        lineage.stored == "F16"
        or getattr(report.representable, lineage.passed_through[-1], None) in (None, 1)
        or _ancestor(report) not in _TORCH
    ):
        return "All"
    return "Nearly all"


def _bounded(report: "DtypeReport") -> str:
    """Say what a sample leaves open, for a sentence on all values read."""
    return f" (others: {unseen(report.blocks, report.unseen)})" if report.blocks else ""


def narrower(report: "DtypeReport") -> str:
    """Return the format that provably holds every value (read) of a wider file: "bf16", "fp16", or, for fp64, "fp32"; else empty."""
    ancestor, lineage = _ancestor(report), report.lineage
    if ancestor not in _TORCH or BITS.get(lineage.stored, 0) <= BITS[ancestor]:
        return ""
    for held in (ancestor, "bf16", "fp16") if lineage.stored == "F64" else (ancestor,):
        if held != "fp32" and getattr(report.representable, held) == 1:
            return held
    of_fp32 = [each for each in lineage.evidence if each.test == "fp32_exact"]
    return "fp32" if of_fp32 and not any(each.exceptions for each in of_fp32) else ""


def lineage_answer(lineage: "Lineage") -> str:
    """Say in a few words which formats the values have provably passed through."""
    grids = dict.fromkeys(format_name(e.format) for e in lineage.evidence if e.test == "grid" and e.proven)
    if lineage.verdict == "mixed" and grids:
        return f"mixed, in part {' and '.join(list(grids)[:_MOST_GRIDS])}"
    if lineage.verdict == "mixed" or not lineage.passed_through:
        return NOTHING_PROVEN.get(lineage.verdict, "mixed")
    return " → ".join((*map(format_name, lineage.passed_through), dtype_name(lineage.stored)))


def fp16_answer(level: str, whole: bool) -> str:
    """Say in two or three words whether the weights fit fp16. whole: whether all were looked at."""
    fits = "fit" if whole else "read fit"
    return {
        "fits": f"weights {fits}",
        "caution": f"weights {fits}, with losses",
        "overflow": "weights overflow",
        "broken": "weights not finite",
    }.get(level, "cannot tell")


def training_answer(report: "DtypeReport") -> str:
    """Say in two or three words in which precision it was trained, by the report alone."""
    if report.training.basis == "label":
        return report.training.verdict
    if report.outdated and report.training.verdict != "undecided":
        return "run it again"
    return f"{report.training.verdict}, likely" if claimed(report) else "cannot tell"


def _ancestor(report: "DtypeReport") -> str:
    """Return the last format that the stored values have provably passed through; empty if none is proven."""
    return format_name(report.lineage.passed_through[-1]) if report.lineage.passed_through else ""


def next_step(report: "DtypeReport") -> NextStep:
    """Advise, and link to the page that measures what precision does to activations."""
    return NextStep(_advice(report), "precision", report.checkpoint.ref)


def _advice(report: "DtypeReport") -> str:
    """Say how to load the weights, or that they are broken."""
    least = "" if report.extremes.exact else "at least "
    if report.counts.nan or report.counts.inf:
        without = " and ".join(kind for kind, count in {"NaN": report.counts.nan, "infinities": report.counts.inf}.items() if count)
        return f"{least.capitalize()}{_not_finite(report)}: go back to a checkpoint without {without}."
    overflow = report.counts.fp16_overflow
    if overflow:
        return f"Do not run it in fp16: {least}{plural(overflow, 'weight')} would become infinite. Use bf16 or fp32."
    if (held := narrower(report)) and not report.whole:
        return f"Look at the rest before you load it with dtype={_TORCH[held]}: the weights read keep their values, others may not."
    if held:
        saved = "half" if BITS[report.lineage.stored] == 2 * BITS[held] else "a quarter of"
        same = "the same values" if report.extremes.exact else f"the values read stay the same{_bounded(report)}"
        return f"Load it with dtype={_TORCH[held]}: {saved} the memory, {same}."
    if report.lineage.stored == "F16" and _ancestor(report) == "bf16" and report.representable.bf16 == 1 and report.whole:
        same = "the same values" if report.extremes.exact else f"the values read stay the same{_bounded(report)}"
        return f"Load it with dtype=torch.bfloat16: {same}, and activations cannot overflow as in fp16."
    if report.fp16_risk.level == "caution":
        return "Avoid fp16 unless you measured the effect: some weights become zero or lose digits."
    if report.fp16_risk.level == "fits" and report.lineage.stored != "F16":
        seen = "" if report.extremes.exact and report.whole else " read"
        return f"Measure the activations before you run it in fp16: the weights{seen} fit{_bounded(report)}."
    return "Load it as it is stored, and measure what rounding does to its activations."


def notes(checkpoint: Checkpoint, chosen: "Chosen", exact: bool, aggregated: bool, tiny: int, largest: float | None) -> Iterator[str]:
    """Yield the notes, those on the checkpoint's files first.

    tiny: nonzero values below 2^(LEAST_EXPONENT + 1); largest: finite magnitude.
    """
    yield from account_notes(checkpoint, chosen.tensors)
    if not exact:
        yield (
            "Quick mode read a sample: extremes and counts describe the sample, norms of partly read tensors are scaled up, "
            "shares are estimates with 95% intervals."
        )
    if tiny:
        are = "nonzero value is", "nonzero values are"
        yield f"{plural(tiny, *are)} below 2^{LEAST_EXPONENT + 1}: the spectrum of exponents counts all of that at 2^{LEAST_EXPONENT}."
    if largest is not None and largest >= 2.0 ** (LARGEST_EXPONENT + 1):
        yield f"The spectrum of exponents counts values from 2^{LARGEST_EXPONENT + 1} on at 2^{LARGEST_EXPONENT}."
    if aggregated:
        yield f"More than {limits.REPORT_TENSORS:,} tensors: rows are aggregated by layer, role and dtype."
