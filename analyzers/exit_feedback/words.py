"""The report's sentences: what was found, and what to bear in mind."""

from collections.abc import Iterator, Mapping, Sequence

from analyzers.exit_feedback.heads import HeadSettings
from analyzers.exit_feedback.report import Exact, ExitReport, Head, Inputs, Method, OverSeeds, TrainingRow
from analyzers.exit_feedback.request import CEILINGS, RANDOM, ExitRequest
from analyzers.exit_feedback.training import EXACT, FROZEN
from analyzers.language_models.load import OpenModel
from analyzers.terminal import plural

_SIZES = ("rank", "k", "buckets", "anchors")
# Mean cosines below this are called small.
_SMALL = 0.1


def statement(exact: Exact, methods: Mapping[str, Method], null: OverSeeds | None, training: Sequence[TrainingRow]) -> str:
    """The reading, one sentence for each finding."""
    said = (_closest(methods), *_frozen(methods, null), *_energy(exact, methods), _ceilings(methods), _trained(training))
    return " ".join(sentence for sentence in said if sentence)


def headline(report: ExitReport) -> str:
    """The first thing to say of a report, in one sentence."""
    return _closest(report.methods)


def notes(
    request: ExitRequest,
    head: Head,
    inputs: Inputs,
    exact: Exact,
    settings: HeadSettings,
    opened: OpenModel,
    training: Sequence[TrainingRow],
) -> Iterator[str]:
    """What limits the answer."""
    if inputs.samples < request.samples:
        yield f"{inputs.source} has {plural(inputs.samples, 'sample')}, fewer than the {request.samples} asked for."
    if inputs.truncated:
        most = min(request.sequence_length, opened.context or request.sequence_length)
        were = "was" if inputs.truncated == 1 else "were"
        yield f"{inputs.truncated} of {plural(inputs.samples, 'sample')} {were} cut off after {plural(most, 'token')}."
    if inputs.measured < inputs.answer_tokens:
        yield f"{inputs.measured:,} of the {plural(inputs.answer_tokens, 'token')} of answers were measured, drawn evenly."
    if head.padded:
        yield f"The head has {plural(head.padded, 'row')} beyond the {head.tokenizer_vocabulary:,} tokens of the tokenizer, measured too."
    if exact.zero:
        have = "has" if exact.zero == 1 else "have"
        yield f"{plural(exact.zero, 'token')} {have} no exact gradient, the model being certain, and no part in cosines."
    if "span" in request.methods and settings.anchors >= head.width:
        yield f"With {plural(settings.anchors, 'anchor')} for a width of {head.width:,}, span may reach the exact gradient itself."
    if opened.dtype != "float32":
        yield f"The model and the way back through its final norm ran in {opened.dtype}; its head and the signals in float32."
    fewer = {name: value for row in training for name, value in row.settings.items() if name in _SIZES and value != getattr(settings, name)}
    if fewer:
        said = ", ".join(f"{name} {value:,}" for name, value in fewer.items())
        yield f"The trunk that is trained has less room than the model, and smaller settings: {said}."
    if any(method in RANDOM for method in request.methods) and request.seeds < 2:
        yield "With one seed there is no standard error: ask for more seeds."
    yield from opened.notes()
    if opened.facts.quantization is not None:
        yield "The stored weights are quantized; they were run as they are after decoding."


def _closest(methods: Mapping[str, Method]) -> str:
    """Of those that do without the head's weight on the way back, which comes nearest."""
    found = [(name, each.cosine) for name, each in methods.items() if each.cosine is not None]
    free = [(name, cosine) for name, cosine in found if name not in CEILINGS]
    if not found:
        return "No token has an exact gradient: there is nothing to compare."
    name, cosine = max(free or found, key=lambda each: each[1].mean)
    said = f"Of the signals that need no backpropagation {name} comes closest" if free else f"Of the ceilings {name} comes closest"
    of = f", by a mean cosine of {cosine.mean:.2f} with the exact gradient (from {cosine.p10:.2f} to {cosine.p90:.2f} in 80% of tokens)"
    weak = ", which is little of a gradient" if cosine.mean < _SMALL else ""
    return f"{said}{of}{weak}." if len(found) > 1 else f"{name} has a mean cosine of {cosine.mean:.2f} with the exact gradient{weak}."


def _frozen(methods: Mapping[str, Method], null: OverSeeds | None) -> Iterator[str]:
    """Random codes know nothing of a model that was not trained with them."""
    dense = methods.get("dense")
    found = dense.over_seeds if dense else None
    if found is None:
        return
    seeds = plural(len(found.values), "seed")
    if found.within_noise is None:
        yield f"Mean cosine of random codes (dense) on a frozen model is {_signed(found.mean)} over {seeds}, too few to tell it from noise."
    else:
        said = "a frozen model is within noise of 0" if found.within_noise else "this frozen model is more than noise"
        mean = f"{_signed(found.mean)} ± {found.standard_error:.2g} (standard error over {seeds})"
        yield f"Mean cosine of random codes (dense) on {said}: {mean}."
    if null is not None and null.standard_error is not None:
        yield f"Codes drawn anew each time, of which nothing can be learnt, give {_signed(null.mean)} ± {null.standard_error:.2g}."


def _energy(exact: Exact, methods: Mapping[str, Method]) -> Iterator[str]:
    """What goes along the hidden state, and how much of that the final norm lets through."""
    if exact.parallel_energy is None or exact.parallel_energy_before_norm is None:
        return
    yield (
        f"{_percent(exact.parallel_energy)} of the exact gradient's energy goes along the hidden state; of what the final norm lets "
        f"through on the way back, {_percent(exact.parallel_energy_before_norm)} does."
    )
    parallel = methods.get("parallel")
    if parallel is not None and parallel.norm_ratio is not None and parallel.before_norm.norm_ratio is not None:
        yield (
            f"The parallel signal is {_percent(parallel.norm_ratio)} as long as the exact gradient at the head, and "
            f"{_percent(parallel.before_norm.norm_ratio)} before the norm."
        )


def _ceilings(methods: Mapping[str, Method]) -> str:
    each = []
    for name, what in (("svd", "the best rank {rank} of the head's weight"), ("true_rows", "its true rows of {k} tokens")):
        method = methods.get(name)
        if method is not None and method.cosine is not None:
            each.append(f"{what.format(**method.settings)} would give {method.cosine.mean:.2f} ({name})")
    return f"As ceilings, {' and '.join(each)}." if each else ""


def _trained(training: Sequence[TrainingRow]) -> str:
    found = {row.method: row for row in training}
    exact, frozen = found.get(EXACT), found.get(FROZEN)
    if exact is None or frozen is None or exact.final_loss is None or frozen.final_loss is None:
        return ""
    ends = f"{exact.final_loss:.2f}, and with only its head trained at {frozen.final_loss:.2f}"
    said = f"A small trunk trained by exact backpropagation ends at a loss of {ends}"
    kept = {row.method: row.recovered for row in training if row.method not in (EXACT, FROZEN) and row.recovered is not None}
    better = sorted(((share, name) for name, share in kept.items() if share > 0), reverse=True)
    worse = [name for name, share in kept.items() if share <= 0]
    if better:
        said += "; of that difference " + ", ".join(f"{name} keeps {100 * share:.0f}%" for share, name in better)
    if worse:
        said += f"; worse than no feedback at all: {', '.join(worse)}"
    return said + "."


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _signed(value: float) -> str:
    return f"{value:+.3f}"
