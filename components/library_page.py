"""Builds the library page: find a model, read its labels and results, and add a label."""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import gradio as gr

from analyzers import ANALYZERS
from analyzers.checkpoints import Access
from analyzers.checkpoints.hub.hub_repository import open_hub
from analyzers.core.errors import InvalidRequest, MantissaError
from analyzers.core.formatting import day, size
from components.errors import sentence
from components.identity import LOG_IN, contributor, has_login, is_own_app
from components.library import EVIDENCE, PRECISIONS, Identity, Library, ModelRow, Saved, model_id
from components.library.items import OWNER
from components.page import QUIET, footer, header
from components.result import links
from components.store import our_library
from components.text import prose, render

_HEADING = "What were models trained in, and who says so?"
_ABOUT = "Labels with their evidence, and the results of every analysis of a public checkpoint made here, in one open dataset."
_ADDING = (
    f"Say which precision a model was trained in and give the evidence: {EVIDENCE}. This app shows links and never opens them. Each "
    "contributor has one label per model; a new one replaces it, and the old one stays in the history."
)
_KINDS, _FORMS = ("labels", "results", "models"), ("parquet", "csv", "jsonl")
_LONGEST = 300  # Characters of a search.
# Keeps what is searched in the address, which can be shared.
_ADDRESS = """(text) => {
  history.replaceState(history.state, '', location.pathname + (text ? '?q=' + encodeURIComponent(text) : ''));
  return [text];
}"""
_AT_ONCE: dict[str, Any] = {"queue": False, **QUIET}
_TITLES = ("Answer", "Trained in", "Could be saved", "Labels", "Results", "Updated")


def build(page: gr.Blocks) -> None:
    """Lay out the page and wire it. Call inside ``page``."""
    gr.HTML(header("Library", _HEADING, _ABOUT), apply_default_css=False)
    shown = gr.HTML(apply_default_css=False, elem_id="model")
    search = gr.Textbox(label="Find a model", placeholder="org/name, or some words of it", elem_id="search", max_length=_LONGEST)
    models = gr.HTML(apply_default_css=False, elem_id="models")
    with gr.Accordion("Add a label", open=False, elem_id="adding"):
        model, precision, evidence, quote, add, said = _form()
    counted = gr.HTML(apply_default_css=False, elem_id="counts")
    gr.HTML(footer(), apply_default_css=False)

    def opened(request: gr.Request) -> Mapping[Any, Any]:
        text, name = request.query_params.get("q", "")[:_LONGEST], request.query_params.get("model", "")[:_LONGEST]
        updates = {shown: labels_of(name), models: models_table(text), counted: holdings()}
        return updates | ({search: text} if text else {}) | ({model: name} if name else {})

    def added(request: gr.Request, profile: gr.OAuthProfile | None, text: str, *typed: Any) -> Mapping[Any, Any]:
        try:
            saved = add_label(contributor(profile, request), *(each if isinstance(each, str) else "" for each in typed))
        except Exception as error:
            return {said: _status(sentence(error), True)}
        updated: dict[Any, Any] = {shown: labels_of(saved.item.model), models: models_table(text), counted: holdings()}
        return updated | {said: _status(_thanks(saved)), precision: None, evidence: "", quote: ""}

    page.load(opened, None, [shown, models, counted, search, model], **_AT_ONCE)
    search.change(models_table, search, models, js=_ADDRESS, trigger_mode="always_last", **_AT_ONCE)
    add.click(added, [search, model, precision, evidence, quote], [said, shown, models, counted, precision, evidence, quote], **_AT_ONCE)


def add_label(who: Identity, model: str, precision: str, evidence: str, quote: str) -> Saved:
    """Store a label for a model that everybody can see on the Hub, gated or not, under its canonical id. Raises MantissaError."""
    if not precision:
        raise InvalidRequest(f"Choose the precision the model was trained in: {', '.join(PRECISIONS)}.")
    named = model_id(model)
    if named.startswith("sample:"):
        raise InvalidRequest("Only models on the Hub can be labelled: the training precision of the built-in samples is known.")
    library = our_library()
    library.make_label(named, precision, evidence, who, quote)  # an invalid label costs no request to the Hub
    with closing(open_hub(named, None, Access())) as repository:  # the Hub tells the id to anyone, even of gated models
        name = repository.ref
    return library.add_label(name, precision, evidence, who, quote)


