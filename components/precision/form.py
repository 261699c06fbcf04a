"""The precision form: as typed, as a request, as a link, and as a command."""

from dataclasses import dataclass
from typing import Any

from analyzers import limits
from analyzers.errors import InvalidRequest
from analyzers.precision_variants import PrecisionRequest
from analyzers.precision_variants.variants import DEFAULT
from components.forms import form as forms

ABOUT = (
    "How rounding error grows through a model, forward and backward, in each of several variants compared with fp32, as JSON: the error of "
    "hidden states, logits, gradients and log-probabilities by layer, fp16 headroom, and the first layer to overflow."
)
# Of the endpoint, in this order.
PARAMETERS = (
    "model", "variants", "data", "text", "sequences", "sequence_length", "loss", "advantages", "old_logprobs", "clip_low", "clip_high",
    "random_init", "pre_rounded", "inside", "attention", "seed",
)  # fmt: skip
TEXT, RANDOM = "text", forms.RANDOM
PRETRAINED = "pretrained"
_OPTIONS = ("sequences", "sequence_length", "seed", "loss", "attention")
_FLAGS = ("pre_rounded", "inside")
_CLIP = ("clip_low", "clip_high")
# In place of old log-probabilities that were too long for a link.
_NOT_LINKED = "?"
_MOST_OWN = limits.PRECISION_VARIANTS * 500


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of the form, as typed, in the order of the page. An empty text stands for the default.

    own: the visitor's own variants, one per line. source: which of the texts below is used. advantages: numbers separated by commas.
    old_logprobs: a JSON list per line.
    """

    model: str = ""
    presets: tuple[str, ...] = DEFAULT
    own: str = ""
    source: str = forms.BUILTIN
    sequences: str = ""
    sequence_length: str = ""
    text: str = ""
    dataset: str = ""
    loss: str = "ce"
    weights: str = PRETRAINED
    pre_rounded: bool = False
    inside: bool = False
    attention: str = "sdpa"
    advantages: str = ""
    old_logprobs: str = ""
    clip_low: str = ""
    clip_high: str = ""
    seed: str = ""

    def request(self) -> PrecisionRequest:
        """The validated request. Raises InvalidRequest."""
        model = forms.one_model(self.model, "One model at a time: name one.")
        asked = {"model": model, "variants": self._variants(), **self._data(), **(self._policy() if self.loss != "ce" else {})}
        return forms.validated(PrecisionRequest, self, (*_OPTIONS, *_FLAGS), **asked, random_init=self.weights == RANDOM)

    def _policy(self) -> dict[str, Any]:
        if self.old_logprobs == _NOT_LINKED:
            raise InvalidRequest("The old log-probabilities of this analysis were too long for a link: paste them into the options again.")
        from analyzers.precision_variants.request import parse_old_logprobs

        given: dict[str, Any] = {"advantages": _numbers(self.advantages)} if self.advantages.strip() else {}
        given |= {"old_logprobs": parse_old_logprobs(self.old_logprobs)} if self.old_logprobs.strip() else {}
        return given | forms.parsed(self, PrecisionRequest, _CLIP)

    def _variants(self) -> tuple[str, ...]:
        if len(self.own) > _MOST_OWN:
            raise InvalidRequest(f"{len(self.own):,} characters are more than {limits.PRECISION_VARIANTS} variants have.")
        variants = (*self.presets, *(line.strip() for line in self.own.splitlines() if line.strip()))
        if not variants:
            raise InvalidRequest("Tick at least one variant, or write one of your own.")
        return variants

    def _data(self) -> dict[str, Any]:
        if self.source == TEXT:
            if not self.text.strip():
                raise InvalidRequest("Paste a text to run the model on, or choose the built-in one.")
            return {"text": self.text}
        if self.source == forms.DATASET:
            return forms.dataset(self.dataset)
        return {"data": RANDOM} if self.source == RANDOM else {}


def _tokens(request: PrecisionRequest) -> int:
    """fp16 may need several loss scales, and comparing takes about as long as running."""
    variants = len(request.variants)
    passes = 2 * variants + (1 + variants if request.pre_rounded else 1)
    return 2 * passes * request.sequences * request.sequence_length


COST = forms.Cost("fewer variants, fewer or shorter sequences, a smaller model", _tokens)


def form(query: forms.Query) -> Form:
    """The form that a query describes.

    Keys are those of the request, except that ``variants`` lists presets separated by commas and each ``variant`` is one of the visitor's
    own. The last value of a key counts; unknown keys are ignored.
    """
    texts = forms.last_texts(query)
    known = forms.queried(query, Form, ("model", *_OPTIONS, *_FLAGS, *_CLIP, "advantages"))
    known |= {"old_logprobs": dict(query)["old_logprobs"] or _NOT_LINKED} if "old_logprobs" in texts else {}
    known |= {"weights": RANDOM} if texts.get("random_init") in ("1", "true") else {}
    if "variants" in texts or "variant" in texts:
        known["presets"] = tuple(filter(None, (name.strip() for name in texts.get("variants", "").split(","))))
        own = [text[: limits.FILTER_LENGTH] for key, text in query if key == "variant"]
        known["own"] = "\n".join(" ".join(text.split()) for text in own[: limits.PRECISION_VARIANTS + 1])
    if "text" in texts:
        return Form(**known, text=dict(query)["text"], source=TEXT)
    return Form(**known | ({"source": RANDOM} if texts.get("data") == RANDOM else forms.queried_data(query)))


def permalink(request: PrecisionRequest) -> str:
    """The query that asks for the same: ``?model=...&variants=...``. Texts that are too long are omitted."""
    from analyzers.precision_variants.request import written

    presets, own = _sorted(request)
    keys = [("model", request.model)]
    if request.variants != DEFAULT:
        keys += [("variants", ",".join(presets)), *(("variant", text) for text in own)]
    if request.text is not None:
        keys.append(("text", forms.linked(request.text)))
    elif request.data != forms.BUILTIN:
        keys.append(("data", request.data))
    if request.old_logprobs:
        keys.append(("old_logprobs", forms.linked(written(request.old_logprobs))))
    return forms.link(keys, _changed(request))


def command(request: PrecisionRequest) -> str:
    """The command that makes the same analysis; a pasted text or old log-probabilities must be saved as the named file first."""
    presets, own = _sorted(request)
    words = ["precision", request.model]
    if request.variants != DEFAULT:
        words += ["--variants", ",".join(presets)] if presets else []
        words += [word for text in own for word in ("--variant", text)]
    if request.text is not None or request.data != forms.BUILTIN:
        words += ["--data", "text.txt" if request.text is not None else request.data]
    words += ["--old-logprobs", "old-logprobs.jsonl"] if request.old_logprobs else []
    return forms.command_line(words, _changed(request))


def _sorted(request: PrecisionRequest) -> tuple[list[str], list[str]]:
    """Presets, and the visitor's own variants."""
    own = [text for text in request.variants if ":" in text]
    return [text for text in request.variants if ":" not in text], own


def _changed(request: PrecisionRequest) -> dict[str, Any]:
    """The options that are not at their default, switches last."""
    advantages = {"advantages": ",".join(map(repr, request.advantages))} if request.advantages else {}
    return forms.changed(request, (*_OPTIONS, *_CLIP)) | advantages | forms.changed(request, ("random_init", *_FLAGS))


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidRequest(
            f"{text[: forms.SHOWN]!r} are not advantages: write a number for each sequence, separated by commas."
        ) from None
