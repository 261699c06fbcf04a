"""Compares several models on the page: the table that fills as they are read, figures, links, and downloads."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import gradio as gr

from analyzers.checkpoints.reference import with_commits
from analyzers.core.terminal import printable_json
from analyzers.dtype_detection import DtypeReport, DtypeRequest
from components.dtype.comparison_plots import FIGURES
from components.dtype.result import RESULT
from components.dtype.several_models import Outcome, comparison, numbered, overview_of
from components.forms import form as forms
from components.results.downloads import File, file_name, named, tables_zip
from components.results.result_tabs import build_plot
from components.results.self_contained_page import Page, report_page
from components.results.share import Share
from components.running.open_reports import OpenReport
from components.site.identity import Client
from components.text import caption, numbers


def permalink(outcomes: Sequence[Outcome], request: DtypeRequest) -> str:
    """Return the query that reproduces this comparison, ``?model=...&model=...``, with commits where they are known."""
    return forms.permalink(request, model=[("model", _pinned(outcome)) for outcome in outcomes])


def command(outcomes: Sequence[Outcome], request: DtypeRequest) -> str:
    """Return the shell command for the same comparison."""
    return forms.command(request, model=list(map(_pinned, outcomes)))


def _pinned(outcome: Outcome) -> str:
    """Return the model with its commit, if any, or as requested if it could not be read."""
    checkpoint = outcome.report.checkpoint if outcome.report is not None else None
    return outcome.model if checkpoint is None else with_commits(checkpoint.ref, checkpoint.commit)


def document(outcomes: Sequence[Outcome]) -> Page:
    """Make a page with the comparison table and the passport of each model that was read. Row numbers include failed models."""
    read = numbered(outcomes)
    names = [RESULT.name(report) for _, report in read]
    return report_page(RESULT.title, names, [overview_of(outcomes), *(RESULT.article(row, report) for row, report in read)])


def light(report: DtypeReport) -> DtypeReport:
    """Copy the report without its tensors."""
    copy = report.model_copy(update={"tensors": (), "buffers": ()})
    copy.keep_rows("tensors", tuple)  # otherwise the copy would keep the closure that produces all rows alive
    return copy


def comparison_file(outcomes: Sequence[Outcome], ending: str) -> File:
    """Write the full reports as a file with this extension. The JSON is a list, with ``{"model", "error"}`` for failures."""
    failed = [(outcome.model, outcome.error) for outcome in outcomes if outcome.report is None]
    match ending:
        case "json":
            items = [
                json.dumps({"model": outcome.model, "error": outcome.error})
                if outcome.report is None
                else outcome.report.model_dump_json(indent=2)
                for outcome in outcomes
            ]
            content = printable_json("[" + ",\n".join(items) + "]\n").encode()
        case "zip":
            content = tables_zip([report for _, report in numbered(outcomes)], failed)
        case _:
            content = document(outcomes).alone().encode()
    others = f"-and-{len(outcomes) - 1}-more" if len(outcomes) > 1 else ""
    return named(file_name([f"{outcomes[0].model}{others}"], "dtype"), ending, content)


_NOWHERE = "None of these models could be read."
# A click on a row's name opens its result on this page, unless a modifier key is pressed.
_OPEN = (
    "element.addEventListener('click', (event) => {"
    " const link = event.target.closest('a[data-row]');"
    " if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;"
    " event.preventDefault(); trigger('click', {row: Number(link.dataset.row)}); })"
)


@dataclass(slots=True)
class Batch:
    """A run over several models: the requests, the outcomes so far, and the full reports by row."""

    requests: list[DtypeRequest]
    outcomes: list[Outcome] = field(default_factory=list)
    held: dict[int, OpenReport] = field(default_factory=dict)

    def add(self, report: DtypeReport) -> None:
        """Add the next model's report."""
        number = len(self.outcomes)
        self.held[number] = OpenReport(report)
        self.outcomes.append(Outcome(self.requests[number].model, light(report)))

    def fail(self, error: str) -> None:
        """Record that the next model failed with ``error``."""
        self.outcomes.append(Outcome(self.requests[len(self.outcomes)].model, error=error))

    def file(self, ending: str, client: Client) -> File:
        """Return all outcomes as a file with this extension. Raises LimitExceeded if a report is no longer held for this client."""
        wholes = {row: held.report(client) for row, held in self.held.items()}
        return comparison_file([replace(outcome, report=wholes.get(row)) for row, outcome in enumerate(self.outcomes)], ending)

    def summary(self) -> str:
        """Return a sentence on how many of the models were read."""
        read = len(numbered(self.outcomes))
        failed = len(self.outcomes) - read
        sentence = f"{numbers.count(read)} of {numbers.plural(len(self.requests), 'model')} read"
        return f"{sentence}; {numbers.count(failed)} could not be, the table says why." if failed else f"{sentence}."


class Comparison:
    """The components that show a batch, laid out by the constructor, and hidden until there is a batch."""

    def __init__(self) -> None:
        with gr.Column(visible=False, elem_id="m-several", elem_classes="m-box") as self.card:
            self.table = gr.HTML(elem_classes="m-plain", js_on_load=_OPEN, elem_id="m-table")
            with gr.Column(visible=False, elem_classes="m-flush") as self.tabs, gr.Tabs():
                self.figures = []
                for name, title, _, _ in FIGURES:
                    with gr.Tab(name):
                        self.figures.append((gr.HTML(elem_classes="m-plain"), build_plot(title)))
                with gr.Tab("Share"):
                    self.share = Share("m-all", single=False)

    def components(self) -> list[Any]:
        """List all components, as the outputs of an event."""
        return [self.card, self.table, self.tabs, *chain(*self.figures), *self.share.components()]

    def hide(self) -> dict[Any, Any]:
        """Return updates that hide the comparison."""
        return {self.card: gr.update(visible=False)}

    def rows(self, batch: Batch, rest: str = "waiting") -> dict[Any, Any]:
        """Return updates with the current table; models not read yet show ``rest``."""
        models = [request.model for request in batch.requests]
        return {self.card: gr.update(visible=True), self.table: comparison(models, batch.outcomes, rest)}

    def begin(self, batch: Batch) -> dict[Any, Any]:
        """Return updates for the start of a run, when every row is waiting."""
        return {**self.rows(batch), self.tabs: gr.update(visible=False)}

    def end(self, batch: Batch) -> dict[Any, Any]:
        """Return updates for a finished or stopped run."""
        done, request, read = batch.outcomes, batch.requests[0], numbered(batch.outcomes)
        rows, reports = [row for row, _ in read], [report for _, report in read]
        drawn: dict[Any, Any] = {}
        for (about, plot), (_, _, said, draw) in zip(self.figures, FIGURES, strict=True):
            drawn |= {about: caption(said if read else _NOWHERE), plot: draw(reports, rows)}
        return {
            **self.rows(batch, "not read: stopped"),
            self.tabs: gr.update(visible=True),
            **drawn,
            **self.share.show(permalink(done, request), command(done, request), batch),
        }


def opened_report(batch: Batch | None, event: gr.EventData) -> OpenReport | None:
    """Return the report of the clicked table row; None if it has none."""
    row = event._data.get("row") if isinstance(event._data, dict) else None
    return batch.held.get(row) if batch is not None and isinstance(row, int) else None
