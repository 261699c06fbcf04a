"""The report's sentences: the findings, and what limits them."""

from collections.abc import Iterator, Mapping, Sequence

from analyzers.exit_feedback.report import Exact, ExitReport, Head, Inputs, Method, OverSeeds, TrainingRow
from analyzers.exit_feedback.request import ExitRequest
from analyzers.exit_feedback.signals import CEILINGS, EXACT, FROZEN, RANDOM
from analyzers.language_models.load import OpenModel
from analyzers.terminal import plural

_SIZES = ("rank", "k", "anchors")
# Mean cosines below this are called weak.
_SMALL = 0.1


def statement(exact: Exact, methods: Mapping[str, Method], null: OverSeeds | None, training: Sequence[TrainingRow]) -> str:
    """The findings, one sentence for each."""
    sentences = (_closest(methods), *_frozen_model(methods, null), *_energy(exact, methods), _ceilings(methods), _trained(training))
    return " ".join(sentence for sentence in sentences if sentence)


def headline(report: ExitReport) -> str:
    """The first finding, in one sentence."""
    return _closest(report.methods)


def notes(
    request: ExitRequest,
    head: Head,
    inputs: Inputs,
    exact: Exact,
    methods: Mapping[str, Method],
    opened: OpenModel,
    training: Sequence[TrainingRow],
) -> Iterator[str]:
    """What limits the answer."""
    if inputs.samples < request.samples:
        yield f"{inputs.source} has {plural(inputs.samples, 'sample')}, fewer than the {request.samples} requested."
    if inputs.truncated:
        most = min(request.sequence_length, opened.context or request.sequence_length)
        were = "was" if inputs.truncated == 1 else "were"
        yield f"{inputs.truncated} of {plural(inputs.samples, 'sample')} {were} truncated to {plural(most, 'token')}."
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
    smaller = {
        name: row.settings[name]
        for row in training
        for name in _SIZES
        if row.method in methods and name in row.settings and row.settings[name] != methods[row.method].settings[name]
    }
    if smaller:
        said = ", ".join(f"{name} {value:,}" for name, value in smaller.items())
        yield f"The small transformer that is trained has smaller settings than the model: {said}."
    if any(method in RANDOM for method in request.methods) and request.seeds < 2:
        yield "With one seed there is no standard error: request more seeds."
    yield from opened.notes()
    if opened.facts.quantization is not None:
        yield "The stored weights are quantized; they were run as they are after decoding."


def _closest(methods: Mapping[str, Method]) -> str:
    """The signal with the largest cosine among those whose backward pass does not read the head's weight."""
    cosines = {name: method.cosine for name, method in methods.items() if method.cosine is not None}
    free = {name: cosine for name, cosine in cosines.items() if name not in CEILINGS}
    if not cosines:
        return "No token has an exact gradient: there is nothing to compare."
    name, cosine = max((free or cosines).items(), key=lambda item: item[1].mean)
    weak = ", a weak approximation" if cosine.mean < _SMALL else ""
    if len(cosines) == 1:
        return f"{name} has a mean cosine of {cosine.mean:.2f} with the exact gradient{weak}."
    which = f"Among the signals without backpropagation {name} is closest" if free else f"Among the ceilings {name} is closest"
    spread = f"({cosine.p10:.2f} to {cosine.p90:.2f} for 80% of tokens)"
    return f"{which}, with a mean cosine of {cosine.mean:.2f} with the exact gradient {spread}{weak}."


def _frozen_model(methods: Mapping[str, Method], null: OverSeeds | None) -> Iterator[str]:
    """Random codes are unrelated to a model that was not trained with them."""
    dense = methods.get("dense")
    over = dense.over_seeds if dense else None
    if over is None:
        return
    seeds = plural(len(over.values), "seed")
    if over.within_noise is None:
        yield f"The mean cosine of random codes (dense) on a frozen model is {over.mean:+.3f} over {seeds}, too few to tell it from noise."
    else:
        which = "a frozen model is within noise of 0" if over.within_noise else "this frozen model is beyond noise"
        yield (
            f"The mean cosine of random codes (dense) on {which}: "
            f"{over.mean:+.3f} ± {over.standard_error:.2g} (standard error over {seeds})."
        )
    if null is not None and null.standard_error is not None:
        yield f"Codes drawn anew for every batch give {null.mean:+.3f} ± {null.standard_error:.2g}."


def _energy(exact: Exact, methods: Mapping[str, Method]) -> Iterator[str]:
    """The share along the hidden state, and how much of it the final norm passes on."""
    if exact.parallel_energy is None or exact.parallel_energy_before_norm is None:
        return
    yield (
        f"{_percent(exact.parallel_energy)} of the exact gradient's energy is along the hidden state at the head, and "
        f"{_percent(exact.parallel_energy_before_norm)} after the backward pass through the final norm."
    )
    parallel = methods.get("parallel")
    if parallel is not None and parallel.norm_ratio is not None and parallel.before_norm.norm_ratio is not None:
        yield (
            f"The norm of the parallel signal is {_percent(parallel.norm_ratio)} of the exact gradient's at the head, and "
            f"{_percent(parallel.before_norm.norm_ratio)} before the norm."
        )


def _ceilings(methods: Mapping[str, Method]) -> str:
    known = []
    for name, what in (("svd", "the best rank-{rank} approximation of the head's weight"), ("true_rows", "its true rows of {k} tokens")):
        method = methods.get(name)
        if method is not None and method.cosine is not None:
            known.append(f"{what.format(**method.settings)} would give {method.cosine.mean:.2f} ({name})")
    return f"As ceilings, {' and '.join(known)}." if known else ""


def _trained(training: Sequence[TrainingRow]) -> str:
    rows = {row.method: row for row in training}
    exact, frozen = rows.get(EXACT), rows.get(FROZEN)
    if exact is None or frozen is None or exact.final_loss is None or frozen.final_loss is None:
        return ""
    sentence = (
        f"A small transformer trained by exact backpropagation reaches a loss of {exact.final_loss:.2f}, and {frozen.final_loss:.2f} "
        "where only its head learns"
    )
    recovered = {row.method: row.recovered for row in training if row.method not in (EXACT, FROZEN) and row.recovered is not None}
    better = sorted(((share, name) for name, share in recovered.items() if share > 0), reverse=True)
    worse = [name for name, share in recovered.items() if share <= 0]
    if better:
        sentence += "; of that difference " + ", ".join(f"{name} recovers {100 * share:.0f}%" for share, name in better)
    if worse:
        sentence += f"; worse than no feedback at all: {', '.join(worse)}"
    return sentence + "."


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
