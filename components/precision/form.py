"""The form of the precision page, as typed, as a link, and as a command."""

import shlex
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from analyzers import limits
from analyzers.errors import InvalidRequest
from components.links import SHOWN, Query, pinned, references, validated
from components.precision.names import DEFAULT
from components.typed_numbers import whole

if TYPE_CHECKING:
    from analyzers.precision_variants import PrecisionReport, PrecisionRequest

BUILTIN, TEXT, RANDOM, DATASET = "builtin", "text", "random", "dataset"
PRETRAINED = "pretrained"
# Texts longer than this are not put into a link: browsers and proxies cut addresses off.
LINKED_CHARACTERS = 4_000
_WHOLE = ("sequences", "sequence_length", "seed")
_TEXTS = ("loss", "attention")
_FLAGS = ("pre_rounded", "inside")
_MOST_OWN = limits.PRECISION_VARIANTS * 500


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of the form, as typed, in the order of the page. An empty text means: the default.

    own: variants of the visitor's own, one in a line. source: which of the texts below counts. advantages: numbers separated by commas.
    """

    model: str = ""
    presets: tuple[str, ...] = DEFAULT
    own: str = ""
    source: str = BUILTIN
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
    seed: str = ""

    def values(self) -> list[Any]:
        """What each field of the page holds."""
        held: list[Any] = [getattr(self, each.name) for each in fields(self)]
        return [list(value) if isinstance(value, tuple) else value for value in held]

    def request(self) -> "PrecisionRequest":
        """The validated request. Raises InvalidRequest with the sentence to show."""
        from analyzers.precision_variants import PrecisionRequest

        named = references(self.model, 1)
        if len(named) != 1:
            raise InvalidRequest(
                "Variants are run of one model at a time: name one."
                if named
                else "Type or paste a model id, such as org/name or org/name@revision, or pick one of the examples."
            )
        asked: dict[str, Any] = {"model": named[0], "variants": self._variants(), **self._data()}
        asked |= {name: whole(name, text) for name in _WHOLE if (text := getattr(self, name).strip())}
        asked |= {name: text for name in _TEXTS if (text := getattr(self, name).strip())}
        if self.loss == "gspo" and self.advantages.strip():
            asked["advantages"] = _numbers(self.advantages)
        flags = {name: getattr(self, name) for name in _FLAGS}
        return validated(PrecisionRequest, **asked, **flags, random_init=self.weights == RANDOM)

    def _variants(self) -> tuple[str, ...]:
        if len(self.own) > _MOST_OWN:
            raise InvalidRequest(f"{len(self.own):,} characters are more than {limits.PRECISION_VARIANTS} variants have.")
        found = (*self.presets, *(line.strip() for line in self.own.splitlines() if line.strip()))
        if not found:
            raise InvalidRequest("Tick at least one variant, or write one of your own.")
        return found

    def _data(self) -> dict[str, Any]:
        if self.source == TEXT:
            if not self.text.strip():
                raise InvalidRequest("Paste a text to run the model on, or choose the built-in one.")
            return {"text": self.text}
        if self.source == DATASET:
            if not self.dataset.strip():
                raise InvalidRequest("Type or paste the id of a dataset on the Hub, such as org/name, or choose the built-in text.")
            return {"data": self.dataset.strip()}
        return {"data": RANDOM} if self.source == RANDOM else {}


def form(query: Query) -> Form:
    """The form that a query describes: keys as in the request, but ``variants`` has presets between commas and each ``variant`` is one of
    the visitor's own. Of other keys the last counts; unknown ones do not.
    """
    last = dict(query)
    cut = {key: text[: limits.FILTER_LENGTH + 1] for key, text in last.items()}
    known: dict[str, Any] = {key: cut[key] for key in ("model", *_WHOLE, *_TEXTS, "advantages") if key in cut}
    known |= {name: cut[name] in ("1", "true") for name in _FLAGS if name in cut}
    known |= {"weights": RANDOM} if cut.get("random_init") in ("1", "true") else {}
    if "variants" in cut or "variant" in cut:
        known["presets"] = tuple(filter(None, (name.strip() for name in cut.get("variants", "").split(","))))
        own = [text[: limits.FILTER_LENGTH] for key, text in query if key == "variant"]
        known["own"] = "\n".join(" ".join(text.split()) for text in own[: limits.PRECISION_VARIANTS + 1])
    if "text" in last:
        return Form(**known, text=last["text"], source=TEXT)
    data = cut.get("data", BUILTIN)
    if data in ("", BUILTIN, RANDOM):
        return Form(**known, source=data or BUILTIN)
    return Form(**known, dataset=data, source=DATASET)


def permalink(report: "PrecisionReport") -> str:
    """The query that shows this report again, pinned to the commits: ``?model=...&variants=...``. A text too long for it is left out."""
    request = report.request
    presets, own = _sorted(request)
    keys = [("model", pinned(report.checkpoint))]
    if request.variants != DEFAULT:
        keys += [("variants", ",".join(presets)), *(("variant", text) for text in own)]
    if request.text is not None:
        keys.append(("text", request.text if len(request.text) <= LINKED_CHARACTERS else ""))
    elif request.data != BUILTIN:
        keys.append(("data", _data(report)))
    return "?" + urlencode([*keys, *_changed(request).items(), *((name, "1") for name in _flags(request))])


def command(report: "PrecisionReport") -> str:
    """The line that makes the same analysis in a shell; a given text is to be saved beside it first."""
    request = report.request
    presets, own = _sorted(request)
    words = ["precision", pinned(report.checkpoint)]
    if request.variants != DEFAULT:
        words += ["--variants", ",".join(presets)] if presets else []
        words += [word for text in own for word in ("--variant", text)]
    if request.text is not None or request.data != BUILTIN:
        words += ["--data", "text.txt" if request.text is not None else _data(report)]
    words += [f"--{name.replace('_', '-')}={value}" for name, value in _changed(request).items()]
    words += [f"--{name.replace('_', '-')}" for name in _flags(request)]
    return shlex.join(["python", "-m", "analyzers", *words])


def _sorted(request: "PrecisionRequest") -> tuple[list[str], list[str]]:
    """Presets, and variants of the visitor's own."""
    own = [text for text in request.variants if ":" in text]
    return [text for text in request.variants if ":" not in text], own


def _data(report: "PrecisionReport") -> str:
    return RANDOM if report.inputs.source == RANDOM else f"{report.inputs.source}@{report.inputs.commit}"


def _changed(request: "PrecisionRequest") -> dict[str, str]:
    """The options with a value that are not at their default."""
    defaults = type(request).model_fields
    found = {name: str(value) for name in (*_WHOLE, *_TEXTS) if (value := getattr(request, name)) != defaults[name].default}
    return found | ({"advantages": ",".join(map(repr, request.advantages))} if request.advantages else {})


def _flags(request: "PrecisionRequest") -> list[str]:
    return [name for name in ("random_init", *_FLAGS) if getattr(request, name)]


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidRequest(f"{text[:SHOWN]!r} are no advantages: write a number for each sequence, separated by commas.") from None
