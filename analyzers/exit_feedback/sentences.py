"""The answer of exit feedback in sentences, what to do about it, and what limits it."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from analyzers.base import NextStep
from analyzers.exit_feedback.columns import cosine, energy_share, spread
from analyzers.exit_feedback.measurements import CostRow, Exact, Head, Inputs, Method, OverSeeds
from analyzers.exit_feedback.signals import CEILINGS, EXACT, RANDOM
from analyzers.formatting import listed, magnitude
from analyzers.language_models.model_request import sample_notes
from analyzers.terminal import percent, plural

if TYPE_CHECKING:
    from analyzers.exit_feedback.report import ExitReport
    from analyzers.exit_feedback.request import ExitRequest
    from analyzers.language_models.load import OpenModel

# Mean cosines below this are reported as weak.
_SMALL = 0.1


def headline(report: "ExitReport") -> str:
    """Write the headline, `closest`."""
    return closest(report.methods)


def closest(methods: Mapping[str, Method]) -> str:
    """Write which signal has the largest mean cosine, among those whose backward pass does not read the head's weight, and which ceilings
    are closer.
    """
    cosines = {name: method.cosine for name, method in methods.items() if method.cosine is not None}
    free = {name: each for name, each in cosines.items() if name not in CEILINGS}
    if not cosines:
        return "No token has an exact gradient: there is nothing to compare."
    name, best = max((free or cosines).items(), key=lambda item: item[1].mean)
    weak = ", a weak approximation" if best.mean < _SMALL else ""
    if len(cosines) == 1:
        return f"{'' if free else 'The ceiling '}{name} has a mean cosine of {cosine(best.mean)} with the exact gradient{weak}."
    which = f"Among the signals without backpropagation, {name} is closest" if free else f"Among the ceilings, {name} is closest"
    above = [f"{name} ({cosine(each.mean)})" for name, each in cosines.items() if free and name in CEILINGS and each.mean > best.mean]
    closer = f"; only ceilings, which read the head's weight, come closer: {listed(above)}" if above else ""
    tokens = f"({spread(best)} for 80% of tokens)"
    return f"{which}, with a mean cosine of {cosine(best.mean)} with the exact gradient {tokens}{weak}{closer}."


def next_step(report: "ExitReport") -> NextStep:
    """Return advice, and the analyzer for conflict between the samples' exact gradients."""
    return NextStep(_advice(report), "conflict", report.checkpoint.ref)


def _advice(report: "ExitReport") -> str:
    """Write whether a signal is worth using: near the exact gradient, and faster where both were timed."""
    cosines = {name: method.cosine.mean for name, method in report.methods.items() if method.cosine and name not in CEILINGS}
    best = max(cosines, key=cosines.__getitem__, default=None)
    if best is None or cosines[best] < _SMALL:
        return "Keep backpropagation: no signal without it points near the exact gradient on this frozen model."
    rows = [row for row in report.cost.rows if row.method in (best, EXACT)]
    if {row.method for row in rows} == {best, EXACT}:
        times = fastest(rows, (best,)).seconds / fastest(rows, (EXACT,)).seconds
        if times >= 1:
            slower = f"takes {magnitude(times)} times as long as the exact gradient"
            return f"Keep backpropagation here: {best} is the closest signal without it, but {slower}."
    inside = report.methods[best].before_norm.cosine
    if inside is not None and inside.mean < _SMALL:
        return f"Use {best} at the head only: behind the final norm its mean cosine is {cosine(inside.mean)}."
    return f"Try {best} before the others, in training: on a frozen model it is closest to the exact gradient."


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
        what = f"The mean cosine of random codes (dense) on a frozen model is {cosine(over.mean)}"
        yield f"{what} over {seeds}, too few to tell it from noise."
    else:
        which = "a frozen model is within noise of 0" if over.within_noise else "this frozen model is beyond noise"
        error = f"{cosine(over.mean)} ± {over.standard_error:.2g} (standard error over {seeds})"
        yield f"The mean cosine of random codes (dense) on {which}: {error}."
    if null is not None and null.standard_error is not None:
        yield f"Codes drawn anew for every batch give {cosine(null.mean)} ± {null.standard_error:.2g}."


def _energy(exact: Exact, methods: Mapping[str, Method]) -> Iterator[str]:
    """Yield sentences on the share of energy along the hidden state, and on how much of it passes through the final norm."""
    if exact.parallel_energy is None or exact.parallel_energy_before_norm is None:
        return
    yield (
        f"{energy_share(exact.parallel_energy)} of the exact gradient's energy is along the hidden state at the head, and "
        f"{energy_share(exact.parallel_energy_before_norm)} after the backward pass through the final norm."
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
            known.append(f"{what.format(**method.settings)} would give {cosine(method.cosine.mean)} ({name})")
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
    return f"{best.method} is {magnitude(exact.seconds / best.seconds)} times faster than the fastest exact run."
