"""Lets visitors browse the library: a list with filters, ordering and pages. All filtering happens on the server."""

from typing import Any

import gradio as gr

from analyzers.core.errors import InvalidRequest, MantissaError
from analyzers.core.pasted_text import is_address, plain_or_same
from components.forms.fields import QUIET
from components.forms.form import typed
from components.library import Query
from components.library_page.label_details import PIECES
from components.library_page.list_tables import KINDS, LABELS, MODELS, RESULTS, extent, listed
from components.running.jobs import sentence
from components.running.page_runs import failed_status
from components.site.stored_results import our_library

PER_PAGE = 25
ANY = ""
# Filters of a list: the library's field name -> label.
_CHOSEN = {
    "precision": "Labelled as",
    "storage": "Stored as",
    "passed_through": "Passed through",
    "trained_in": "Inferred training precision",
    "fp16_risk": "fp16 risk",
    "analyzer": "Analysis",
}
_DISPUTED = "Labels disagree"
# Opens the clicked model on this page and puts it into the address, unless a modifier key is pressed.
CLICKS = """element.addEventListener('click', (event) => {
  const {model, flag, confirm, sort} = event.target.closest('[data-model], [data-flag], [data-confirm], [data-sort]')?.dataset ?? {};
  if (model && (event.ctrlKey || event.metaKey || event.shiftKey)) return;
  if (model) {
    event.preventDefault();
    const address = new URL(location.href);
    address.search = new URLSearchParams({model});
    history.replaceState(history.state, '', address);
  }
  if (model || flag || confirm || sort) trigger('click', {model, flag, confirm, sort});
})"""


