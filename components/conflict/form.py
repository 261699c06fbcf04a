"""The form of the conflict page, as typed, as a link, and as a command."""

import shlex
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from analyzers import limits
from analyzers.errors import InvalidRequest
from components.conflict.pairs import lines, pasted
from components.links import Query, pinned, references, validated
from components.typed_numbers import fraction, whole

if TYPE_CHECKING:
    from analyzers.gradient_conflict import ConflictReport, ConflictRequest

BUILTIN, PAIRS, DATASET = "builtin", "pairs", "dataset"
# Pairs longer than this are not put into a link: browsers and proxies cut addresses off.
LINKED_CHARACTERS = 4_000
_WHOLE = ("samples", "max_length", "seed")
_FRACTIONS = ("gamma", "floor", "topk", "topk_share")
_TEXTS = ("unit", "ffn", "topk_layers", "select", "loss", "dtype", "attention")
_FLAGS = ("weights", "checkpointing")
# In the order of the command line, where each is named as in the request.
_OPTIONS = (
    "samples", "max_length", "loss", "gamma", "floor", "unit", "ffn", "topk", "topk_share", "topk_layers", "select", "attention", "dtype",
    "seed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of the form, as typed, in the order of the page. An empty text means: the default.

    source: which of the texts below counts, "builtin" for neither. Of given pairs all are run, unless ``samples`` says how many.
    """

    model: str = ""
    source: str = BUILTIN
    samples: str = ""
    max_length: str = ""
    pairs: str = ""
    dataset: str = ""
    unit: str = "ffn"
    ffn: str = "original"
    topk: str = ""
    topk_layers: str = ""
    topk_share: str = ""
    select: str = "gate"
    loss: str = "mean"
    gamma: str = ""
    floor: str = ""
    dtype: str = "auto"
    attention: str = "sdpa"
    seed: str = ""
    checkpointing: bool = False
    weights: bool = True

    def request(self) -> "ConflictRequest":
        """The validated request. Raises InvalidRequest with the sentence to show, InvalidData or LimitExceeded for pairs."""
        from analyzers.gradient_conflict import ConflictRequest

        named = references(self.model, 1)
        if len(named) != 1:
            raise InvalidRequest(
                "Samples are compared in one model at a time: name one."
                if named
                else "Type or paste a model id, such as org/name or org/name@revision, or pick one of the examples."
            )
        asked: dict[str, Any] = {"model": named[0], **self._data()}
        asked |= {name: whole(name, text) for name in _WHOLE if (text := getattr(self, name).strip())}
        asked |= {name: fraction(name, text) for name in _FRACTIONS if (text := getattr(self, name).strip())}
        asked |= {name: text for name in _TEXTS if (text := getattr(self, name).strip())}
        return validated(ConflictRequest, **asked, weights=self.weights, checkpointing=self.checkpointing)

    def _data(self) -> dict[str, Any]:
        if self.source == PAIRS:
            pairs = pasted(self.pairs)
            return {"pairs": pairs, "samples": max(2, len(pairs))}
        if self.source == DATASET:
            if not self.dataset.strip():
                raise InvalidRequest("Type or paste the id of a dataset on the Hub, such as org/name, or choose the built-in text.")
            return {"data": self.dataset.strip()}
        return {}


def form(query: Query) -> Form:
    """The form that the keys and values of a query describe, named as in the request; of each the last counts, unknown ones do not."""
    last = dict(query)
    cut = {key: text[: limits.FILTER_LENGTH + 1] for key, text in last.items()}
    known: dict[str, Any] = {
        each.name: cut[each.name] for each in fields(Form) if each.name in cut and each.name not in (*_FLAGS, "source", "dataset")
    }
    flags: dict[str, Any] = {name: cut[name] in ("1", "true") for name in _FLAGS if name in cut}
    if "pairs" in last:
        return Form(**known | {"pairs": last["pairs"], "source": PAIRS}, **flags)
    if cut.get("data", BUILTIN) not in ("", BUILTIN):
        return Form(**known | {"dataset": cut["data"], "source": DATASET}, **flags)
    return Form(**known, **flags)


def permalink(report: "ConflictReport") -> str:
    """The query that shows this report again, pinned to the commits: ``?model=...&data=...``. Pairs too long for it are left out."""
    request = report.request
    keys = [("model", pinned(report.checkpoint))]
    if request.pairs:
        text = lines(pair.model_dump(exclude_defaults=True) for pair in request.pairs)
        keys += [("pairs", text if len(text) <= LINKED_CHARACTERS else ""), ("samples", str(request.samples))]
    elif request.data != BUILTIN:
        keys.append(("data", _dataset(report)))
    keys += [(name, str(value)) for name, value in _changed(request).items() if name != "samples" or not request.pairs]
    return "?" + urlencode([*keys, *((name, str(int(getattr(request, name)))) for name in _flags(request))])


def command(report: "ConflictReport") -> str:
    """The line that makes the same analysis in a shell; given pairs are to be saved beside it first."""
    request = report.request
    words = ["conflict", pinned(report.checkpoint)]
    if request.pairs or request.data != BUILTIN:
        words += ["--data", "pairs.jsonl" if request.pairs else _dataset(report)]
    for name, value in _changed(request).items():
        words.append(f"--{name.replace('_', '-')}={value}" if str(value).startswith("-") else f"--{name.replace('_', '-')}")
        words += [] if str(value).startswith("-") else [str(value)]
    words += ["--no-weights" if name == "weights" else "--checkpointing" for name in _flags(request)]
    return shlex.join(["python", "-m", "analyzers", *words])


def _dataset(report: "ConflictReport") -> str:
    return f"{report.data.source}@{report.data.commit}"


def _changed(request: "ConflictRequest") -> dict[str, Any]:
    """The options that are not at their default."""
    defaults = type(request).model_fields
    return {name: value for name in _OPTIONS if (value := getattr(request, name)) != defaults[name].default}


def _flags(request: "ConflictRequest") -> list[str]:
    return [name for name in _FLAGS if getattr(request, name) != type(request).model_fields[name].default]
