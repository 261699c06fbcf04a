"""Decides what dtype detection answers and advises, as codes with values."""

from collections.abc import Iterator, Sequence

from analyzers.core.coverage import Coverage
from analyzers.core.formatting import share
from analyzers.core.notes import Advice, Note
from analyzers.core.report import needs_the_whole
from analyzers.core.tensor_words import format_name
from analyzers.dtype.report import TORCH, Facts
from analyzers.dtype.rows import VERDICT_WORDS, Training
from analyzers.dtype.statistics import TensorResult
from analyzers.dtype.words import TRAINED, WORDS
from analyzers.grids import describe

# Most grids, and most histories, that a sentence names
_NAMED = 3


def answer(facts: Facts) -> Note:
    """Return what is wrong with the weights, or else what the bits prove, then the training precision by a label or by inference."""
    counts, values = facts.counts, facts.values_read
    if counts.nan or counts.inf:
        return WORDS.note("broken", weights=counts.nan + counts.inf, nan=counts.nan, infinite=counts.inf, values=values)
    if counts.fp16_overflow:
        extremes = facts.extremes
        return WORDS.note("overflow", weights=counts.fp16_overflow, values=values, largest=extremes.abs_max, name=extremes.abs_max_in)
    return _with_training(_proof(facts), facts.training)


def _with_training(proof: Note, training: Training) -> Note:
    """Return what is proven, followed by the training precision if a label or a relative tells it."""
    if training.verdict == "undecided":
        return proof
    trained = {"trained": training.verdict, "basis": training.basis, "source": training.source, "relative": training.nearest}
    return proof.model_copy(update={"values": {**proof.values, **trained}, "text": f"{proof.text} {TRAINED.text(training.basis, trained)}"})


def _proof(facts: Facts) -> Note:
    """Return what the bits prove, or that they prove nothing."""
    lineage = facts.lineage
    if any(grid.proven for grid in facts.grids):
        return _on_grid(facts, "on-grid")
    if lineage.verdict == "mixed":
        return _mixed(facts)
    if facts.ancestor:
        return _passed(facts)
    merged = sum(row.parameters for row in facts.storage if row.computed)
    if merged:
        return WORDS.note("merged", share=merged / sum(row.parameters for row in facts.storage))
    if facts.grids:
        return _on_grid(facts, "partly-on-grid")
    return _nothing_proven(facts)


def _nothing_proven(facts: Facts) -> Note:
    """Return what rules a narrower format out, or that nothing does."""
    lineage = facts.lineage
    if lineage.verdict == "native":
        test = facts.refutation
        return WORDS.note("native", stored=lineage.stored, format=test.format, tested=test.tested, exceptions=test.exceptions)
    return WORDS.note("undecided" if lineage.evidence else "not-tested", stored=lineage.stored, values=facts.values_read)


def _on_grid(facts: Facts, code: str) -> Note:
    grids = [grid for grid in facts.grids if grid.proven == (code == "on-grid")]
    return WORDS.note(
        code,
        grids=tuple(dict.fromkeys(map(describe, grids)))[:_NAMED],
        groups_on=sum(grid.groups_on for grid in grids),
        groups_tested=sum(grid.groups_tested for grid in grids),
        tensors=sum(grid.tensors for grid in grids),
        share=sum(grid.parameters for grid in grids) / max(1, facts.selected_parameters),
        redundant=sum(grid.redundant_bytes for grid in grids),
        bytes=sum(row.bytes for row in facts.storage),
    )


def _mixed(facts: Facts) -> Note:
    lineage = facts.lineage
    parts = sorted(
        (p for p in lineage.parts if p.verdict != "undecided"), key=lambda p: (p.verdict == "native", -p.parameters)
    )  # proof first
    if [part.verdict for part in parts] == ["mixed"]:
        formats = tuple(map(format_name, lineage.passed_through))
        return WORDS.note("fossil-rows", rows=lineage.fossil_rows, tensors=parts[0].tensors, formats=formats)
    whole = sum(part.parameters for part in lineage.parts)
    named = tuple(f"{share(part.parameters / whole)} {VERDICT_WORDS[part.verdict]}" for part in parts[:_NAMED])
    return WORDS.note("mixed", parts=named)


def _passed(facts: Facts) -> Note:
    lineage = facts.lineage
    if facts.narrower:
        return WORDS.note("narrower", values=facts.values_read, stored=lineage.stored, format=facts.narrower, saved=facts.narrower_saves)
    part = next((part for part in lineage.parts if part.verdict == lineage.verdict), None)
    return WORDS.note(
        "passed",
        formats=tuple(map(format_name, lineage.passed_through)),
        stored=lineage.stored,
        tensors=part.tensors if part is not None else sum(each.tensors for each in lineage.parts),
        share=lineage.telling,
    )


def advice(facts: Facts, model: str, coverage: Sequence[Coverage]) -> Advice:
    """Say how to load the weights, or that they are broken."""
    counts, lineage = facts.counts, facts.lineage
    if counts.nan or counts.inf:
        return WORDS.advice("go-back", "check", model)
    if counts.fp16_overflow:
        return WORDS.advice("not-fp16", "precision", model)
    if facts.narrower:
        code = needs_the_whole("load-narrower", coverage, "read-rest")
        return WORDS.advice(code, "precision", model, dtype=TORCH[facts.narrower], saved=facts.narrower_saves)
    if lineage.stored == "F16" and facts.ancestor == "bf16" and facts.representable.bf16 == 1:
        code = needs_the_whole("load-bf16", coverage, "read-rest")
        return WORDS.advice(code, "precision", model, dtype=TORCH["bf16"])
    if facts.fp16_risk.level == "caution":
        nonzero = facts.values_read - counts.zero
        zero, inexact = counts.fp16_underflow / nonzero, counts.fp16_inexact_subnormal / nonzero
        return WORDS.advice("avoid-fp16", "precision", model, zero=zero, inexact=inexact)
    if facts.fp16_risk.level == "fits" and lineage.stored != "F16":
        return WORDS.advice("measure-fp16", "precision", model, values=facts.values_read)
    return WORDS.advice("as-stored", "precision", model)


def codes_without_scale(results: Sequence[TensorResult]) -> Iterator[Note]:
    """Yield a note on tensors that hold codes of a quantizer, whose scale was never applied: no format that they were trained in."""
    found = [result for result in results if result.codes]
    if found:
        largest = max(found, key=lambda result: result.statistics.abs_max or 0.0)
        formats = tuple(sorted({result.codes for result in found if result.codes}))
        yield WORDS.note(
            "bare-codes", tensors=len(found), name=largest.tensor.name, formats=formats, largest=largest.statistics.abs_max
        )  # fmt: skip