class Browse:
    """The list and its controls, laid out by the constructor. turned: whether the order is reversed; at: the current page number."""

    def __init__(self) -> None:
        with gr.Row(elem_classes="m-ask"):
            self.text = gr.Textbox(
                label="Search models, contributors and evidence",
                placeholder="for example llama",
                elem_id="m-search",
                elem_classes="m-picker",
            )
        kinds = [("Models", MODELS), ("Labels", LABELS), ("Results", RESULTS)]
        self.kind = gr.Radio(kinds, value=MODELS, label="Show", show_label=False, elem_id="m-kind", elem_classes="m-kinds")
        with gr.Accordion("Filter and sort", open=False, elem_classes="m-options", elem_id="m-filters") as self.filters:
            with gr.Row():
                pairs = list(_CHOSEN.items())
                self.chosen = [_dropdown(name, label) for name, label in pairs[:3]]
            with gr.Row():
                self.chosen += [_dropdown(name, label) for name, label in pairs[3:]]
            with gr.Row():
                self.contributor = gr.Textbox(label="Contributor", elem_id="m-contributor")
                # Custom values, since an event may have an order of the previous list while another loads; `named_order` replaces it.
                known = list(orders(MODELS))
                self.order = gr.Dropdown(known, value=known[0], label="Sort by", allow_custom_value=True, elem_id="m-order")
                self.disputed = gr.Checkbox(label=_DISPUTED, elem_id="m-disputed")
        with gr.Column(elem_id="m-result", elem_classes="m-box m-flush"):
            self.table = gr.HTML(elem_classes="m-plain", js_on_load=CLICKS, elem_id="m-list")
            with gr.Row(elem_classes="m-pager"):
                self.back = gr.Button("Back", size="sm", elem_id="m-back", elem_classes="m-small", interactive=False)
                self.extent = gr.HTML(elem_classes="m-plain")
                self.on = gr.Button("Next", size="sm", elem_id="m-on", elem_classes="m-small", interactive=False)
        self.turned, self.at = gr.State(False), gr.State(1)

    def asked(self) -> list[Any]:
        """List the query fields, as the inputs of an event."""
        return [self.kind, self.text, *self.chosen, self.contributor, self.disputed, self.order, self.turned]

    def shown(self) -> list[Any]:
        """List the components that an answer fills, as the outputs of an event."""
        return [self.at, self.table, self.extent, self.back, self.on]

    def first(self, *asked: Any) -> dict[Any, Any]:
        """Return updates that show the first page of matching rows."""
        return self.page(1, *asked)

    def page(self, number: int, *asked: Any) -> dict[Any, Any]:
        """Return updates that show page ``number`` of the matching rows. Never raises: errors replace the list."""
        try:
            kind, query = query_of(number, *asked)
            ours = our_library()
            page = KINDS[kind].read(ours, query)
            if page.page > page.pages:
                page = KINDS[kind].read(ours, query.model_copy(update={"page": page.pages}))
        except Exception as error:
            return {self.table: failed_status(sentence(error)), self.extent: "", **self._turns(1, 1)}
        return {
            self.table: listed(kind, page, named_order(kind, typed(asked[-2])), query.descending),
            self.extent: PIECES.extent(extent(page, PER_PAGE)),
            **self._turns(page.page, page.pages),
        }

    def _turns(self, number: int, pages: int) -> dict[Any, Any]:
        return {self.at: number, self.back: gr.update(interactive=number > 1), self.on: gr.update(interactive=number < pages)}

    def choices(self, kind: Any, *chosen: Any) -> dict[Any, Any]:
        """Return updates that fill the filters with the list's values and their numbers of rows, and reset choices that it lacks."""
        try:
            known = our_library().facets(kind) if kind in KINDS else {}
        except MantissaError:
            known = {}
        updates = {}
        for filter_, name, value in zip(self.chosen, _CHOSEN, chosen, strict=True):
            counts = known.get(name, {})
            choices = [("any", ANY), *((f"{each} ({count:,})", each) for each, count in counts.items())]
            updates[filter_] = gr.update(choices=choices, value=value if value in counts else ANY)
        return updates

    def ordered(self, kind: Any) -> Any:
        """Return an update of the choice of orders for a list."""
        known = list(orders(kind))
        return gr.update(choices=known, value=known[0])

    def wire(self) -> None:
        """Reload the list from its first page whenever a control changes.

        The filters' choices load when the filters are expanded, not with the page.
        """
        quiet: dict[str, Any] = {"queue": False, **QUIET}
        shown: dict[str, Any] = {"inputs": self.asked(), "outputs": self.shown()}

        def changed(kind: Any, *chosen: Any) -> dict[Any, Any]:
            return {self.order: self.ordered(kind), self.turned: False, **self.choices(kind, *chosen)}

        def clicked(event: gr.EventData, *asked: Any) -> dict[Any, Any]:
            title = event._data.get("sort") if isinstance(event._data, dict) else None
            if not isinstance(title, str) or title not in orders(typed(asked[0])):
                return {self.at: gr.skip()}
            *others, order, turned = asked
            turned = title == order and not turned  # a second click on the title of a column reverses the order
            return {self.order: title, self.turned: turned, **self.first(*others, title, turned)}

        filters: list[Any] = [self.kind, *self.chosen]
        self.filters.expand(self.choices, filters, self.chosen, **quiet)
        # The list reloads after its choices have changed, since a value that is not among the choices is an error.
        self.kind.change(changed, filters, [self.order, self.turned, *self.chosen], **quiet).then(self.first, **shown, **quiet)
        self.table.click(clicked, self.asked(), [self.order, self.turned, *self.shown()], **quiet)
        self.order.input(lambda: False, None, self.turned, **quiet).then(self.first, **shown, **quiet)
        controls: list[Any] = [*self.chosen, self.disputed]
        for control in controls:
            control.input(self.first, **shown, **quiet)
        for typing in (self.text, self.contributor):
            typing.change(self.first, **shown, trigger_mode="always_last", **quiet)
        for button, step in ((self.back, -1), (self.on, 1)):
            turn: list[Any] = [self.at, *self.asked()]
            button.click(lambda at, *asked, step=step: self.page(at + step, *asked), turn, self.shown(), **quiet)


def orders(kind: Any) -> dict[str, tuple[str, bool]]:
    """Return the orders of a list, or those of the models list if ``kind`` is unknown."""
    return KINDS[kind if kind in KINDS else MODELS].orders


def named_order(kind: str, order: Any) -> str:
    """Return the chosen order, or the list's first one if it has no such order: the field may still hold one of the previous list."""
    return order if order in orders(kind) else next(iter(orders(kind)))


def query_of(number: int, kind: Any, text: Any, *rest: Any) -> tuple[str, Query]:
    """Return the list and the query that the field values describe. Raises InvalidRequest."""
    *chosen, contributor, disputed, order, turned = rest
    named = typed(kind)
    if named not in KINDS:
        raise InvalidRequest(f"There is no list of this name: choose one of {', '.join(KINDS)}.")
    sort, descending = orders(named)[named_order(named, typed(order))]
    fields: dict[str, Any] = {name: typed(value) for name, value in zip(_CHOSEN, chosen, strict=True)}
    wanted = typed(text).strip()
    wanted = plain_or_same(wanted).partition("@")[0] if is_address(wanted) else wanted
    fields |= {"text": wanted, "contributor": typed(contributor).strip(), "disputed": True if disputed is True else None}
    return named, Query.of(**fields, sort=sort, descending=descending != (turned is True), page=max(1, number), per_page=PER_PAGE)


def _dropdown(name: str, label: str) -> gr.Dropdown:
    return gr.Dropdown([("any", ANY)], value=ANY, label=label, filterable=False, elem_id=f"m-by-{name}")
