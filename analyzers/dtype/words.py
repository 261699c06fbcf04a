"""The words of dtype detection: a template per code, and the tiles."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from analyzers.core.formatting import count, listed, magnitude, plural, power, share, size
from analyzers.core.notes import Tile
from analyzers.core.tensor_words import dtype_name, format_name
from analyzers.core.words import Words
from analyzers.dtype.rows import TEST_WORDS, VERDICT_WORDS
from analyzers.grids.first_blocks import FIRST_BLOCKS
from analyzers.grids.tensor_grid import describe

if TYPE_CHECKING:
    from analyzers.dtype.report import DtypeReport
    from analyzers.dtype.rows import Evidence

WORDS = Words(
    {
        "broken": "Broken: {nan:count} NaN and {infinite:count} infinite among {values:#value} tested.",
        "overflow": (
            "Do not run it in fp16: {name:name} reaches {largest:magnitude}, above 65,504, the largest fp16 value; {weights:count} of "
            "{values:#weight} tested become infinite."
        ),
        "on-grid": (
            "Quantized before: {groups_on:count} of {groups_tested:#group} tested lie on {grids:list}, in {tensors:#tensor} with "
            "{share:share} of the weights; {redundant:size} of {bytes:size} are redundant."
        ),
        "partly-on-grid": (
            "Quantized before and changed since: {groups_on:count} of {groups_tested:#group} tested still lie on {grids:list}, far more "
            "than by chance, in {tensors:#tensor} with {share:share} of the weights."
        ),
        "narrower": (
            "All {values:#value} tested of this {stored:dtype} checkpoint are {format} values: {format} holds them in {saved:size} less."
        ),
        "passed": (
            "The {stored:dtype} values have passed through {formats:list}: proven in {tensors:#tensor} with {share:share} of the weights."
        ),
        "mixed": "The tensors have different histories, by share of the weights: {parts:list}.",
        "fossil-rows": (
            "{rows:#row} in {tensors:#tensor} hold only {formats:list} values, unlike the other rows: most likely never updated since."
        ),
        "bare-codes": (
            "Codes without their scale, not weights: {tensors:#tensor} of {formats:list}, such as {name:name}, which reaches "
            "{largest:magnitude}."
        ),
        "merged": "{share:share} of the weights are computed by the merge, in fp32: their bits say nothing about training.",
        "native": (
            "No narrower format left a trace in this {stored:dtype} checkpoint: {exceptions:count} of {tested:#value} tested are not "
            "{format:format} values."
        ),
        "undecided": "Earlier formats of this {stored:dtype} checkpoint cannot be told from the {values:#value} tested.",
        "not-tested": "Stored in {stored:dtype}, for which no narrower format is tested ({values:#value} read).",
        # advice
        "go-back": "Go back to an earlier checkpoint: training does not recover from NaN or infinite weights.",
        "not-fp16": "Run it in bf16 or fp32, whose range is wide enough for every weight tested.",
        "load-narrower": "Load it with dtype={dtype}: {saved:size} less memory, and every value tested stays the same.",
        "load-bf16": "Load it with dtype={dtype}: every value tested stays the same, and activations cannot overflow as in fp16.",
        "read-rest": "Look at what was left out before you load it with dtype={dtype}: only the values tested are known to stay the same.",
        "avoid-fp16": (
            "Avoid fp16 unless you measured its effect: {zero:share} of the weights tested become zero, {inexact:share} lose digits as "
            "subnormals."
        ),
        "measure-fp16": "Measure the activations before you run it in fp16: the {values:#weight} tested fit.",
        "as-stored": "Load it as it is stored, and measure what rounding does to its activations.",
    }
)
TRAINED = Words(
    {
        "label": "Label: trained in {trained} ({source}).",
        "base": "Most likely trained in {trained}, like its base {relative}.",
        "family": "Most likely trained in {trained}, like {relative}.",
        "classifier": "Most likely trained in {trained}, by the magnitudes of its weights.",
    }
)
"""The training precision, after what is proven, by its basis."""
NOTHING_PROVEN = {"native": "nothing narrower", "undecided": "undecided"}
"""Verdicts that name no ancestor, in words."""
FP16 = {
    "fits": "weights fit",
    "caution": "weights fit, with losses",
    "overflow": "weights overflow",
    "broken": "weights not finite",
    "unknown": "cannot tell",
}
"""Levels of risk in words."""
FRONT = "quantization_roles"
_SHOWN = 3


def tiles(report: "DtypeReport") -> list[Tile]:
    """Return what is stored, what the values passed through, how the model was trained, whether it fits fp16, and the magnitudes."""
    return [_stored(report), _lineage(report), trained(report), _fp16(report), _magnitudes(report)]


def _stored(report: "DtypeReport") -> Tile:
    rows = [row for row in report.storage if not row.computed]
    names = [dtype_name(row.dtype) for row in rows]
    said = [f"{plural(row.tensors, 'tensor')} {'computed ' * row.computed}in {dtype_name(row.dtype)}" for row in report.storage]
    more = [f"{len(said) - _SHOWN} other dtypes"] * (len(said) > _SHOWN)
    quantized = f" Quantized: {report.checkpoint.quantization}." if report.checkpoint.quantization else ""
    config = f" config.json says {report.config_dtype}." if report.config_dtype else ""
    value = " + ".join(names[:2]) + (f" + {len(names) - 2} more" if len(names) > 2 else "")
    stored = size(sum(row.bytes for row in report.storage))
    detail = f"{', '.join([*said[:_SHOWN], *more])}.{config}{quantized}"
    return Tile(label="Stored as", value=f"{value or 'nothing'}, {stored}", kind="fact", detail=detail, whole=True)


def _lineage(report: "DtypeReport") -> Tile:
    lineage = report.lineage
    grids = list(dict.fromkeys(describe(grid) for grid in report.grids if grid.proven))
    kind = "proof"
    if lineage.verdict == "mixed":
        value = f"{' and '.join(grids[:_SHOWN])}, in part" if grids else "mixed"
        kind = "proof" if grids or lineage.passed_through else "fact"
    elif lineage.passed_through:
        value = " → ".join((*map(format_name, lineage.passed_through), dtype_name(lineage.stored)))
    elif report.grids:
        value, kind = f"{' and '.join(list(dict.fromkeys(map(describe, report.grids)))[:_SHOWN])}, in part", "fact"
    else:
        value, kind = NOTHING_PROVEN[lineage.verdict], {"native": "fact"}.get(lineage.verdict, "undecided")
    return Tile(label="Passed through", value=value, kind=kind, detail=" ".join(_proof(report)))


def _proof(report: "DtypeReport") -> Iterator[str]:
    """Say by what the lineage is proven or refuted, and what a sample leaves open."""
    lineage = report.lineage
    own = [each for each in lineage.evidence if each.stored == lineage.stored]
    proofs = [each for each in own if each.proven]
    if report.grids:
        on, tested = sum(grid.groups_on for grid in report.grids), sum(grid.groups_tested for grid in report.grids)
        yield f"{count(on)} of {plural(tested, 'group')} tested lie on {listed(list(dict.fromkeys(map(describe, report.grids)))[:_SHOWN])}."
    if lineage.verdict == "mixed":
        yield f"Tensors: {_parts(report)}."
    elif lineage.verdict == "native":
        yield f"{_passing(report.refutation)}. A wider format is never excluded."
    elif proofs:
        yield f"{_passing(proofs[0])}; by accident, odds of 1 in {power(round(-proofs[0].log10_chance), 10)}."
    elif not own:
        yield f"No narrower format is tested for {dtype_name(lineage.stored)}."
    elif lineage.verdict == "undecided":
        yield "Values on a grid, or few different ones: too few to tell what left them."
    if lineage.fossil_rows:
        yield f"{plural(lineage.fossil_rows, 'row')} exact in a narrower format, unlike the others: most likely never updated since."
    if report.mode == "exact" and report.grid_blocks >= FIRST_BLOCKS and not report.grids:
        yield f"Grids were searched for in {plural(report.grid_blocks, 'block')}."
    if report.blocks and report.unseen is not None and lineage.verdict not in ("mixed", "undecided"):
        yield (
            f"At most {share(report.unseen)} of the values have another history (95% confidence: {plural(report.blocks, 'block')} "
            f"read show none); grids were searched for in {plural(report.grid_blocks, 'block')}."
        )


def _parts(report: "DtypeReport") -> str:
    parts = [f"{count(part.tensors)} {VERDICT_WORDS[part.verdict]}" for part in report.lineage.parts]
    return ", ".join([*parts[:_SHOWN], *([f"{len(parts) - _SHOWN} other histories"] if len(parts) > _SHOWN else [])])


def _passing(each: "Evidence") -> str:
    passing = "all" if not each.exceptions else f"{count(each.tested - each.exceptions)} of"
    return f"{TEST_WORDS[each.test].capitalize()}: {passing} {count(each.tested)} tested"


def trained(report: "DtypeReport") -> Tile:
    """Return the tile of the training precision, by the report alone."""
    training = report.training
    likely = sorted(training.probabilities.items(), key=lambda item: -item[1])
    if training.basis == "label":
        detail = f"Source: {training.source}."
        return Tile(label="Trained in", value=training.verdict, kind="label", detail=detail, whole=True)
    detail = ""
    if training.basis == "base":
        detail = f"Its base, {training.nearest}, was trained in {training.nearest_precision} ({training.source})."
    elif training.basis == "family":
        detail = (
            f"The architecture and the weight magnitudes are those of {training.nearest}, and all labelled models of this architecture "
            f"were trained in {training.nearest_precision}."
        )
    elif training.basis == "classifier":
        detail = f"Training in any precision can be saved in {dtype_name(report.lineage.stored)}, and magnitudes alone do not decide."
    if training.contradicted_by is not None:
        held = training.contradicted_by
        detail = f"The weights have been {held}, and training in any precision can be saved in {held}."
    if training.verdict == "undecided":
        return Tile(label="Trained in", value="cannot tell", kind="undecided", detail=detail)
    shares = ", ".join(f"{name} {share(probability)}" for name, probability in likely)
    return Tile(label="Trained in", value=f"{training.verdict}, likely", kind="inference", detail=f"{detail} Probabilities: {shares}.")


def _fp16(report: "DtypeReport") -> Tile:
    level, counts = report.fp16_risk.level, report.counts
    said = [] if report.extremes.abs_max is None else [f"Largest weight: {magnitude(report.extremes.abs_max)}; fp16 ends at 65,504."]
    known = {
        "overflow": f"Infinite in fp16: {count(counts.fp16_overflow)}.",
        "underflow": f"Zero in fp16: {count(counts.fp16_underflow)}.",
        "subnormal": f"Subnormal in fp16: {count(counts.fp16_subnormal)}; losing digits there: {count(counts.fp16_inexact_subnormal)}.",
        "nan": f"NaN: {count(counts.nan)}.",
        "infinite": f"Infinite: {count(counts.inf)}.",
        "undecoded": "Not all weights were decoded.",
        "nothing": "No weight is finite and nonzero.",
    }
    said += [known[reason] for reason in report.fp16_risk.reasons if reason in known]
    kind = {"fits": "fact", "caution": "fact", "unknown": "undecided"}.get(level, "warning")
    return Tile(label="Safe in fp16", value=FP16[level], kind=kind, detail=" ".join([*said, "Activations were not tested."]))


def _magnitudes(report: "DtypeReport") -> Tile:
    extremes = report.extremes
    value = f"{magnitude(extremes.abs_min)} to {magnitude(extremes.abs_max)}"
    bits = report.entropy.bits_per_weight if report.entropy is not None else None
    carried = "" if bits is None or report.entropy is None else f" A weight carries {magnitude(bits)} of {report.entropy.stored_bits} bits."
    zeros = f"Zeros: {count(report.counts.zero)} of {plural(report.values_read, 'value')}"
    norms = f"norms of tensors {magnitude(extremes.norm_min)} to {magnitude(extremes.norm_max)}"
    detail = f"{zeros}; smallest nonzero magnitude {magnitude(extremes.abs_min_nonzero)}; {norms}.{carried}"
    return Tile(label="Magnitudes", value=value, kind="fact", detail=detail)
