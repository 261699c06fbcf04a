"""Several models on the page: a table that fills as models are read, a figure of them among labelled models, and the downloads."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gradio as gr

from analyzers.dtype_detection import DtypeReport, DtypeRequest
from components.passport.comparison import comparison
from components.passport.files import write_several
from components.passport.form import command_of_several, permalink_of_several
from components.passport.outcomes import Outcome, kept, reports_of
from components.plots.among_models import among_models
from components.results.share import Share, build_share, downloads
from components.text import numbers
from components.text.markup import caption

_ABOUT = "Numbered stars are these models, by their rows above; each point is a model whose training precision is known. "
_NOWHERE = "None of these models could be read, so none has a place here. "
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


@dataclass(frozen=True, slots=True)
class Several:
    """The components a batch fills."""

    card: gr.Column
    table: gr.HTML
    tabs: gr.Column
    about: gr.HTML
    among: gr.Plot
    share: Share

    def components(self) -> list[Any]:
        """All components, as the outputs of an event."""
        return [self.card, self.table, self.tabs, self.about, self.among, *self.share.components()]

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
        return {
            **self.rows(batch, "not read: stopped"),
            self.tabs: gr.update(visible=True),
            self.about: caption((_ABOUT if places else _NOWHERE) + "Dashed: the thresholds of the rule of thumb."),
            self.among: among_models([report for _, report in places], [row for row, _ in places]),
            **self.share.show(permalink_of_several(done, request), command_of_several(done, request), files),
        }


def opened(batch: Batch | None, event: gr.EventData) -> Outcome | None:
    """The outcome of the clicked table row; None if the row has no report."""
    row = event._data.get("row") if isinstance(event._data, dict) else None
    if batch is None or not isinstance(row, int) or not 0 <= row < len(batch.outcomes):
        return None
    return batch.outcomes[row] if batch.outcomes[row].report is not None else None


def build_several() -> Several:
    """Lay out the components, hidden until there is a batch. Call inside a page."""
    with gr.Column(visible=False, elem_id="m-several", elem_classes="m-box") as card:
        table = gr.HTML(elem_classes="m-plain", js_on_load=_OPEN, elem_id="m-table")
        with gr.Column(visible=False, elem_classes="m-flush") as under, gr.Tabs():
            with gr.Tab("Among models"):
                about = gr.HTML(elem_classes="m-plain")
                among = gr.Plot(show_label=False, label="Among models of known training precision", elem_classes="m-figure")
            with gr.Tab("Share"):
                share = build_share("m-all", embeds=False)
    return Several(card, table, under, about, among, share)
