"""The page of an analyzer: the question, its fields, and the result."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import gradio as gr

from analyzers import ANALYZERS
from analyzers.checkpoints import Access
from analyzers.errors import MantissaError
from components.forms.fields import QUIET, Controls, Fields, build_status
from components.forms.form import Form, Query, form_of, misspelt, revised, values
from components.look.navigation import build_navigation, questions, title
from components.results.layout import Layout
from components.running.jobs import kind_of
from components.running.progress import Meter
from components.running.runs import Runs, failed
from components.running.wiring import wire_address, wire_runs, wire_shares

_Form = TypeVar("_Form", bound=Form)


@dataclass(frozen=True)
class AnalysisPage(Generic[_Form]):
    """The page of one analyzer.

    name: of the analyzer. question, about: the heading, and a sentence below it. examples: label of each example's button -> its form.
    form: the class of the form; of_query: the form that a query describes. fields: builds them, given the labels of the examples.
    read: the form of the values of the fields; fill: what prefilling sets them to. meter: shows the progress. key: of a query that names
    what is analyzed. own: the key of the visitor's own text, if there is one; missing: the sentence for a link without it, because it was
    too long. below: HTML below the form until something is asked for, above the questions of the other pages; gallery: HTML below those,
    made for each visitor. runs: the class that runs the form. check: validates it before it is filled in.
    complete: adds to a request what the app knows, before it is computed.
    """

    name: str
    question: str
    about: str
    examples: Mapping[str, _Form]
    form: type[_Form]
    of_query: Callable[[Query], _Form]
    fields: Callable[[list[str]], Fields]
    result: Layout[Any]
    meter: type[Meter] = Meter
    key: str = "model"
    own: str | None = None
    missing: str = ""
    read: Callable[..., _Form] | None = None
    fill: Callable[[_Form], list[Any]] = values
    below: Callable[[], str] | None = None
    gallery: Callable[[], str] | None = None
    runs: type[Runs] = Runs
    check: Callable[[_Form], Any] | None = None
    complete: Callable[[Any, Access], Generator[Any, None, Any]] | None = None

    def build(self, page: gr.Blocks) -> None:
        """Lay out the page and wire it. Call inside ``page``."""
        build_navigation(ANALYZERS[self.name].title)
        gr.HTML(title(self.question, self.about, self.name), elem_classes="m-plain")
        fields = self.fields(list(self.examples))
        status, again = build_status()
        runs = self.runs(Controls(fields.go, fields.stop, fields.chips, again), status, self.result, self.meter)
        examples = [(chip, self.fill(asked)) for chip, asked in zip(fields.chips, self.examples.values(), strict=True)]
        read = self.read or (lambda *given: form_of(self.form, given))
        runs.wire(wire_runs(runs, fields.values, read, examples, fields.filled, kind_of(self.name)))
        above = self.below() if self.below is not None else ""
        gr.HTML(above + questions(ANALYZERS[self.name].title), elem_classes="m-plain m-start")
        if self.gallery is not None:
            page.load(self.gallery, None, gr.HTML(elem_classes="m-plain m-start"), queue=False, **QUIET)
        wire_shares(runs.shares())
        wire_address(page, self.key, lambda query: self.prefill(query, fields.subject), [*fields.filled, status], runs, self.asked)

    def asked(self, query: Query) -> _Form:
        """The form that an address describes."""
        return self.of_query(revised(query))

    def prefill(self, query: Query, subject: int = 1) -> list[Any]:
        """The values of the fields and the status; an invalid request changes only the first ``subject`` ones.

        An address with a misspelt key fills the fields but starts nothing.
        """
        asked = self.asked(query)
        filled = self.fill(asked)
        unknown = misspelt(query, ANALYZERS[self.name].component("form").PARAMETERS)
        if not any(text for key, text in query if key in ("model", "base", "tuned")):
            return [*[gr.skip()] * len(filled), failed(unknown) if unknown else gr.skip()]
        if self.own and dict(query).get(self.own) == "":
            return [*filled, failed(self.missing)]
        try:
            (self.check or self.form.request)(asked)
        except MantissaError as error:
            return [*filled[:subject], *[gr.skip()] * (len(filled) - subject), failed(str(error))]
        return [*filled, failed(f"{unknown} Correct it, or start without it.") if unknown else ""]
