"""The answer on an engine's log-probabilities in sentences, and what limits it."""

import math
from collections.abc import Iterator, Sequence

from analyzers.formatting import listed, magnitude, plural
from analyzers.precision_variants.engine.comparison import needed
from analyzers.precision_variants.engine.measurements import Cause, Engine, Ratio, RunDifference
from analyzers.precision_variants.engine.reading import FORMS


def headline(engine: Engine) -> str:
    """Write the verdict, with the ratio and the cause that explains it."""
    size, between = engine.ratio, f"{_between(engine.against)} " if engine.against else ""
    if size.value is None:
        return "This model's own bf16 run equals fp32 on these tokens: there is nothing to measure the engine by."
    differ = (
        f"log-probabilities differ from fp32 by {magnitude(engine.difference.mean_abs)} nats on average, {times(size)} as much as this "
        "model's own bf16 run"
    )
    if engine.verdict == "within":
        return f"{between}The engine is within what bf16 rounding explains: its {differ}.{_named(engine.causes)}"
    if engine.verdict == "beyond":
        return f"{between}The engine deviates by more than bf16 rounding explains: its {differ}.{_named(engine.causes)}"
    return f"{between}These tokens do not decide whether bf16 rounding explains the engine: its {differ}."


_ADVICE = {
    "temperature": "Let the engine write log-probabilities before temperature (vLLM: logprobs_mode raw_logprobs), or divide the trainer's "
    "logits by it too.",
    "filter": "Let the engine write log-probabilities before top-k, top-p and min-p, or leave these out when sampling for training.",
    "penalty": "Let the engine write log-probabilities before penalties, or sample without them.",
    "rounded": "Compute the log-softmax of the engine in fp32, and write all its digits.",
    "offset": "Align log-probabilities with their tokens: the logits at one position predict the next token.",
    "tokens": "Check that engine and trainer have the same tokenizer.",
    "context": "Give engine and trainer the same beginning-of-text token.",
    "quantized": "Load the trainer's weights unquantized in the engine, or correct with importance ratios.",
    "kv_cache": "Store keys and values in bf16, or calibrate the scales of the fp8 cache.",
    "routing": "Replay the engine's routing in the trainer, or compute routers in fp32 in both.",
    "forbidden": "Leave tokens at minus infinity out of the loss, or forbid them in the trainer too.",
    "masked": "Write null as the log-probability of tokens that the engine did not generate.",
    "other_weights": "Check which weights the engine has: compare its checkpoint with the trainer's.",
}


def advice(engine: Engine) -> str:
    """Write what to do about the verdict."""
    kinds = [cause.kind for cause in engine.causes if cause.kind in _ADVICE and cause.explains != "part"]
    if engine.verdict == "beyond" and {"routing", "other_weights"} <= {*kinds}:
        return (
            "To tell routing from other weights, compare the experts that the engine chose with the trainer's, or give many short "
            f"sequences: a flip changes nothing before it. {_ADVICE['other_weights']}"
        )
    if engine.verdict == "beyond" and not all(cause.told_apart for cause in engine.causes):
        return "Give log-probabilities of more tokens, in more sequences, to tell these causes apart."
    if engine.verdict == "beyond" and kinds:
        return _ADVICE[kinds[0]]
    if engine.verdict == "undecided":
        return _more(engine.ratio, engine.tokens, engine.band)
    if engine.verdict == "within" and engine.against is not None and engine.against.verdict == "undecided":
        return _more(engine.against.ratio, engine.against.tokens, engine.against.band)
    if engine.verdict == "within" and engine.against is not None and engine.against.verdict == "beyond":
        return "Judge the log-probabilities of the second run too: what explains the difference is looked for in one run at a time."
    return "Nothing is to be done about rounding, unless bf16 itself costs too much: its errors by layer follow."


def _more(size: Ratio, tokens: int, band: float) -> str:
    """Write how many tokens would decide."""
    enough = needed(size, tokens, band)
    if size.low is None:
        return "Give log-probabilities of more tokens, in at least 8 sequences."
    if enough is None:
        return f"More tokens will hardly decide, because the ratio is close to the limit of {band:.3g}: judge by its size."
    return (
        f"Give log-probabilities of about {enough:,} tokens, {enough / tokens:.2g} times as many, in 8 or more sequences: they probably "
        "decide, if the ratio stays what it is."
    )


