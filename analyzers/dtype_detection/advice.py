"""Sentences for the report's further readings, and suggestions for what to do about the checkpoint."""

import json
import shlex
from typing import TYPE_CHECKING, NamedTuple

from analyzers.dtype_detection.sentences import BITS, narrower
from analyzers.formatting import NOTHING, magnitude, plural, share, size

if TYPE_CHECKING:
    from analyzers.dtype_detection.report import DtypeReport, QuantizationRole, Untouched

_NAMED = 3
# Modules of an `ignore` list that are shown
_LISTED = 40
# Below this share of movable weights at a step of 1e-6, pure bf16 training deserves a warning.
_FEW_MOVE = 0.1


WEIGHT_ONLY = (
    "This is the error of the weights alone: what it does to the output also depends on the activations and their outliers, "
    "which it does not see; the page Rounding error, and mantissa precision, run the model."
)


class Suggestion(NamedTuple):
    """One suggestion: a sentence that the report backs, and the command for it."""

    advice: str
    command: str


def untouched(report: "DtypeReport") -> list[str]:
    """Write one sentence each on norms, biases and other tensors that may never have been trained."""
    norms = [row for row in report.untouched if row.role == "norm" and row.value in (0, 1) and not row.name.endswith("bias")]
    biases = [row for row in report.untouched if row.name.endswith("bias") and row.value == 0]
    others = [row for row in report.untouched if row not in norms and row not in biases]
    said, seen = [], "" if report.extremes.exact else " as far as they were read"
    if norms:
        of = sum(row.tensors for row in report.layers if row.role == "norm")
        whole = sum(row.share == 1 for row in norms)
        said.append(
            f"{len(norms):,} of {plural(of, 'norm')} {'has' if len(norms) == 1 else 'have'} at least half of the entries at exactly "
            f"{' or '.join(magnitude(value) for value in sorted({row.value for row in norms}))}, the usual initial value"
            f"{f' ({whole:,} of them constant)' if whole else ''}: {_names(norms)}. Next to 1, bf16 values are 2^-8 and 2^-7 apart, so "
            "smaller steps are rounded away."
        )
    if biases:
        said.append(
            f"{plural(len(biases), 'bias is', 'biases are')} zero in at least half of the entries: {_names(biases)}. Biases start "
            "at zero, so this is normal if they are not trained."
        )
    if others:
        said.append(
            f"{plural(len(others), 'tensor is', 'tensors are')} constant{seen}: {_names(others)}. Either training never changed "
            f"{'it, or it is' if len(others) == 1 else 'them, or they are'} not in use."
        )
    return said


def _names(rows: list["Untouched"]) -> str:
    return ", ".join(row.name for row in rows[:_NAMED]) + (f" and {len(rows) - _NAMED:,} more" if len(rows) > _NAMED else "")


def entropy(report: "DtypeReport") -> list[str]:
    """Say how many bits a weight carries and what a lossless coder could save; empty if no floats are stored."""
    found = report.entropy
    if found is None:
        return []
    exponent, seen = f"its exponent {found.exponent_bits:.3g}", "" if report.extremes.exact else " read"
    if found.bits_per_weight is not None:
        saved = share(max(0.0, 1 - found.bits_per_weight / found.stored_bits))
        return [
            f"Each {found.dtype} weight{seen} carries {found.bits_per_weight:.3g} of its {found.stored_bits} bits ({exponent}): "
            f"a lossless coder that looks at single weights could save {saved}."
        ]
    if found.high_half_bits is not None:
        return [f"The upper 16 bits of each {found.dtype} weight{seen} carry {found.high_half_bits:.3g} bits ({exponent})."]
    return []


def readings(report: "DtypeReport") -> list[str]:
    """Write the sentences on what a step can move, on tensors that were never trained, and on the bits that weights carry."""
    moving = [each.statement for each in (report.movable, report.movable_fp16) if each is not None]
    return [*moving, *untouched(report), *entropy(report)]


def between(row: "QuantizationRole") -> str:
    """Format the interval of a relative error; a dash if everything was read."""
    if row.low is None or row.high is None:
        return NOTHING if row.blocks is None else "not known from a sample"
    return f"{share(row.low)} to {share(row.high)}"


def ignored(report: "DtypeReport") -> list[str]:
    """List the modules that stand out, by format, as JSON to copy."""
    seen = "" if report.extremes.exact else " in the rows read"
    return [
        f"{name}: {plural(len(modules), 'tensor has', 'tensors have')} more than 1.5 times the median error{seen}. To leave them "
        f"unquantized (ignore of llm-compressor, modules_to_not_convert of transformers' torchao configuration): "
        f"{json.dumps(modules[:_LISTED])}" + (f" and {len(modules) - _LISTED:,} more in the JSON." if len(modules) > _LISTED else "")
        for name, modules in report.quantization_ignore.items()
        if modules
    ]


def narrower_saves(report: "DtypeReport", held: str) -> int:
    """Return the bytes that the format ``held`` saves, if it holds every value of the dtype of most parameters."""
    bits = BITS.get(report.lineage.stored, 16)
    return sum(row.bytes for row in report.storage if row.dtype == report.lineage.stored) * (bits - BITS[held]) // bits


def suggestions(report: "DtypeReport") -> list[Suggestion]:
    """List what to do beyond the next step, the most useful first; a finding of the report backs each suggestion."""
    ref = shlex.quote(report.request.model if "@" in report.request.model else report.checkpoint.ref)
    found = []
    bits = BITS.get(report.lineage.stored, 16)
    if report.counts.nan or report.counts.inf:
        found.append(
            Suggestion("List the tensors with NaN or infinite weights: training does not recover from them.", f"mantissa check {ref}")
        )
    if held := narrower(report):
        saved = size(narrower_saves(report, held))
        sure = "no value changes" if report.extremes.exact and report.whole else "shrink looks at every value before it writes any"
        saved = saved if report.whole else f"up to {saved}"
        found.append(Suggestion(f"Store it narrower, in {held}: {saved} less, and {sure}.", f"mantissa shrink {ref} --out FOLDER"))
    if report.fp16_risk.level == "overflow":
        advice = "See what the infinite weights do to the activations in fp16, layer by layer."
        found.append(Suggestion(advice, f"mantissa precision {ref} --variants bf16,fp16"))
    if any(row.role == "norm" for row in report.untouched):
        advice = "Look at the norms that may never have been trained."
        found.append(Suggestion(advice, f"mantissa dtype {ref} --exact --include norm --tensors"))
    moved = 1 - report.movable.frozen[report.movable.steps.index(1e-6)] if report.movable else 1.0
    if moved < _FEW_MOVE:
        advice = f"Fine-tune it with fp32 master weights: at a step of 1e-6, pure bf16 moves {share(moved)} of the weights."
        found.append(Suggestion(advice, f"mantissa sparsity {ref} YOUR/FINE-TUNE"))
    if bits == 16 and not report.quantization:
        advice = "See what quantization would lose, tensor by tensor."
        found.append(Suggestion(advice, f"mantissa dtype {ref} --quantize all"))
    if not report.extremes.exact:
        found.append(Suggestion("Read all of it, where the answer must be a proof about every value.", f"mantissa dtype {ref} --exact"))
    return found
