"""Builds the library page: the known facts about models, their contributors, and a form for new labels."""

from typing import Any

import gradio as gr

from components.appearance.navigation import build_navigation, title
from components.forms.fields import QUIET
from components.forms.form import misspelt, typed
from components.library import model_id
from components.library_page.browse import CLICKS, Browse
from components.library_page.contributing import Adding, Flagging, add_label, confirm_label, flag_reasons, thanks, who_you_are
from components.library_page.label_details import PIECES, model_labels
from components.library_page.library_downloads import PANDAS, build_downloads, counted
from components.library_page.list_tables import KINDS, MODELS
from components.running.jobs import sentence
from components.running.page_runs import failed_status
from components.site.identity import identity
from components.site.stored_results import our_library
from components.text import caption

_ABOUT = (
    "Labels with their evidence, and the results of every analysis of a public checkpoint made here, in one open dataset: search "
    "it, download it, and add what you know."
)
_SHOW = "() => setTimeout(() => document.querySelector('#m-labels')?.scrollIntoView({block: 'nearest'}), 100)"
_AT_ONCE: dict[str, Any] = {"queue": False, **QUIET}


def build(page: gr.Blocks) -> None:
    """Lay out the page and wire it. Call inside ``page``."""
    build_navigation("Library")
    gr.HTML(title("What were models trained in, and who says so?", _ABOUT), elem_classes="m-plain")
    counts = gr.HTML(elem_classes="m-plain", elem_id="m-counts")
    labels = gr.HTML(elem_classes="m-plain", js_on_load=CLICKS, elem_id="m-labels")
    flagging = Flagging()
    browse = Browse()
    adding = Adding()
    code = build_downloads()
    shown = gr.State("")
    browse.wire()

    def opened(request: gr.Request, profile: gr.OAuthProfile | None) -> dict[Any, Any]:
        model, text, show = (request.query_params.get(name, "") for name in ("model", "q", "show"))
        kind = show if show in KINDS else MODELS
        updates: dict[Any, Any] = {counts: counted(), adding.who: who_you_are(profile, request)}
        updates |= browse.first(kind, text, *[""] * len(browse.chosen), "", False, "", False)
        # Fields that the address does not set stay unchanged, since the visitor may have started typing.
        if text:
            updates[browse.text] = text
        if show:  # the order is set with the list, since the change of the search field reads it, and one that the list lacks is an error
            updates |= {browse.kind: kind, browse.order: browse.ordered(kind)}
        if model:
            updates |= {labels: _labels_of(model), shown: model, adding.model: model}
        if unknown := misspelt(request.query_params.multi_items(), ("model", "q", "show")):
            updates[labels] = failed_status(unknown)
        return updates

    filled = [counts, browse.text, browse.kind, browse.order, *browse.shown(), adding.who, labels, shown, adding.model]
    page.load(opened, None, filled, **_AT_ONCE)
    page.load(None, None, code, js=PANDAS, **QUIET)

    def clicked(model: str, event: gr.EventData, request: gr.Request, profile: gr.OAuthProfile | None) -> dict[Any, Any]:
        asked = event._data if isinstance(event._data, dict) else {}
        if isinstance(flag := asked.get("flag"), str):
            reasons = gr.update(choices=flag_reasons(profile, request))
            form: dict[Any, Any] = {flagging.box: gr.update(visible=True), flagging.about: _about(flag), flagging.reason: reasons}
            return {**form, flagging.label: flag, flagging.said: ""}
        said = ""
        if isinstance(confirmed := asked.get("confirm"), str):
            try:
                said = thanks(confirm_label(identity(profile, request), confirmed))
            except Exception as error:
                said = failed_status(sentence(error))
        elif isinstance(named := asked.get("model"), str):
            model = named
        else:
            return {shown: gr.skip()}
        closed: dict[Any, Any] = {flagging.box: gr.update(visible=False), flagging.label: "", flagging.said: said}
        return {labels: _labels_of(model), shown: model, **closed}

    told = [labels, shown, flagging.box, flagging.about, flagging.reason, flagging.label, flagging.said]
    for clickable in (browse.table, labels):
        clickable.click(clicked, shown, told, **_AT_ONCE).then(None, js=_SHOW, **QUIET)

    def add(
        request: gr.Request, profile: gr.OAuthProfile | None, model: Any, precision: Any, evidence: Any, quote: Any, *asked: Any
    ) -> dict[Any, Any]:
        try:
            saved = add_label(identity(profile, request), *map(typed, (model, precision, evidence, quote)))
        except Exception as error:
            return {adding.said: failed_status(sentence(error))}
        emptied: dict[Any, Any] = {adding.precision: None, adding.evidence: "", adding.quote: ""}
        named = saved.item.model
        added: dict[Any, Any] = {adding.said: thanks(saved), labels: _labels_of(named), shown: named, counts: counted()}
        return {**added, **emptied, **browse.first(*asked)}

    outputs = [adding.said, labels, shown, adding.precision, adding.evidence, adding.quote, counts, *browse.shown()]
    adding.add.click(add, [*adding.fields(), *browse.asked()], outputs, **_AT_ONCE)

    def flag(label: str, reason: Any, text: Any, model: str, request: gr.Request, profile: gr.OAuthProfile | None) -> dict[Any, Any]:
        try:
            saved = our_library().add_flag(label, typed(reason), identity(profile, request), typed(text))
        except Exception as error:
            return {flagging.said: failed_status(sentence(error))}
        closed: dict[Any, Any] = {flagging.box: gr.update(visible=False), flagging.text: ""}
        return {flagging.said: thanks(saved), labels: _labels_of(model), **closed}

    given = [flagging.label, flagging.reason, flagging.text, shown]
    flagging.flag.click(flag, given, [flagging.said, flagging.box, labels, flagging.text], **_AT_ONCE)
    flagging.cancel.click(lambda: gr.update(visible=False), None, flagging.box, **_AT_ONCE)


def _labels_of(model: str) -> str:
    """Render the labels of a model, or an error in their place; "" if no model is given."""
    if not model.strip():
        return ""
    try:
        return model_labels(our_library(), model_id(model))
    except Exception as error:
        return failed_status(sentence(error))


def _about(label: str) -> str:
    row = our_library().label(label[:64])
    return caption("This label no longer exists.") if row is None else PIECES.flagged(row.label)
