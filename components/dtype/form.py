"""The passport form: as typed, as a request, as a link, and as a command."""

from dataclasses import dataclass, replace
from typing import get_args

from analyzers import limits
from analyzers.dtype_detection import DtypeRequest
from analyzers.dtype_detection.report import QuantizationFormat
from analyzers.errors import InvalidRequest
from components.forms import form as forms

QUANTIZATIONS = get_args(QuantizationFormat)
ABOUT = (
    "The precision passport of a checkpoint as JSON: how it is stored, which formats its values provably passed through, in which "
    "precision it was probably trained, and whether its weights fit fp16."
)
# Of the endpoint, in this order.
PARAMETERS = ("model", *forms.READING, "quantize")
COST = forms.Cost("quick mode, a smaller budget, fewer models")


@dataclass(frozen=True, slots=True)
class Form(forms.ReadingForm):
    """The fields of the form, as typed. ``model`` may name several; quantize: names of formats."""

    model: str = ""
    quantize: tuple[str, ...] = ()

    def request(self) -> DtypeRequest:
        """The validated request for one model. Raises InvalidRequest with the sentence to show."""
        if not self.model.strip():
            raise InvalidRequest("Type or paste a model id such as google-t5/t5-small, or pick one of the samples.")
        return forms.validated(DtypeRequest, self, forms.READING, model=self.model.strip(), quantize=self.quantize)

    def requests(self) -> list[DtypeRequest]:
        """One request per model in ``model``, all with the same options. Raises InvalidRequest."""
        return [replace(self, model=model).request() for model in models(self.model) or [""]]


def models(text: str) -> list[str]:
    """The model ids in ``text``, without duplicates. Raises InvalidRequest if there are too many."""
    found = list(dict.fromkeys(forms.references(text, limits.MODELS)))
    if len(found) > limits.MODELS:
        raise InvalidRequest(f"One run takes at most {limits.MODELS} models, not {len(found):,}: use the command line.")
    return found


def form(query: forms.Query) -> Form:
    """The form described by a query: each ``model`` adds one; ``revision`` applies to a single model only."""
    asked = [text for key, text in forms.revised(query) if key == "model"]
    # one character over the limit, so that too many are rejected rather than truncated
    model = ", ".join(asked)[: limits.MODELS * (limits.REFERENCE_LENGTH + 2) + 1]
    formats = forms.last_texts(query).get("quantize", "")
    return Form(model, tuple(filter(None, formats.split(","))), **forms.queried(query, Form, forms.READING))


def options(request: DtypeRequest) -> dict[str, str]:
    """The options of dtype detection alone, as links and commands have them."""
    return {"quantize": ",".join(request.quantize)} if request.quantize else {}


def permalink(request: DtypeRequest) -> str:
    """The query that asks for the same: ``?model=...&revision=...&mode=...``."""
    model, _, revision = request.model.partition("@")
    keys = [("model", model), *([("revision", revision)] if revision else [])]
    return forms.link_to_reading([*keys, *options(request).items()], request)


def command(request: DtypeRequest) -> str:
    """The shell command for the same analysis."""
    return forms.command_line(["dtype", request.model], forms.changed(request, forms.READING) | options(request))
