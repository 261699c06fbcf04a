"""Several models: the table that fills as they are read, a figure of them among labelled models, links, and the downloads."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import gradio as gr

from analyzers.dtype_detection import DtypeReport, DtypeRequest
from components.dtype.form import options
from components.dtype.result import RESULT
from components.dtype.tables import Outcome, comparison, overview_of, reports_of
from components.forms.form import READING, changed, command_line, link_to_reading, pinned
from components.plots.several_models import FIGURES
from components.results.downloads import Files, file_name, tables_zip, write_files
from components.results.result_tabs import build_plot
from components.results.share import Share, downloads
from components.results.standalone import Page, report_page
from components.text import numbers
from components.text.markup import caption


def permalink(outcomes: Sequence[Outcome], request: DtypeRequest) -> str:
    """The query that reproduces this comparison, ``?model=...&model=...``, pinned to the commits where they are known."""
    return link_to_reading([*(("model", _pinned(outcome)) for outcome in outcomes), *options(request).items()], request)


def command(outcomes: Sequence[Outcome], request: DtypeRequest) -> str:
    """The shell command for the same comparison."""
    return command_line(["dtype", *map(_pinned, outcomes)], changed(request, READING) | options(request))


def _pinned(outcome: Outcome) -> str:
    """The model with its commit if it has one; as requested if it could not be read."""
    return outcome.model if outcome.report is None else pinned(outcome.report.checkpoint)


def document(outcomes: Sequence[Outcome]) -> Page:
    """A page with the comparison table and the passport of each model with a report. Rows are numbered including failed ones."""
    read = [(row, outcome.report) for row, outcome in enumerate(outcomes, 1) if outcome.report is not None]
    names = [RESULT.name(report) for _, report in read]
    return report_page(RESULT.title, names, [overview_of(outcomes), *(RESULT.article(row, report) for row, report in read)])


def kept(model: str, report: DtypeReport, file: Path) -> Outcome:
    """The outcome for a report; the full report is written to ``file``. Raises OSError if writing fails."""
    file.write_text(report.model_dump_json(), encoding="utf-8")
    light = report.model_copy(update={"tensors": (), "buffers": ()})
    light.keep_full_rows(tuple)  # else the copy would keep the closure that produces the full rows alive
    return Outcome(model, light, file=file)


def write_several(folder: Path, outcomes: Sequence[Outcome]) -> Files:
    """Write the files into ``folder``. The JSON is a list, with ``{"model", "error"}`` for failures. Raises OSError if writing fails."""
    wholes = [None if outcome.report is None else outcome.whole() for outcome in outcomes]
    pairs = list(zip(outcomes, wholes, strict=True))
    each = [
        whole.model_dump_json(indent=2) if whole else json.dumps({"model": outcome.model, "error": outcome.error})
        for outcome, whole in pairs
    ]
    failed = [(outcome.model, outcome.error) for outcome, whole in pairs if not whole]
    reports = [whole for whole in wholes if whole]
    page = document([Outcome(outcome.model, whole, outcome.error) for outcome, whole in pairs]).alone()
    others = f"-and-{len(outcomes) - 1}-more" if len(outcomes) > 1 else ""
    name = file_name([f"{outcomes[0].model}{others}"], "dtype")
    return write_files(folder, name, "[" + ",\n".join(each) + "]", tables_zip(reports, failed), page)


_NOWHERE = "None of these models could be read."
# Clicking a row's name opens it on this page; a click with a modifier key works as for any link.
_OPEN = (
    "element.addEventListener('click', (event) => {"
    " const link = event.target.closest('a[data-row]');"
    " if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;"
    " event.preventDefault(); trigger('click', {row: Number(link.dataset.row)}); })"
)


@dataclass(slots=True)
class Batch:
    """A run over several models: the requests and the outcomes so far. The full reports are in ``folder``."""

    requests: list[DtypeRequest]
    folder: Path
    outcomes: list[Outcome] = field(default_factory=list)

    @classmethod
    def of(cls, requests: list[DtypeRequest]) -> "Batch":
        """A batch that has not started. Raises OSError if its folder cannot be created."""
        return cls(requests, downloads.folder())

    def add(self, report: DtypeReport) -> None:
        """Add the next model's report. Raises OSError if writing fails."""
        downloads.used(self.folder)
        number = len(self.outcomes)
        self.outcomes.append(kept(self.requests[number].model, report, self.folder / f"{number}.json"))

    def fail(self, error: str) -> None:
        """Record that the next model failed with ``error``."""
        self.outcomes.append(Outcome(self.requests[len(self.outcomes)].model, error=error))

    def summary(self) -> str:
        """How many of the models were read, as a sentence."""
        read, failed = len(reports_of(self.outcomes)), sum(outcome.report is None for outcome in self.outcomes)
        said = f"{numbers.count(read)} of {numbers.plural(len(self.requests), 'model')} read"
        return f"{said}; {numbers.count(failed)} could not be, the table says why." if failed else f"{said}."