def statement(engine: Engine) -> Iterator[str]:
    """Yield the findings beyond the headline, one sentence each."""
    ratios = engine.importance_ratio
    yield (
        f"The importance ratio of a token is {ratios.p1:.3g} to {ratios.p99:.3g} in 98% of tokens, and at most {ratios.max:.3g}; the KL "
        f"divergence is estimated at {magnitude(engine.kl.k1)} (k1) and {magnitude(engine.kl.k3)} (k3)."
    )
    near = [each for each in engine.variants if each.ratio.value and 1 / engine.band <= each.ratio.value <= engine.band]
    if near:
        nearest = min(near, key=lambda each: abs(math.log(each.ratio.value or 1)))
        yield f"In size, the engine's difference is nearest to that of {nearest.variant}: {times(nearest.ratio)} as much."
    if engine.against is not None and engine.against.forbidden:
        yield f"{plural(engine.against.forbidden, 'token')} at minus infinity in one of the two runs only: rounding never does that."


def _between(against: RunDifference) -> str:
    """Write by how much two runs differ: the second is compared with the first alone, which the headline judges after this."""
    judged = {"within": "no more than", "beyond": "more than", "undecided": "perhaps more than"}[against.verdict]
    return (
        f"The two runs differ by {magnitude(against.difference.mean_abs)} nats on average, {judged} two bf16 runs with independent errors "
        f"may ({times(against.ratio)} bf16's deviation from fp32; the limit is {against.band:.3g}). Of the first alone:"
    )


def times(size: Ratio) -> str:
    """Write a ratio with its interval."""
    if size.value is None:
        return "unknown"
    interval = "" if size.low is None or size.high is None else f" ({_short(size.low)} to {_short(size.high)})"
    return f"{_short(size.value)} times{interval}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


_LOOKS = ("higher_precision", "temperature", "filter", "penalty")  # Another fault may have the same effect as what was fitted.


def _named(causes: Sequence[Cause]) -> str:
    """Write what explains the difference."""
    part = next((f" It is explained in part by {cause.what};" for cause in causes if cause.explains == "part"), "")
    whole = [cause for cause in causes if cause.explains != "part"]
    if not whole:
        return ""
    first = whole[0]
    if not all(cause.told_apart for cause in whole):
        rest = f"{part} the rest may be" if part else " It may be"
        *others, last = [cause.what for cause in whole]
        return f"{rest} {', '.join(others)} or {last}: these tokens do not tell them apart."
    if first.kind == "other_weights":
        rest = f"{part} the rest by nothing that was tried:" if part else " No single cause that was tried explains it:"
        return f"{rest} other weights, as after a stale sync, look like this, and so does what was not tried."
    return f" {'It looks like' if first.kind in _LOOKS else 'What explains it:'} {first.what}."


def notes(engine: Engine) -> Iterator[str]:
    """Yield what the verdict covers and how it was reached, one sentence each."""
    given = plural(engine.tokens, "log-probability", "log-probabilities")
    read = f"The file was read as {FORMS[engine.form]}: {given} in {plural(engine.sequences, 'sequence')}"
    yield f"{read}. Those of other candidates (top_logprobs) are not compared."
    units = "too few tokens for an interval" if engine.ratio.low is None else f"an interval over {engine.ratio.units:,} {engine.ratio.over}"
    yield (
        f"Within the band means up to {engine.band:g} times bf16's own deviation ({units}); an independent deviation below "
        f"{engine.visible:g} times bf16's cannot be seen, unless one of the causes tried fits it."
    )
    if engine.forbidden:
        yield f"{plural(engine.forbidden, 'token')} at minus infinity {'is' if engine.forbidden == 1 else 'are'} in no average."
    tried = f"Tried as causes: {listed(engine.tried)}"
    yield tried + (f"; those that change logits on {plural(engine.on, 'token')}." if engine.on < engine.tokens else ".")
    if engine.not_tried:
        yield f"Not tried: {listed(engine.not_tried)}."
    if engine.rerouted:
        yield f"This model's own bf16 run sends {engine.rerouted:,} of these tokens to other experts than fp32; the band includes that."
    yield "The estimates of the KL divergence hold if the engine itself sampled these tokens."
