"""The library for programs and agents: search it, read it, add to it. Nothing here reads weights."""

import json
from typing import Any, get_args

import gradio as gr

from analyzers import ANALYZERS
from analyzers.dtype_detection.report import RiskLevel
from analyzers.errors import InvalidRequest
from components.api.answers import one_sentence, register
from components.api.arguments import flag_of, number_of, text_of
from components.api.filters import check_filters
from components.library import FLAG_REASONS, LAST_PAGE, PRECISIONS, Query, model_id
from components.library_page.contributing import add_label as add
from components.site import addresses
from components.site.identity import identity, our_library

_PAGED = 'Answers {"rows", "total", "page", "pages"}, 50 rows a page.'
FIND_MODELS = (
    "Search the models with labels or stored results, one row each: the training precision by its labels (precision, contributors, "
    "disputed), the storage dtype, the formats its values provably passed through, whether its weights fit fp16, and the id of its "
    f"stored passport. Reads stored facts; computes nothing. {_PAGED}"
)
FIND_LABELS = f"Search the labels: who says that a model was trained in which precision, with the evidence (a link or a quote). {_PAGED}"
FIND_RESULTS = (
    f"Search the stored results of analyses of public checkpoints, without the reports themselves, which stored_result gives. {_PAGED}"
)
CONSENSUS = (
    "The consensus of the labels of one model (org/name): the precision that most contributors name (null for none, or a tie), whether "
    "they disagree, every current label with its evidence, contributor and state, and the replaced ones."
)
STORED = "A stored report by its id (64 hex digits), exactly as it was stored: the JSON of the analysis."
ADD = (
    "Label a public model on the Hub with the precision it was trained in. Needs evidence: a link or a quote. Attributed to the caller's "
    "login if the app has logins; otherwise to the secret of the caller's own in a cookie, mantissa=SECRET, which is required. The answer "
    'says whether it is "saved here" or "published".'
)
FLAG = f"Say that a label (by its id) is wrong. reason: one of: {'; '.join(FLAG_REASONS)}."
PARAMETERS = {
    "text": "Words to search for in models, contributors and evidence; all of them must occur.",
    "model": "A model on the Hub: org/name, without a revision.",
    "precision": f"A training precision: one of {', '.join(PRECISIONS)}.",
    "storage": "A dtype that weights are stored in, such as F32 or BF16.",
    "passed_through": "A format that the values provably passed through, such as bf16.",
    "trained_in": "The training precision that the report says: one of the precisions, or undecided.",
    "fp16_risk": f"Whether the weights fit fp16: one of {', '.join(get_args(RiskLevel))}.",
    "analyzer": f"One of {', '.join(ANALYZERS)}.",
    "contributor": "Whose labels or results: a name exactly as the lists show it.",
    "disputed": "true: only where labels disagree; false: only where they do not; null (default): both.",
    "current": "Leave out labels that their contributor has replaced (default true).",
    "sort": "The column to sort by; an error lists them. Empty for the newest first.",
    "descending": "Largest or newest first (default true).",
    "page": "Which page, from 1 (default 1).",
    "id": "The id of a report, 64 hex digits.",
    "evidence": "Where the precision is documented: a link (https://...); or give a quote.",
    "quote": "The words that say it, with their source.",
}
FLAG_PARAMETERS = {
    "label": "The id of the label, as find_labels and consensus give it.",
    "reason": f"One of: {'; '.join(FLAG_REASONS)}.",
    "text": "More about what is wrong; may be empty.",
}


def find_models(
    text: str = "",
    precision: str = "",
    storage: str = "",
    passed_through: str = "",
    trained_in: str = "",
    fp16_risk: str = "",
    disputed: bool | None = None,
    sort: str = "updated",
    descending: bool = True,
    page: int = 1,
) -> dict[str, Any]:
    """See `FIND_MODELS`."""
    fields = {"storage": storage, "passed_through": passed_through, "trained_in": trained_in, "fp16_risk": fp16_risk}
    return _listed("models", text, sort, descending, page, disputed=disputed, precision=precision, **fields)


