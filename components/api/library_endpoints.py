"""Defines the endpoints that search, read and extend the library. None of them reads weights."""

from collections.abc import Callable, Iterator
from typing import Any, get_args

import gradio as gr

from analyzers import ANALYZERS
from analyzers.checkpoints import DTYPE_BITS
from analyzers.checkpoints.reference import quoted
from analyzers.checkpoints.tensor import PACKED_BITS
from analyzers.core import limits
from analyzers.core.errors import InvalidRequest, LibraryUnavailable
from analyzers.core.untrusted_json import parse_json
from analyzers.dtype_detection.lineage import FORMAT_OF
from analyzers.dtype_detection.report import RiskLevel, Verdict
from components.api.parameters import named_arguments, parameters, with_parameters
from components.api.registration import Endpoint, one_sentence, register
from components.forms.form import validated_json
from components.library import DECISIONS, EVIDENCE, FLAG_REASONS, PRECISIONS, Library, Query, model_id
from components.library_page.contributing import add_label as add
from components.site import addresses, stored_results
from components.site.identity import identity
from components.site.stored_results import our_library
from components.text import Sentences

about = Sentences("api/templates/library.txt", EVIDENCE=EVIDENCE, FLAGS=limits.FLAGS, FLAG_REASONS=FLAG_REASONS, DECISIONS=DECISIONS)
PARAMETERS = {
    "text": "Words to search for in models, contributors and evidence; all of them must occur.",
    "model": "A model on the Hub: org/name, without a revision.",
    "precision": f"A training precision: one of {', '.join(PRECISIONS)}.",
    "storage": "A dtype that weights are stored in, such as F32 or BF16.",
    "passed_through": "A format that the values provably passed through, such as bf16.",
    "trained_in": "The training precision according to the stored report: one of the precisions, or undecided.",
    "fp16_risk": f"Whether the weights fit fp16: one of {', '.join(get_args(RiskLevel))}.",
    "analyzer": f"One of {', '.join(ANALYZERS)}.",
    "contributor": "Labels or results of this contributor: the name exactly as listed.",
    "disputed": "true: only where labels disagree; false: only where they do not; null (default): both.",
    "current": "Leave out labels that their contributor has replaced, or that flags have hidden (default true).",
    "sort": "Column to sort by, such as model or created (default: newest first).",
    "descending": "Largest or newest first (default true).",
    "page": "Which page, from 1 (default 1).",
    "id": "The id of a report, 64 hex digits.",
    "evidence": "The page that documents the precision (https://...), or the source of the quote.",
    "quote": "The sentence that documents the precision, quoted; optional with a link.",
}
FLAG_PARAMETERS = {
    "label": "The id of the label, as find_labels and consensus give it.",
    "reason": f"One of: {'; '.join(FLAG_REASONS)}.",
    "text": "Details (optional).",
}


_FACTS = ("storage", "passed_through", "trained_in", "fp16_risk")
_ORDER = ("sort", "descending", "page")
# The fields of a query that each list supports.
_FIELDS = {
    "models": ("text", "precision", *_FACTS, "disputed", *_ORDER),
    "labels": ("text", "model", "precision", "contributor", "current", "disputed", *_ORDER),
    "results": ("text", "model", "analyzer", *_FACTS, "contributor", *_ORDER),
}
# Valid values of columns. Others, such as the quantized types of GGUF, are valid once a stored result has them.
_KNOWN: dict[str, tuple[str, ...]] = {
    "precision": PRECISIONS,
    "trained_in": (*PRECISIONS, "undecided"),
    "storage": (*DTYPE_BITS, *PACKED_BITS),
    "passed_through": (*FORMAT_OF.values(), "fp4_e2m1", "mxfp4", "nvfp4", *get_args(Verdict)),
    "fp16_risk": get_args(RiskLevel),
}


