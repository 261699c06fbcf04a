"""The exit form: as typed, as a request, as a link, and as a command."""

from dataclasses import dataclass
from typing import Any

from analyzers.errors import InvalidRequest
from analyzers.exit_feedback import ExitRequest
from analyzers.exit_feedback.signals import METHODS as DEFAULT
from components.forms import form as forms

ABOUT = (
    "How close gradients without backpropagation at the LM head are to the exact one, as JSON: for each signal the cosine per token "
    "with percentiles and by loss, norm ratio, best scale, energy along the hidden state before and after the final norm, over ranks, "
    "k, anchors, seeds and layers, and time and memory."
)
# Of the endpoint, in this order.
PARAMETERS = (
    "model", "methods", "data", "rank", "k", "anchors", "rank_exact", "rank_tail", "topk_by", "alpha", "residual", "mass_threshold",
    "seeds", "sweep", "layers", "samples", "sequence_length", "tokens", "dtype", "seed",
)  # fmt: skip
OPTIONS = (
    "rank", "k", "anchors", "rank_exact", "rank_tail", "seeds", "samples", "sequence_length", "tokens", "seed", "alpha",
    "residual", "mass_threshold", "layers", "topk_by", "dtype", "sweep",
)  # fmt: skip


# Layers of the logit lens, and points of a sweep (settings times seeds).
_LAYERS, _SWEPT = 6, 21


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of the form, as typed, in the order of the page. An empty text means the default. source: whether ``dataset`` is used."""

    model: str = ""
    methods: tuple[str, ...] = DEFAULT
    rank: str = ""
    k: str = ""
    anchors: str = ""
    seeds: str = ""
    source: str = forms.BUILTIN
    samples: str = ""
    sequence_length: str = ""
    dataset: str = ""
    layers: str = ""
    sweep: bool = True
    tokens: str = ""
    rank_exact: str = ""
    rank_tail: str = ""
    topk_by: str = "value"
    alpha: str = ""
    residual: str = ""
    mass_threshold: str = ""
    dtype: str = "auto"
    seed: str = ""

    def request(self) -> ExitRequest:
        """The validated request. Raises InvalidRequest with the sentence to show."""
        if (unknown := next((name for name in self.methods if name not in DEFAULT), None)) is not None:
            raise InvalidRequest(f"{unknown[: forms.SHOWN]!r} is not a signal: choose among {', '.join(DEFAULT)}.")
        asked: dict[str, Any] = {"model": forms.one_model(self.model, "Signals are measured in one model at a time: name one.")}
        asked |= forms.dataset(self.dataset) if self.source == forms.DATASET else {}
        return forms.validated(ExitRequest, self, OPTIONS, **asked, methods=self.methods)


def _tokens(request: ExitRequest) -> int:
    """Each signal is a product with the head, a part of the model, for every layer, setting and seed."""
    points = len(request.methods) * (_LAYERS + request.seeds + (_SWEPT if request.sweep else 0))
    return request.samples * request.sequence_length + request.tokens * points


COST = forms.Cost("fewer signals, seeds or tokens, no sweep, a smaller model", _tokens)


def form(query: forms.Query) -> Form:
    """The form that a query describes: keys as in the request, ``methods`` separated by commas; of repeated keys the last counts, unknown
    ones are ignored.
    """
    known = forms.queried(query, Form, ("model", *OPTIONS)) | forms.queried_data(query)
    if (listed := forms.last_texts(query).get("methods")) is not None:
        known["methods"] = tuple(name.strip() for name in listed.split(",")) if listed.strip() else ()
    return Form(**known)


def permalink(request: ExitRequest) -> str:
    """The query that asks for the same: ``?model=...&methods=...``."""
    return forms.link([("model", request.model)], _changed(request))


def command(request: ExitRequest) -> str:
    """The same analysis on the command line."""
    return forms.command_line(["exit", request.model], _changed(request))


def _changed(request: ExitRequest) -> dict[str, Any]:
    """Methods, data and options that are not at their default."""
    options = {} if request.methods == DEFAULT else {"methods": ",".join(request.methods)}
    options |= {} if request.data == forms.BUILTIN else {"data": request.data}
    return options | forms.changed(request, OPTIONS)
