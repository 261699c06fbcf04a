"""The form of the exit page: as typed, as a link, and as a command."""

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analyzers.errors import InvalidRequest
from analyzers.exit_feedback.signals import METHODS as DEFAULT
from components.forms.links import SHOWN, Query, pinned, validated
from components.forms.model_form import BUILTIN as BUILTIN
from components.forms.model_form import DATASET as DATASET
from components.forms.model_form import changed, dataset, dataset_at, filled, flags, last_texts, model_link, one_model, option
from components.forms.typed_numbers import fraction, whole

if TYPE_CHECKING:
    from analyzers.exit_feedback import ExitReport, ExitRequest

_WHOLE = (
    "rank", "k", "anchors", "rank_exact", "rank_tail", "seeds", "training_steps", "samples", "sequence_length", "tokens", "seed",
)  # fmt: skip
_FRACTIONS = ("alpha", "residual", "mass_threshold")
_TEXTS = ("layers", "topk_by", "dtype")
_FLAGS = ("sweep",)


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of the form, as typed, in the order of the page. An empty text means the default. source: whether ``dataset`` is used."""

    model: str = ""
    methods: tuple[str, ...] = DEFAULT
    rank: str = ""
    k: str = ""
    anchors: str = ""
    seeds: str = ""
    source: str = BUILTIN
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

    def request(self) -> "ExitRequest":
        """The validated request. Raises InvalidRequest with the sentence to show."""
        from analyzers.exit_feedback import ExitRequest

        asked: dict[str, Any] = {"model": one_model(self.model, "Signals are measured in one model at a time: name one.")}
        if (unknown := next((name for name in self.methods if name not in DEFAULT), None)) is not None:
            raise InvalidRequest(f"There is no signal {unknown[:SHOWN]!r}: choose among {', '.join(DEFAULT)}.")
        asked |= {"methods": self.methods, "sweep": self.sweep}
        asked |= dataset(self.dataset) if self.source == DATASET else {}
        asked |= filled(self, _WHOLE, whole) | filled(self, _FRACTIONS, fraction) | filled(self, _TEXTS)
        return validated(ExitRequest, **asked)


def form(query: Query) -> Form:
    """The form that a query describes: keys as in the request, ``methods`` separated by commas; of repeated keys the last counts, unknown
    ones are ignored.
    """
    texts = last_texts(query)
    known: dict[str, Any] = {key: texts[key] for key in ("model", *_WHOLE, *_FRACTIONS, *_TEXTS) if key in texts}
    known |= flags(texts, _FLAGS)
    if "methods" in texts:
        known["methods"] = tuple(name.strip() for name in texts["methods"].split(",")) if texts["methods"].strip() else ()
    if texts.get("data", BUILTIN) not in ("", BUILTIN):
        known |= {"dataset": texts["data"], "source": DATASET}
    return Form(**known)


def permalink(report: "ExitReport") -> str:
    """The query for this report, pinned to its commits: ``?model=...&methods=...``."""
    return model_link(report.checkpoint, list(_keys(report).items()), _changed(report))


def command(report: "ExitReport") -> str:
    """The same analysis on the command line."""
    words = [word for key, text in _keys(report).items() for word in (f"--{key}", text)]
    words += [option(name, value) for name, value in _changed(report).items()]
    return shlex.join(["python", "-m", "analyzers", "exit", pinned(report.checkpoint), *words])


def _keys(report: "ExitReport") -> dict[str, str]:
    """Methods and data that are not the default."""
    request = report.request
    keys = {} if request.methods == DEFAULT else {"methods": ",".join(request.methods)}
    return keys if request.data == BUILTIN else keys | {"data": dataset_at(report.inputs.source, report.inputs.commit)}


def _changed(report: "ExitReport") -> dict[str, Any]:
    """Options that are not at their default."""
    return changed(report.request, (*_WHOLE, *_FRACTIONS, *_TEXTS, *_FLAGS))
