"""Adds and flags labels: validates what is typed before the library is called, and writes the messages shown afterwards."""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import gradio as gr

from analyzers.checkpoints import Access
from analyzers.checkpoints.hub.hub_repository import open_hub
from analyzers.core.errors import InvalidRequest, MantissaError
from components.forms.checkpoint_picker import build_picker, wire_search
from components.forms.fields import build_busy
from components.library import DECISIONS, EVIDENCE, FLAG_REASONS, PRECISIONS, Identity, Label, Saved, model_id
from components.library_page.label_details import PIECES
from components.site.identity import LOG_IN, has_login, identity
from components.site.stored_results import our_library
from components.text import caption, head

_ABOUT = (
    f"Say which precision a model was trained in and give the evidence: {EVIDENCE}. This app shows links and never opens them. Each "
    "contributor has one label per model; a new label replaces it, and the old one stays in the history."
)


class Adding:
    """The form for adding a label, laid out by the constructor."""

    def __init__(self) -> None:
        with gr.Column(elem_id="m-add-label", elem_classes="m-fields m-box m-form"):
            gr.HTML(head("Add a label", "") + caption(_ABOUT), elem_classes="m-plain")
            self.who = gr.HTML(elem_classes="m-plain", elem_id="m-who")
            if has_login():
                gr.LoginButton(size="sm", elem_id="m-login")
            with gr.Row():
                self.model = build_picker("Model id on the Hub (org/name)", "m-label-model", samples=False)
                self.precision = gr.Dropdown(
                    list(PRECISIONS),
                    value=None,
                    label="Trained in",
                    allow_custom_value=True,  # what is typed stays, and is checked when the label is added
                    elem_id="m-label-precision",
                    elem_classes="m-picker",
                )
            build_busy()
            wire_search([self.model], samples=False)
            self.evidence = gr.Textbox(
                label="Evidence: a link (https://...), or the source of the sentence", lines=1, elem_id="m-label-evidence"
            )
            self.quote = gr.Textbox(label="The sentence, quoted (optional with a link)", lines=2, elem_id="m-label-quote")
            with gr.Row(elem_classes="m-downloads"):
                self.add = gr.Button("Add label", variant="primary", elem_id="m-add-it", size="md")
            self.said = gr.HTML(elem_classes="m-plain", elem_id="m-added")

    def fields(self) -> list[Any]:
        """List the fields of the form, as the inputs of an event."""
        return [self.model, self.precision, self.evidence, self.quote]


class Flagging:
    """The form for flagging a label, laid out hidden by the constructor. label: the id of the flagged label."""

    def __init__(self) -> None:
        with gr.Column(visible=False, elem_id="m-flagging", elem_classes="m-fields m-box m-form") as self.box:
            self.about = gr.HTML(elem_classes="m-plain")
            with gr.Row():
                self.reason = gr.Dropdown(list(FLAG_REASONS), value=FLAG_REASONS[0], label="What is wrong", elem_id="m-flag-reason")
                self.text = gr.Textbox(label="Details (optional)", elem_id="m-flag-text")
            with gr.Row(elem_classes="m-downloads"):
                self.flag = gr.Button("Flag this label", size="md", elem_id="m-flag-it")
                self.cancel = gr.Button("Cancel", size="md", elem_id="m-flag-leave")
        self.said = gr.HTML(elem_classes="m-plain", elem_id="m-flagged")
        self.label = gr.State("")


def who_you_are(profile: Mapping[str, Any] | None, request: gr.Request | None) -> str:
    """Return the name under which this visitor's contributions appear, as HTML."""
    try:
        return PIECES.who(identity(profile, request), our_library().state().own)
    except MantissaError as error:
        return caption(str(error))


def flag_reasons(profile: Mapping[str, Any] | None, request: gr.Request | None) -> list[str]:
    """Return the reasons for which this visitor may flag a label; a moderator may also decide about it."""
    try:
        moderates = identity(profile, request).moderates
    except MantissaError:
        moderates = False
    return [*FLAG_REASONS, *(DECISIONS if moderates else ())]


def add_label(who: Identity, model: str, precision: str, evidence: str, quote: str) -> Saved[Label]:
    """Store a label for a model that everybody can see on the Hub, gated or not, under its canonical id. Raises MantissaError."""
    ours = our_library()
    if not precision:
        raise InvalidRequest(f"Choose the precision the model was trained in: {', '.join(PRECISIONS)}.")
    if not evidence.strip() and not quote.strip():
        raise InvalidRequest(f"A label needs evidence: give {EVIDENCE}.")
    named = labelled(model)
    ours.check_label(named, precision, evidence, who, quote=quote)  # invalid labels cost no request to the Hub
    return ours.add_label(canonical(named), precision, evidence, who, quote=quote)


def confirm_label(who: Identity, label_id: str) -> Saved[Label]:
    """Store a label that somebody proposed without a login as that of ``who``, with the same evidence. Raises MantissaError."""
    row = our_library().label(label_id[:64])
    if row is None:
        raise InvalidRequest("This label no longer exists: reload the page.")
    if who.provenance != "login":
        raise InvalidRequest(LOG_IN)
    label = row.label
    return add_label(who, label.model, label.precision, label.evidence_link, label.evidence_quote)


def labelled(model: str) -> str:
    """Return the typed model id if it can be labelled. Raises InvalidRequest."""
    named = model_id(model)
    if named.startswith("sample:"):
        raise InvalidRequest("Only models on the Hub can be labelled: the training precision of the built-in samples is known.")
    return named


def canonical(model: str) -> str:
    """Return the Hub's canonical id of a model that is not private; the Hub tells it to anyone, even for gated models.

    Raises InvalidRequest, AccessDenied for a disabled model, HiddenRepository, HubError.
    """
    with closing(open_hub(model, None, Access())) as repository:
        return repository.ref


def thanks(saved: Saved[Any]) -> str:
    """Return the confirmation of a stored contribution and its status, as HTML."""
    what = "proposal" if saved.proposal else "label" if isinstance(saved.item, Label) else "flag"
    return PIECES.thanks(saved, f"Your {what} is")
