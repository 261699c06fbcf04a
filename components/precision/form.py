"""Turns the precision form into a request, and a request into a link and a command."""

from typing import Any

from analyzers.core import limits
from analyzers.core.errors import InvalidRequest
from analyzers.precision_variants import PrecisionRequest
from analyzers.precision_variants.engine.reading import parse_logprobs
from analyzers.precision_variants.request import parse_old_logprobs, written
from analyzers.precision_variants.variants import DEFAULT, PRESETS
from components.forms import form as forms
from components.forms.form import Query, Typed

ABOUT = (
    "How rounding error grows through a model, forward and backward, in each of several variants compared with fp32, as JSON: the error of "
    "hidden states, logits, gradients and log-probabilities by layer, fp16 headroom, and the first layer to overflow."
)
TEXT, RANDOM, ENGINE = "text", forms.RANDOM, "logprobs"
PRETRAINED = "pretrained"
# Stands in the field instead of a file that the browser did not read.
TOO_LARGE = "This file has more than {} MB: use the command line."
_POLICY = ("advantages", "old_logprobs", "clip_low", "clip_high")
# Replaces old log-probabilities that were too long for a link.
_NOT_LINKED = "?"
_MOST_OWN = limits.PRECISION_VARIANTS * 500


def request(form: Typed) -> PrecisionRequest:
    """Validate what is typed as a request. Raises InvalidRequest.

    variants, more: presets; order: their names in the order of a link; own: the visitor's variants, one per line.
    """
    given: dict[str, Any] = {"model": forms.one_model(form.get("model"), "One model at a time: name one."), "variants": _variants(form)}
    given |= {"random_init": form.get("random_init") == RANDOM, "text": None}
    if form.get("data") == TEXT:
        if not forms.typed(text := form.get("text")).strip():
            raise InvalidRequest("Paste a text to run the model on, or choose the built-in one.")
        given["text"] = text
    given["logprobs"] = None
    if form.get("data") == ENGINE:
        if not (lines := forms.typed(form.get("logprobs"))).strip():
            raise InvalidRequest("Choose or paste a file with the engine's log-probabilities, or another text.")
        if lines.startswith(TOO_LARGE.partition("{")[0]):
            raise InvalidRequest(lines)
        given["logprobs"] = parse_logprobs(lines, "the engine's log-probabilities")
    given["data"] = RANDOM if form.get("data") == RANDOM else forms.data(form)
    if form.get("loss", "ce") == "ce":  # cross-entropy has no policy settings
        given |= dict.fromkeys(_POLICY)
    else:
        given["old_logprobs"] = _old_logprobs(forms.typed(form.get("old_logprobs")))
    return forms.validated(PrecisionRequest, form, **given)


def _old_logprobs(text: str) -> Any:
    if text == _NOT_LINKED:
        raise InvalidRequest("The old log-probabilities of this analysis were too long for a link: paste them into the options again.")
    return parse_old_logprobs(text) if text.strip() else None


def _variants(form: Typed) -> tuple[str, ...]:
    own = forms.typed(form.get("own"))
    if len(own) > _MOST_OWN:
        raise InvalidRequest(f"{len(own):,} characters are more than {limits.PRECISION_VARIANTS} variants have.")
    place = {name: number for number, name in enumerate(forms.listed(forms.typed(form.get("order"))))}
    presets = sorted([*form.get("variants", DEFAULT), *form.get("more", ())], key=lambda name: place.get(name, len(place)))
    variants = (*presets, *(line.strip() for line in own.splitlines() if line.strip()))
    if not variants:
        raise InvalidRequest("Tick at least one variant, or write one of your own.")
    return variants


def _tokens(request: PrecisionRequest) -> int:
    """Estimate the cost of a run in tokens through the model: fp16 may need several loss scales, and comparing costs as much as running."""
    variants = len(request.variants)
    passes = 2 * variants + (1 + variants if request.pre_rounded else 1)
    engine = _ENGINE_RUNS * sum(len(each.logprobs) for each in request.logprobs)
    return 2 * passes * request.sequences * request.sequence_length + engine


_ENGINE_RUNS = 8  # The reference, the presets and two kinds of quantized weights, forward only.
COST = forms.Cost("fewer variants, fewer or shorter sequences, a smaller model", _tokens)


def filled(query: Query) -> Typed:
    """Return the values that a query fills in: ``variants`` lists presets separated by commas, ``variant`` is one of the visitor's.

    Names of presets that the page offers first, and unknown ones, fill ``variants``, the others ``more``; ``order`` keeps their order.
    """
    whole, known = dict(query), forms.queried(query, PrecisionRequest)
    if "old_logprobs" in whole:
        known["old_logprobs"] = whole["old_logprobs"] or _NOT_LINKED
    if "random_init" in known:
        known["random_init"] = RANDOM if known["random_init"] else PRETRAINED
    if "variants" in whole or "variant" in whole:
        named = list(filter(None, forms.listed(known.get("variants", ""))))
        known["more"] = [name for name in named if name in PRESETS and name not in DEFAULT]
        known["variants"] = [name for name in named if name not in known["more"]]
        known["order"] = ",".join(named) if known["more"] else ""
        own = [text[: limits.FILTER_LENGTH] for key, text in query if key == "variant"]
        known["own"] = "\n".join(" ".join(text.split()) for text in own[: limits.PRECISION_VARIANTS + 1])
    if "logprobs" in whole:  # a file is too long for a link, which only says that there was one
        return known | {"logprobs": "", "data": ENGINE}
    if "text" in whole:
        return known | {"text": whole["text"], "data": TEXT}
    return known | ({"data": RANDOM} if known.get("dataset") == RANDOM else {})


def permalink(request: PrecisionRequest) -> str:
    """Return the query that makes the same request. Texts that are too long are omitted."""
    presets, own = _sorted(request)
    keys: dict[str, Query] = {}
    if request.variants != DEFAULT:
        keys["variants"] = [("variants", ",".join(presets)), *(("variant", text) for text in own)]
    if request.text is not None:
        keys["text"] = [("text", forms.linked(request.text))]
    if request.logprobs:
        keys["logprobs"] = [("logprobs", "")]
    if request.old_logprobs:
        keys["old_logprobs"] = [("old_logprobs", forms.linked(written(request.old_logprobs)))]
    return forms.permalink(request, **keys)


def command(request: PrecisionRequest) -> str:
    """Return the command for the same analysis, for which pasted text or old log-probabilities must be saved as the named file first."""
    presets, own = _sorted(request)
    words: dict[str, list[str]] = {}
    if request.variants != DEFAULT:
        listed = [f"--variants={','.join(presets)}"] if presets else []
        words["variants"] = [*listed, *(f"--variant={text}" for text in own)]
    if request.text is not None:
        words["data"] = ["--data=text.txt"]
    if request.logprobs:
        words["logprobs"] = ["--logprobs=logprobs.jsonl"]
    if request.old_logprobs:
        words["old_logprobs"] = ["--old-logprobs=old-logprobs.jsonl"]
    return forms.command(request, **words)


def _sorted(request: PrecisionRequest) -> tuple[list[str], list[str]]:
    """Separate presets from the visitor's own variants."""
    own = [text for text in request.variants if ":" in text]
    return [text for text in request.variants if ":" not in text], own
