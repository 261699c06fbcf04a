"""Builds the page of an analyzer: the question, its fields, and the result."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from analyzers import ANALYZERS
from analyzers.core.errors import MantissaError
from analyzers.core.options import offered
from components.appearance.navigation import build_navigation, questions, title
from components.examples.finished import finished_example
from components.forms.fields import QUIET, Fields
from components.forms.form import Query, Typed, misspelt
from components.results.layout import Layout
from components.running.jobs import kind_of
from components.running.page_events import Prefilled, wire_address, wire_runs, wire_shares
from components.running.page_runs import PageRuns, failed_status
from components.running.progress import Meter
from components.running.pull_requests import wire_copy

# Fields that name checkpoints: an invalid address changes only these.
_SUBJECTS = ("model", "models", "base")


@dataclass(frozen=True)
class AnalysisPage:
    """The page of one analyzer.

    name: the analyzer's name. question, about: the heading, and a sentence below it. examples: label of each example's button -> what it
    types. fields: builds the fields, given the labels of the examples. meter: shows the progress. missing: for each key of the visitor's
    own text, the sentence for a link that omits that text, because it is too long. below: HTML below the form until the first run, by
    default the stored example; gallery: HTML below the questions of the other pages, made for each visitor. runs: the class that runs the
    form. check: validates the form before it is filled in.
    """

    name: str
    question: str
    about: str
    examples: Mapping[str, Typed]
    fields: Callable[[list[str]], Fields]
    result: Layout[Any]
    meter: type[Meter] = Meter
    missing: Mapping[str, str] = field(default_factory=dict)
    below: Callable[[], str] | None = None
    gallery: Callable[[], str] | None = None
    runs: type[PageRuns] = PageRuns
    check: Callable[[Typed], Any] | None = None

    def build(self, page: gr.Blocks) -> None:
        """Lay out the page and wire it. Call inside ``page``."""
        build_navigation(ANALYZERS[self.name].title)
        gr.HTML(title(self.question, self.about, self.name), elem_classes="m-plain")
        fields = self.fields(list(self.examples))
        runs = self.runs(fields, self.result, self.meter, self.form.request)
        runs.wire(wire_runs(runs, list(self.examples.values()), kind_of(self.name)))
        if runs.result.copy is not None:
            wire_copy(runs)
        above = self.below() if self.below is not None else finished_example(self.name)
        gr.HTML(above + questions(ANALYZERS[self.name].title), elem_classes="m-plain m-start")
        if self.gallery is not None:
            page.load(self.gallery, None, gr.HTML(elem_classes="m-plain m-start"), queue=False, **QUIET)
        wire_shares(runs.shares())
        wire_address(page, self.prefill, runs)

    @property
    def form(self) -> Any:
        """The analyzer's form module."""
        return ANALYZERS[self.name].component("form")

    def prefill(self, query: Query) -> Prefilled:
        """Return what an address fills in. One with a misspelt key fills the fields but starts nothing."""
        form = self.form.filled(query)
        unknown = misspelt(query, offered(ANALYZERS[self.name].request_model(), "site"))
        if not any(text for key, text in query if key in ("model", "base")):
            return Prefilled(form, failed_status(unknown) if unknown else None, ())
        for key, text in self.missing.items():
            if dict(query).get(key) == "":
                return Prefilled(form, failed_status(text))
        try:
            (self.check or self.form.request)(form)
        except MantissaError as error:
            return Prefilled(form, failed_status(str(error)), _SUBJECTS)
        return Prefilled(form, failed_status(f"{unknown} Correct it, or start without it.") if unknown else "")