def finder(kind: str) -> Callable[..., dict[str, Any]]:
    """Make the endpoint that searches a list of the library: ``models``, ``labels`` or ``results``."""

    def answer(*values: Any, **named: Any) -> dict[str, Any]:
        with one_sentence():
            query = validated_json(Query, named_arguments(answer, values, named))
            ours = our_library()
            query = _checked(ours, query)
            matches: dict[str, Any] = getattr(ours, kind)(query).model_dump(mode="json")
            return matches

    endpoint: Callable[..., dict[str, Any]] = with_parameters(answer, f"find_{kind}", parameters(Query, _FIELDS[kind]), dict[str, Any])
    return endpoint


def _checked(library: Library, query: Query) -> Query:
    """Return the query with the id of its model. Raises InvalidRequest for a filter that no row can match, which would find nothing."""
    for name, known in (_KNOWN | {"analyzer": tuple(ANALYZERS)}).items():
        value = getattr(query, name)
        if value and value not in known and value not in library.facets("results").get(name, {}):
            raise InvalidRequest(f"{name} must be one of {', '.join(known)}, not {quoted(value)}.")
    return query.model_copy(update={"model": model_id(query.model)}) if query.model else query


def consensus(model: str) -> dict[str, Any]:
    """Return the consensus of the labels of a model."""
    with one_sentence():
        name = model_id(*_texts(model=model))
        ours = our_library()
        answer: dict[str, Any] = ours.consensus(name).model_dump(mode="json")
        answer["replaced"] = [row.model_dump(mode="json") for row in ours.history(name) if not row.current]
        return answer | {"badge": addresses.badge(name)}


def stored_result(id: str) -> dict[str, Any]:
    """Return a stored report."""
    with one_sentence():
        ours, name = our_library(), _texts(id=id)[0][:64]
        row = ours.result_row(name)
        found = ours.result(name) if row is not None and ours.is_available(row.result.models) else None
        if found is None and not stored_results.is_restored():
            raise LibraryUnavailable(stored_results.NOT_RESTORED)
        if found is None:
            raise InvalidRequest("There is no stored result with this id: check it, or run the analysis again.")
        answer: dict[str, Any] = parse_json(found)
        return answer


def add_label(
    request: gr.Request,
    profile: gr.OAuthProfile | None,
    model: str,
    precision: str,
    evidence: str = "",
    quote: str = "",
) -> dict[str, Any]:
    """Add a label."""
    with one_sentence():
        texts = _texts(model=model, precision=precision, evidence=evidence, quote=quote)
        saved: dict[str, Any] = add(identity(profile, request), *texts).model_dump(mode="json")
        return saved


def flag_label(
    request: gr.Request, profile: gr.OAuthProfile | None, label: str, reason: str = FLAG_REASONS[0], text: str = ""
) -> dict[str, Any]:
    """Flag a label."""
    with one_sentence():
        label, reason, text = _texts(label=label, reason=reason, text=text)
        saved = our_library().add_flag(label, reason, identity(profile, request), text)
        answer: dict[str, Any] = saved.model_dump(mode="json")
        return answer


def endpoints() -> Iterator[Endpoint]:
    """Yield the endpoints of the library, which answer without a queue."""
    functions: list[Callable[..., Any]] = [*map(finder, _FIELDS), consensus, stored_result, add_label]
    for function in functions:
        yield Endpoint(function, getattr(about, function.__name__)(), PARAMETERS, "answer")
    yield Endpoint(flag_label, about.flag_label(), FLAG_PARAMETERS, "answer")


def add_endpoints(app: gr.Blocks) -> None:
    """Register the endpoints. Call inside the Blocks."""
    for each in endpoints():
        register(app, each)


def _texts(**values: Any) -> list[str]:
    """Return the values of text parameters, with null as "". Raises InvalidRequest for any other JSON."""
    for name, value in values.items():
        if value is not None and not isinstance(value, str):
            raise InvalidRequest(f"{name} must be text.")
    return [value or "" for value in values.values()]
