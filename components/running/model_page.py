"""The page of an analysis that runs one model: its fields, its result, and how they work together."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import gradio as gr

from analyzers.errors import MantissaError
from components.forms.controls import Controls, build_status
from components.forms.links import Query, revised
from components.forms.model_fields import Fields, form_of
from components.forms.model_form import ModelForm, values
from components.look.navigation import build_navigation
from components.results.result_tabs import Layout, build_result
from components.running.progress import Meter
from components.running.queue_limits import MODELS
from components.running.runs import Runs, failed
from components.running.wiring import wire_address, wire_links, wire_runs

_Form = TypeVar("_Form", bound=ModelForm)


@dataclass(frozen=True, slots=True)
class ModelPage(Generic[_Form]):
    """The page of one analyzer.

    name: in the navigation; title: heading and introduction, HTML. examples: label of each example's button -> its form.
    kind: the class of the form; of_query: the form that a query describes. fields: builds them, given the labels of the examples.
    meter: shows the progress. own: the key of the visitor's own text, if there is one; missing: the sentence for a link without it,
    because it was too long.
    """

    name: str
    title: str
    examples: Mapping[str, _Form]
    kind: type[_Form]
    of_query: Callable[[Query], _Form]
    fields: Callable[[list[str]], Fields]
    result: Layout[Any]
    meter: type[Meter]
    own: str | None = None
    missing: str = ""

    def build(self, page: gr.Blocks) -> None:
        """Lay out the page and wire it. Call inside ``page``."""
        build_navigation(self.name)
        gr.HTML(self.title, elem_classes="m-plain")
        fields = self.fields(list(self.examples))
        status, again = build_status()
        result = build_result(self.result)
        runs = Runs(Controls(fields.go, fields.stop, fields.chips, again), status, result, self.meter)
        examples = [(chip, values(asked)) for chip, asked in zip(fields.chips, self.examples.values(), strict=True)]
        wire_runs(runs, fields.values, lambda *typed: form_of(self.kind, typed), examples, fields.values, MODELS)
        wire_links([result.share])
        wire_address(page, "model", self.prefill, [*fields.values, status], runs, self.asked)

    def asked(self, query: Query) -> _Form:
        """The form that an address describes."""
        return self.of_query(revised(query))

    def prefill(self, query: Query) -> list[Any]:
        """The values of the fields and the status; an invalid request changes the model only."""
        asked = self.asked(query)
        held = values(asked)
        if not asked.model:
            return [gr.skip()] * (len(held) + 1)
        if self.own and dict(query).get(self.own) == "":
            return [*held, failed(self.missing)]
        try:
            asked.request()
        except MantissaError as error:
            return [asked.model, *[gr.skip()] * (len(held) - 1), failed(str(error))]
        return [*held, ""]
