"""The report in words: findings, caveats, and text for a terminal."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from analyzers.exit_feedback.columns import BY_LAYER, COST, ENERGY, SEEDS, SIGNALS, SWEPT
from analyzers.exit_feedback.measurements import CostRow, Exact, Head, Inputs, Method, OverSeeds
from analyzers.exit_feedback.sentences import closest
from analyzers.exit_feedback.signals import CEILINGS, EXACT, RANDOM
from analyzers.language_models.model_request import sample_notes
from analyzers.terminal import percent, plural

if TYPE_CHECKING:
    from analyzers.exit_feedback.report import ExitReport
    from analyzers.exit_feedback.request import ExitRequest
    from analyzers.language_models.load import OpenModel


_RESOLVED = 1e-6  # Smallest share of energy that fp32 resolves.


def statement(exact: Exact, methods: Mapping[str, Method], null: OverSeeds | None) -> str:
    """Write the findings, one sentence each."""
    findings = (_frozen_model(methods, null), _energy(exact, methods), _ceilings(methods))
    return " ".join([closest(methods), *(sentence for sentences in findings for sentence in sentences)])


def notes(
    request: "ExitRequest",
    head: Head,
    inputs: Inputs,
    exact: Exact,
    methods: Mapping[str, Method],
    opened: "OpenModel",
) -> Iterator[str]:
    """Yield the caveats, one sentence each."""
    longest = min(request.sequence_length, opened.context or request.sequence_length)
    yield from sample_notes(inputs.source, inputs.samples, inputs.truncated, request.samples, longest)
    if inputs.measured < inputs.answer_tokens:
        yield f"{inputs.measured:,} of the {plural(inputs.answer_tokens, 'answer token')} were measured, a uniform random choice."
    if head.padded:
        yield f"The head has {plural(head.padded, 'row')} beyond the {head.tokenizer_vocabulary:,} tokens of the tokenizer, included."
    if exact.zero:
        have = "has" if exact.zero == 1 else "have"
        yield f"{plural(exact.zero, 'token')} {have} no exact gradient, because the model is certain, and no cosine."
    anchors = methods["span"].settings["anchors"] if "span" in methods else None
    if isinstance(anchors, int) and anchors >= head.width:
        yield f"With {plural(anchors, 'anchor')} for a width of {head.width:,}, span may reach the exact gradient itself."
    if opened.dtype != "float32":
        yield f"The model and the backward pass through its final norm ran in {opened.dtype}; its head and the signals in float32."
    if any(method in RANDOM for method in request.methods) and request.seeds < 2:
        yield "With one seed there is no standard error: request more seeds."
    yield from opened.notes()


def _frozen_model(methods: Mapping[str, Method], null: OverSeeds | None) -> Iterator[str]:
    """Yield sentences on random codes, which are unrelated to a model that was not trained with them, and on the null."""
    over = methods["dense"].over_seeds if "dense" in methods else None
    if over is None:
        return
    seeds = plural(len(over.values), "seed")
    if over.within_noise is None:
        yield f"The mean cosine of random codes (dense) on a frozen model is {over.mean:+.3f} over {seeds}, too few to tell it from noise."
    else:
        which = "a frozen model is within noise of 0" if over.within_noise else "this frozen model is beyond noise"
        error = f"{over.mean:+.3f} ± {over.standard_error:.2g} (standard error over {seeds})"
        yield f"The mean cosine of random codes (dense) on {which}: {error}."
    if null is not None and null.standard_error is not None:
        yield f"Codes drawn anew for every batch give {null.mean:+.3f} ± {null.standard_error:.2g}."


def _energy(exact: Exact, methods: Mapping[str, Method]) -> Iterator[str]:
    """Yield sentences on the energy along the hidden state, and on how much of it passes through the final norm."""
    if exact.parallel_energy is None or exact.parallel_energy_before_norm is None:
        return
    yield (
        f"{_energy_share(exact.parallel_energy)} of the exact gradient's energy is along the hidden state at the head, and "
        f"{_energy_share(exact.parallel_energy_before_norm)} after the backward pass through the final norm."
    )
    parallel = methods.get("parallel")
    if parallel is not None and parallel.norm_ratio is not None and parallel.before_norm.norm_ratio is not None:
        yield (
            f"The norm of the parallel signal is {percent(parallel.norm_ratio)} of the exact gradient's at the head, and "
            f"{percent(parallel.before_norm.norm_ratio)} before the norm."
        )


def _ceilings(methods: Mapping[str, Method]) -> Iterator[str]:
    known = []
    for name, what in (("svd", "the best rank-{rank} approximation of the head's weight"), ("true_rows", "its true rows of {k} tokens")):
        method = methods.get(name)
        if method is not None and method.cosine is not None:
            known.append(f"{what.format(**method.settings)} would give {method.cosine.mean:.2f} ({name})")
    if known:
        yield f"As ceilings, {' and '.join(known)}."


def fastest(rows: Iterable[CostRow], methods: Collection[str]) -> CostRow:
    """Return the fastest run of any of these methods, in either form."""
    return min((row for row in rows if row.method in methods), key=lambda row: row.seconds)


def cost_statement(rows: Sequence[CostRow]) -> str:
    """Write whether a signal other than the ceilings is faster than the exact gradient; empty if there are no such signals."""
    practical = {row.method for row in rows} - {EXACT, *CEILINGS}
    if not practical:
        return ""
    exact, best = fastest(rows, (EXACT,)), fastest(rows, practical)
    if best.seconds >= exact.seconds:
        return "No practical signal is faster here."
    return f"{best.method} takes {best.seconds / exact.seconds:.2f} times the time of the fastest exact run."


def one(report: "ExitReport") -> list[str]:
    """Return the lines of a report: answer, methods, energy, seeds, layers, sweep, cost and notes."""
    head, inputs = report.head, report.inputs
    lines = [
        f"{report.checkpoint.ref} @ {report.checkpoint.commit[:12]}: head {head.vocabulary:,} x {head.width:,}, "
        f"{plural(inputs.measured, 'token')} of {plural(inputs.samples, 'sample')} ({inputs.source}), {report.dtype}; "
        f"{report.timing.seconds:.3g} s",
        "",
        *report.answer_lines(),
        *filter(None, [report.cost.statement]),
    ]
    for table in (SIGNALS, ENERGY, SEEDS, BY_LAYER, SWEPT, COST):
        rows = table.lines(report)
        lines += ["", *rows] if rows else []
    return [*lines, "", *report.notes, f"report {report.id}"]


def _energy_share(value: float | None) -> str:
    """Write a share of energy without the digits that fp32 does not resolve."""
    if value is not None and 0 < value < _RESOLVED:
        return f"< {percent(_RESOLVED)}"
    return f"> {percent(1 - _RESOLVED)}" if value is not None and 1 - _RESOLVED < value < 1 else percent(value)
