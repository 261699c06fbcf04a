"""Shows a result on an analysis page: its `Layout`, built once and filled from a report."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import gradio as gr

from analyzers.core.report import Report
from components.forms.fields import QUIET
from components.results.copy_box import CopyBox
from components.results.layout import Caption, Layout, Part, Piece, Plot, Rows, Tab
from components.results.self_contained_page import saving
from components.results.share import Share, Source

_Report = TypeVar("_Report", bound=Report)
_SHARE = "share"
# Scrolls to the tabs, again as the opened one gets its height, and moves the focus there.
_SHOW_SHARE = (
    "() => { const show = () => { document.querySelector('#m-result .tabs')?.scrollIntoView({block: 'start'}); "
    "document.querySelector('#m-result [role=tab][aria-selected=true]')?.focus({preventScroll: true}) }; "
    "for (const wait of [0, 80, 400]) setTimeout(show, wait) }"
)


@dataclass(frozen=True, slots=True)
class Result(Generic[_Report]):
    """A result laid out on a page by `build_result`.

    filled: each tab with its component and the components of its parts. tabs: None if every tab is always shown.
    """

    layout: Layout[_Report]
    card: gr.Column
    headline: gr.HTML
    tabs: gr.Tabs | None
    filled: Sequence[tuple[Tab[_Report], gr.Tab, Sequence[tuple[Part[_Report], Any]]]]
    share: Share
    copy: CopyBox | None

    def components(self) -> list[Any]:
        """Return all components that a report changes, as the outputs of an event."""
        inside: list[Any] = [] if self.tabs is None else [self.tabs]
        for tab, shown, parts in self.filled:
            inside += [*([shown] if tab.when else []), *(component for _, component in parts)]
        return [self.card, self.headline, *inside, *self.share.components(), *(self.copy.components() if self.copy is not None else [])]

    def hide(self) -> dict[Any, Any]:
        """Return updates that hide the result."""
        return {self.card: gr.update(visible=False)}

    def show(self, report: _Report, source: Source) -> dict[Any, Any]:
        """Return updates that show ``report``. source: source of its downloads."""
        updates: dict[Any, Any] = {self.card: gr.update(visible=True), self.headline: self.layout.headline(report, True)}
        if self.tabs is not None:
            # The open tab may be hidden for this report.
            updates[self.tabs] = gr.update(selected=next(number for number, (tab, *_) in enumerate(self.filled) if tab.shows(report)))
        for tab, shown, parts in self.filled:
            if tab.when:
                updates[shown] = gr.update(visible=tab.shows(report))
            updates |= {component: _content(part, report if tab.shows(report) else None) for part, component in parts}
        if self.copy is not None and self.layout.copy is not None:
            updates |= self.copy.show(self.layout.copy(report))
        return updates | self.share.show_report(self.layout, report, source)


def build_result(layout: Layout[_Report]) -> Result[_Report]:
    """Lay out the result, hidden until there is one. Call inside a page."""
    filled = []
    with gr.Column(visible=False, elem_id="m-result", elem_classes="m-box") as card:
        to_share = gr.Button("Share", size="sm", elem_id="m-to-share")
        headline = gr.HTML(elem_classes="m-plain")
        copy = CopyBox() if layout.copy is not None else None
        with gr.Tabs() as tabs:
            for number, tab in enumerate(layout.tabs):
                # Gradio can toggle only tabs that are initially hidden.
                with gr.Tab(tab.name, id=number, visible=tab.when is None) as shown:
                    filled.append((tab, shown, [(part, _build(part)) for part in tab.parts]))
            with gr.Tab("Share", id=_SHARE):
                share = Share("m")
        opened = to_share.click(lambda: gr.update(selected=_SHARE), None, tabs, queue=False, **QUIET)
        opened.then(None, js=_SHOW_SHARE, **QUIET)
    return Result(layout, card, headline, tabs if any(tab.when for tab in layout.tabs) else None, filled, share, copy)


def build_plot(label: str) -> gr.Plot:
    """Build an empty figure, called ``label``, above the buttons that save it. Call inside a page."""
    plot = gr.Plot(show_label=False, label=label, elem_classes="m-figure")
    gr.HTML(saving(label), elem_classes="m-plain")
    return plot


def _build(part: Part[Any]) -> Any:
    """Build the empty component of a part."""
    match part:
        case Plot():
            return build_plot(part.label)
        case Rows():
            return part.table.build()
    return gr.HTML(elem_classes="m-plain")


def _content(part: Part[_Report], report: _Report | None) -> Any:
    """Return the value of a part's component for ``report``, or of an empty component without a report."""
    match part:
        case Plot():
            drawn = None if report is None else part.draw(report)
            return gr.update(value=drawn, visible=part.when(report)) if part.when and report is not None else gr.update(value=drawn)
        case Rows():
            return part.table.value(report)
        case Caption() | Piece():
            return "" if report is None else part.html(report)
