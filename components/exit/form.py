"""The exit form: as typed, as a request, as a link, and as a command."""

from dataclasses import dataclass
from typing import Any

from analyzers.errors import InvalidRequest
from analyzers.exit_feedback import ExitReport, ExitRequest
from analyzers.exit_feedback.signals import METHODS as DEFAULT
from components.forms import form as forms

ABOUT = (
    "How close gradients without backpropagation at the LM head are to the exact one, as JSON: for each signal the cosine per token "
    "with percentiles and by loss, norm ratio, best scale, energy along the hidden state before and after the final norm, over ranks, "
    "k, anchors, seeds and layers, time and memory, and training curves of a small transformer."
)
PARAMETERS = {
    "model": forms.MODEL,
    "methods": f"Names of the signals to measure (default all: {', '.join(DEFAULT)}).",
    "data": forms.DATA,
    "rank": "Rank of random codes and svd (default 128, of parallel_gold and parallel_topmass 32; at most half the width).",
    "k": "Vocabulary rows of hybrid and true_rows for each token (default 8).",
    "anchors": "Anchor hidden states of span (default 64; at most half the width).",
    "rank_exact": "Columns of hybrid's rank that hold exact codes (default 32; at most a quarter of the rank).",
    "rank_tail": "With rank_exact: columns of hybrid's tail sketch; their sum is its rank.",
    "topk_by": "How hybrid ranks logit gradients: value (default; positive ones first) or magnitude.",
    "alpha": "Scale of dense and hybrid (default 1).",
    "residual": "lambda, the weight of the codes orthogonal to the hidden state in parallel_gold and parallel_topmass (default 0.1).",
    "mass_threshold": "Probability mass of the tokens that parallel_topmass codes (default 0.95).",
    "seeds": "Draws of random codes for the spread over seeds (default 8).",
    "sweep": "Also measure other ranks, ks and anchors, which takes longer (default true).",
    "layers": "Of the logit lens: auto (default, up to six), all, final, or numbers and ranges such as 0,4-6, counted from 0.",
    "training_steps": "Steps of a small transformer under each signal, with three seeds each (default 80; 0: no training).",
    "samples": "Number of samples, taken from the start of the data (default 32).",
    "sequence_length": "Truncate samples to this many tokens (default 256).",
    "tokens": "Maximum number of answer tokens to measure (default 512).",
    "dtype": forms.DTYPE,
    "seed": "Seed of codes, anchors, the choice of tokens and the small transformer (default 0).",
}
OPTIONS = (
    "rank", "k", "anchors", "rank_exact", "rank_tail", "seeds", "training_steps", "samples", "sequence_length", "tokens", "seed", "alpha",
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
    training_steps: str = ""
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


COST = forms.Cost(
    "fewer signals, seeds, tokens or training steps, no sweep, a smaller model",
    _tokens,
    # with each signal and with the three references, for every training seed
    lambda request: request.training_steps * request.training_seeds * (len(request.methods) + 3),
)


def form(query: forms.Query) -> Form:
    """The form that a query describes: keys as in the request, ``methods`` separated by commas; of repeated keys the last counts, unknown
    ones are ignored.
    """
    known = forms.queried(query, Form, ("model", *OPTIONS)) | forms.queried_data(query)
    if (listed := forms.last_texts(query).get("methods")) is not None:
        known["methods"] = tuple(name.strip() for name in listed.split(",")) if listed.strip() else ()
    return Form(**known)


def permalink(report: ExitReport) -> str:
    """The query for this report, pinned to its commits: ``?model=...&methods=...``."""
    return forms.link([("model", forms.pinned(report.checkpoint))], _changed(report))


def command(report: ExitReport) -> str:
    """The same analysis on the command line."""
    return forms.command_line(["exit", forms.pinned(report.checkpoint)], _changed(report))


def _changed(report: ExitReport) -> dict[str, Any]:
    """Methods, data and options that are not at their default."""
    request = report.request
    options = {} if request.methods == DEFAULT else {"methods": ",".join(request.methods)}
    options |= {} if request.data == forms.BUILTIN else {"data": f"{report.inputs.source}@{report.inputs.commit}"}
    return options | forms.changed(request, OPTIONS)
