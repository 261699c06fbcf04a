"""The form of the conflict page, as typed, as a link, and as a command."""

import shlex
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from components.conflict.pairs import lines, pasted
from components.forms.links import Query, pinned, validated
from components.forms.model_form import BUILTIN as BUILTIN
from components.forms.model_form import DATASET as DATASET
from components.forms.model_form import changed, dataset, dataset_at, filled, flags, last_texts, linked, model_link, one_model, option
from components.forms.typed_numbers import fraction, whole

if TYPE_CHECKING:
    from analyzers.gradient_conflict import ConflictReport, ConflictRequest

PAIRS = "pairs"
_WHOLE = ("samples", "max_length", "seed")
_FRACTIONS = ("gamma", "floor", "epsilon", "topk", "topk_share")
_TEXTS = ("choice", "template", "unit", "ffn", "topk_layers", "select", "loss", "dtype", "attention")
_FLAGS = ("weights", "checkpointing")
# In the order of the command line, where each is named as in the request.
_OPTIONS = (
    "samples", "choice", "template", "max_length", "loss", "gamma", "floor", "epsilon", "unit", "ffn", "topk", "topk_share", "topk_layers",
    "select", "attention", "dtype", "seed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of the form, as typed, in the order of the page. An empty text means the default.

    source: which of the texts below is used, "builtin" for neither. Of given pairs all are run, unless ``samples`` says how many.
    """

    model: str = ""
    source: str = BUILTIN
    samples: str = ""
    max_length: str = ""
    choice: str = "random"
    template: str = "auto"
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
    epsilon: str = ""
    dtype: str = "auto"
    attention: str = "sdpa"
    seed: str = ""
    checkpointing: bool = False
    weights: bool = True

    def request(self) -> "ConflictRequest":
        """The validated request. Raises InvalidRequest with the sentence to show, InvalidData or LimitExceeded for pairs."""
        from analyzers.gradient_conflict import ConflictRequest

        asked: dict[str, Any] = {"model": one_model(self.model, "Samples are compared in one model at a time: name one."), **self._data()}
        asked |= filled(self, _WHOLE, whole) | filled(self, _FRACTIONS, fraction) | filled(self, _TEXTS)
        return validated(ConflictRequest, **asked, weights=self.weights, checkpointing=self.checkpointing)

    def _data(self) -> dict[str, Any]:
        if self.source == PAIRS:
            pairs = pasted(self.pairs)
            return {"pairs": pairs, "samples": max(2, len(pairs))}
        return dataset(self.dataset) if self.source == DATASET else {}


def form(query: Query) -> Form:
    """The form that the keys and values of a query describe, named as in the request; the last of each counts, unknown ones are ignored."""
    texts = last_texts(query)
    known: dict[str, Any] = {
        each.name: texts[each.name] for each in fields(Form) if each.name in texts and each.name not in (*_FLAGS, "source", "dataset")
    }
    known |= flags(texts, _FLAGS)
    if "pairs" in texts:
        return Form(**known | {"pairs": dict(query)["pairs"], "source": PAIRS})
    if texts.get("data", BUILTIN) not in ("", BUILTIN):
        known |= {"dataset": texts["data"], "source": DATASET}
    return Form(**known)


def permalink(report: "ConflictReport") -> str:
    """The query that shows this report again, pinned to the commits: ``?model=...&data=...``. Pairs too long for it are omitted."""
    request = report.request
    keys = []
    if request.pairs:
        text = lines(pair.model_dump(exclude_defaults=True) for pair in request.pairs)
        keys = [("pairs", linked(text)), ("samples", str(request.samples))]
    elif request.data != BUILTIN:
        keys = [("data", dataset_at(report.data.source, report.data.commit))]
    options = changed(request, (*_OPTIONS, *_FLAGS))
    return model_link(report.checkpoint, keys, {name: options[name] for name in options if name != "samples" or not request.pairs})


def command(report: "ConflictReport") -> str:
    """The shell command for the same analysis; given pairs have to be saved as pairs.jsonl first."""
    from analyzers.gradient_conflict import TOPK_OPTIONS

    request = report.request
    words = ["conflict", pinned(report.checkpoint)]
    if request.pairs or request.data != BUILTIN:
        words += ["--data", "pairs.jsonl" if request.pairs else dataset_at(report.data.source, report.data.commit)]
    for name, value in changed(request, _OPTIONS).items():
        if name in TOPK_OPTIONS and request.ffn != "topk":  # the command refuses them
            continue
        # a value that begins with a dash would be taken for an option
        words += [option(name, value)] if str(value).startswith("-") else option(name, value).split("=", 1)
    words += [option(name, value) for name, value in changed(request, _FLAGS).items()]
    return shlex.join(["python", "-m", "analyzers", *words])