def _form() -> tuple[gr.Textbox, gr.Dropdown, gr.Textbox, gr.Textbox, gr.Button, gr.HTML]:
    """Lay out the form for adding a label."""
    gr.Markdown(_ADDING)
    if has_login():
        gr.LoginButton(size="sm", elem_id="login")
    elif not is_own_app():
        gr.Markdown(f"{LOG_IN} This app has no login (`hf_oauth`), so labels cannot be added here.")
    with gr.Row():
        model = gr.Textbox(label="Model on the Hub", placeholder="org/name", elem_id="label-model")
        precision = gr.Dropdown(list(PRECISIONS), value=None, label="Trained in", elem_id="label-precision")
    evidence = gr.Textbox(label="Evidence: a link (https://...), or the source of the sentence", elem_id="label-evidence")
    quote = gr.Textbox(label="The sentence, quoted (optional with a link)", lines=2, elem_id="label-quote")
    add = gr.Button("Add label", variant="primary", elem_id="label-add")
    return model, precision, evidence, quote, add, gr.HTML(apply_default_css=False, elem_id="label-said")


def _thanks(saved: Saved) -> str:
    commit = f" (commit {saved.commit[:7]})" if saved.commit else ""
    return f"Thank you. Your label of {saved.item.model} is {saved.where}{commit}. {saved.note}".rstrip()


def labels_of(name: str) -> str:
    """Render the labels and results of a model, or an error in their place; "" if no model is given."""
    if not name.strip():
        return ""
    try:
        return _pieces_of(our_library(), model_id(name))
    except Exception as error:
        return _status(sentence(error), True)


def _pieces_of(library: Library, name: str) -> str:
    row, results = library.model(name), library.results(model=name, limit=50)
    name = row.model if row else name
    found = [(ANALYZERS[each.analyzer].title, links.stored(each.id), each) for each in results if each.analyzer in ANALYZERS]
    addresses = {"passport": f"./{links.page('dtype', name)}", "badge": links.badge(name)}
    labels, replaced = library.labels_of(name), library.labels_of(name, replaced=True)
    facts: dict[str, Any] = {"consensus": library.consensus(name), "labels": labels, "replaced": replaced, "results": found}
    return render("templates/labels.html", name=name, addresses=addresses, day=day, owner=OWNER, **facts)


def models_table(text: str) -> str:
    """Render the newest models whose names have these words, without columns that are empty."""
    try:
        rows = [(row, _cells(row)) for row in our_library().models(text[:_LONGEST])]
    except MantissaError:  # said with the counts
        return ""
    used = [index for index in range(len(_TITLES)) if any(cells[index] for _, cells in rows)]
    shown = [(row.model, links.labels(row.model), [cells[index] for index in used]) for row, cells in rows]
    return render("templates/models.html", titles=["Model", *(_TITLES[index] for index in used)], rows=shown)


def _cells(row: ModelRow) -> list[str]:
    inferred = f"{row.trained_in}, inferred" if row.trained_in not in ("", "undecided") else ""
    labelled = f"{row.precision}{', disputed' * row.disputed}" if row.precision else "labels disagree" * row.disputed
    answer = row.answer or f"{(row.precision and f'Trained in {row.precision}') or 'Labels disagree'}, by its labels."
    counts = [str(count) if count else "" for count in (row.labels, row.results)]
    return [answer, labelled or inferred, size(row.wasted) if row.wasted else "", *counts, day(row.updated)]


def holdings() -> str:
    """Render the size of the library, its state, and the downloads."""
    try:
        counts, state = our_library().counts(), our_library().state()
    except Exception as error:
        return _status(sentence(error), True)
    reading = "" if state.restored else " The dataset is still being read."
    waiting = f" {state.backlog:,} contributions are not published yet." if state.backlog else ""
    said = f"{counts.sentence}{reading}{waiting} {state.problem}".rstrip()
    return _status(said, bool(state.problem)) + render("templates/downloads.html", dataset=state.dataset, kinds=_KINDS, forms=_FORMS)


def _status(said: str, failed: bool = False) -> str:
    kind = 'status error" role="alert' if failed else 'status" role="status'
    return f'<div class="{kind}">{prose(said)}</div>'