def find_labels(
    text: str = "",
    model: str = "",
    precision: str = "",
    contributor: str = "",
    current: bool = True,
    disputed: bool | None = None,
    sort: str = "created",
    descending: bool = True,
    page: int = 1,
) -> dict[str, Any]:
    """See `FIND_LABELS`."""
    fields = {"model": model, "precision": precision, "contributor": contributor}
    return _listed("labels", text, sort, descending, page, disputed=disputed, current=current, **fields)


def find_results(
    text: str = "",
    model: str = "",
    analyzer: str = "",
    storage: str = "",
    passed_through: str = "",
    trained_in: str = "",
    fp16_risk: str = "",
    contributor: str = "",
    sort: str = "created",
    descending: bool = True,
    page: int = 1,
) -> dict[str, Any]:
    """See `FIND_RESULTS`."""
    fields = {"model": model, "analyzer": analyzer, "storage": storage, "passed_through": passed_through}
    fields |= {"trained_in": trained_in, "fp16_risk": fp16_risk, "contributor": contributor}
    return _listed("results", text, sort, descending, page, **fields)


def consensus(model: str) -> dict[str, Any]:
    """See `CONSENSUS`."""
    with one_sentence():
        name = model_id(text_of("model", model))
        ours = our_library()
        answer: dict[str, Any] = ours.consensus(name).model_dump(mode="json")
        answer["replaced"] = [row.model_dump(mode="json") for row in ours.history(name) if not row.current]
        return answer | {"badge": addresses.badge(name)}


def stored_result(id: str) -> dict[str, Any]:
    """See `STORED`."""
    with one_sentence():
        found = our_library().result(text_of("id", id)[:64])
        if found is None:
            raise InvalidRequest("There is no stored result with this id: check it, or run the analysis again.")
        answer: dict[str, Any] = json.loads(found)
        return answer


def add_label(
    request: gr.Request,
    profile: gr.OAuthProfile | None,
    model: str,
    precision: str,
    evidence: str = "",
    quote: str = "",
) -> dict[str, Any]:
    """See `ADD`."""
    with one_sentence():
        texts = [text_of(*each) for each in (("model", model), ("precision", precision), ("evidence", evidence), ("quote", quote))]
        saved: dict[str, Any] = add(identity(profile, request), *texts).model_dump(mode="json")
        return saved


def flag_label(
    request: gr.Request, profile: gr.OAuthProfile | None, label: str, reason: str = FLAG_REASONS[0], text: str = ""
) -> dict[str, Any]:
    """See `FLAG`."""
    with one_sentence():
        named = text_of("label", label), text_of("reason", reason)
        saved = our_library().add_flag(*named, identity(profile, request), text_of("text", text))
        answer: dict[str, Any] = saved.model_dump(mode="json")
        return answer


def add_endpoints(app: gr.Blocks) -> None:
    """Register the endpoints. Call inside the Blocks."""
    endpoints = (
        (find_models, FIND_MODELS),
        (find_labels, FIND_LABELS),
        (find_results, FIND_RESULTS),
        (consensus, CONSENSUS),
        (stored_result, STORED),
        (add_label, ADD),
    )
    for function, about in endpoints:
        register(app, function, about, PARAMETERS, "answer", queue=False)
    register(app, flag_label, FLAG, FLAG_PARAMETERS, "answer", queue=False)


def _listed(kind: str, text: Any, sort: Any, descending: Any, page: Any, **fields: Any) -> dict[str, Any]:
    """A page of the list called ``kind``. Raises gr.Error."""
    with one_sentence():
        asked: dict[str, Any] = {}
        for name, value in fields.items():
            if name == "disputed":
                asked[name] = None if value is None else flag_of(name, value, False)
            else:
                asked[name] = flag_of(name, value, True) if name == "current" else text_of(name, value)
        number = number_of("page", page) or "1"
        if not (number.isascii() and number.isdigit() and len(number) <= 8 and 1 <= int(number) <= LAST_PAGE):
            raise InvalidRequest(f"page must be a whole number from 1 to {LAST_PAGE:,}.")
        asked |= {"sort": text_of("sort", sort), "descending": flag_of("descending", descending, True)}
        query = Query.of(text=text_of("text", text).strip(), page=int(number), **asked)
        ours = our_library()
        check_filters(ours, ((name, value) for name, value in fields.items() if isinstance(value, str)))
        found: Any = getattr(ours, kind)(query)
        answer: dict[str, Any] = found.model_dump(mode="json")
        return answer