class Several:
    """The components a batch fills, laid out when made, and hidden until there is a batch."""

    def __init__(self) -> None:
        with gr.Column(visible=False, elem_id="m-several", elem_classes="m-box") as self.card:
            self.table = gr.HTML(elem_classes="m-plain", js_on_load=_OPEN, elem_id="m-table")
            with gr.Column(visible=False, elem_classes="m-flush") as self.tabs, gr.Tabs():
                self.figures = []
                for name, title, _, _ in FIGURES:
                    with gr.Tab(name):
                        self.figures.append((gr.HTML(elem_classes="m-plain"), build_plot(title)))
                with gr.Tab("Share"):
                    self.share = Share("m-all", embeds=False)

    def components(self) -> list[Any]:
        """All components, as the outputs of an event."""
        return [self.card, self.table, self.tabs, *chain(*self.figures), *self.share.components()]

    def hide(self) -> dict[Any, Any]:
        """Updates that hide them."""
        return {self.card: gr.update(visible=False)}

    def rows(self, batch: Batch, rest: str = "waiting") -> dict[Any, Any]:
        """Updates with the current table; models not read yet show ``rest``."""
        asked = [request.model for request in batch.requests]
        return {self.card: gr.update(visible=True), self.table: comparison(asked, batch.outcomes, rest)}

    def begin(self, batch: Batch) -> dict[Any, Any]:
        """Updates for the start of a run: every row is waiting."""
        return {**self.rows(batch), self.tabs: gr.update(visible=False)}

    def end(self, batch: Batch) -> dict[Any, Any]:
        """Updates for a finished or stopped run, with its files. Raises OSError if the files cannot be written or read."""
        done = batch.outcomes
        places = [(row, outcome.report) for row, outcome in enumerate(done, 1) if outcome.report is not None]
        downloads.used(batch.folder)
        files = write_several(batch.folder, done)
        request = batch.requests[0]
        rows, reports = [row for row, _ in places], [report for _, report in places]
        drawn: dict[Any, Any] = {}
        for (about, plot), (_, _, said, draw) in zip(self.figures, FIGURES, strict=True):
            drawn |= {about: caption(said if places else _NOWHERE), plot: draw(reports, rows)}
        return {
            **self.rows(batch, "not read: stopped"),
            self.tabs: gr.update(visible=True),
            **drawn,
            **self.share.show(permalink(done, request), command(done, request), files),
        }


def opened(batch: Batch | None, event: gr.EventData) -> Outcome | None:
    """The outcome of the clicked table row; None if the row has no report."""
    row = event._data.get("row") if isinstance(event._data, dict) else None
    if batch is None or not isinstance(row, int) or not 0 <= row < len(batch.outcomes):
        return None
    return batch.outcomes[row] if batch.outcomes[row].report is not None else None
