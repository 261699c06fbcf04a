"""The result on an analysis page: a headline, and tabs of sentences, figures and tables filled from its report.

A page declares its `Layout` once, in display order; the report determines which parts are shown.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import gradio as gr

from analyzers.base import Report
from components.results.data_table import DataTable
from components.results.share import Share, build_share, downloads
from components.text.markup import caption

_Report = TypeVar("_Report", bound=Report)
_FIRST = "first"


@dataclass(frozen=True, slots=True)
class Part(Generic[_Report]):
    """One item in a tab. build: lays it out; content: its value for a report, None if it never changes; empty: its value when the tab is
    hidden.
    """

    build: Callable[[], Any]
    content: Callable[[_Report], Any] | None
    empty: Any = ""


@dataclass(frozen=True, slots=True)
class Tab(Generic[_Report]):
    """A tab. when: whether a report has content for it; None: always shown."""

    name: str
    parts: Sequence[Part[_Report]]
    when: Callable[[_Report], bool] | None = None


@dataclass(frozen=True, slots=True)
class Layout(Generic[_Report]):
    """The parts of a result, each computed from a report: headline (HTML), summary (one line of plain text), permalink and command; and its
    tabs. A Share tab is always appended.
    """

    headline: Callable[[_Report], str]
    summary: Callable[[_Report], str]
    permalink: Callable[[_Report], str]
    command: Callable[[_Report], str]
    tabs: Sequence[Tab[_Report]]


def said(words: str | Callable[[_Report], str], legend: Callable[[_Report], str] | None = None) -> Part[_Report]:
    """A sentence above a figure: plain text, or a function of the report; optionally followed by a legend (HTML)."""
    if isinstance(words, str) and legend is None:
        return Part(lambda: _html(caption(words)), None)

    def content(report: _Report) -> str:
        return caption(words if isinstance(words, str) else words(report)) + (legend(report) if legend else "")

    return Part(_html, content)


def html(content: Callable[[_Report], str]) -> Part[_Report]:
    """A piece of HTML."""
    return Part(_html, content)


def plot(label: str, draw: Callable[[_Report], Any]) -> Part[_Report]:
    """A figure, called ``label``; ``draw`` may also return an update of its component."""
    return Part(lambda: gr.Plot(show_label=False, label=label, elem_classes="m-figure"), draw, gr.update(value=None))


def rows(table: DataTable[_Report]) -> Part[_Report]:
    """A table with sorting and search."""
    return Part(table.build, table.value, table.nothing())


@dataclass(frozen=True, slots=True)
class Result(Generic[_Report]):
    """A laid-out result, made by `build_result`.

    filled: each tab with its component and the components of its parts. tabs: None if every tab is always shown.
    """

    layout: Layout[_Report]
    card: gr.Column
    headline: gr.HTML
    tabs: gr.Tabs | None
    filled: Sequence[tuple[Tab[_Report], gr.Tab, Sequence[tuple[Part[_Report], Any]]]]
    share: Share

    def components(self) -> list[Any]:
        """All components a report changes, as the outputs of an event."""
        inside: list[Any] = [] if self.tabs is None else [self.tabs]
        for tab, shown, parts in self.filled:
            inside += [*([shown] if tab.when else []), *(each for part, each in parts if part.content)]
        return [self.card, self.headline, *inside, *self.share.components()]

    def hide(self) -> dict[Any, Any]:
        """Updates that hide the result."""
        return {self.card: gr.update(visible=False)}

    def summary(self, report: _Report) -> str:
        """The headline as one line of plain text."""
        return self.layout.summary(report)

    def show(self, report: _Report) -> dict[Any, Any]:
        """Updates that show ``report``. Raises OSError when its downloads cannot be written."""
        updates: dict[Any, Any] = {self.card: gr.update(visible=True), self.headline: self.layout.headline(report)}
        if self.tabs is not None:
            # the open tab may be hidden for this report
            updates[self.tabs] = gr.update(selected=_FIRST)
        for tab, shown, parts in self.filled:
            there = tab.when is None or tab.when(report)
            if tab.when:
                updates[shown] = gr.update(visible=there)
            updates |= {each: part.content(report) if there else part.empty for part, each in parts if part.content}
        return updates | self.share.show(self.layout.permalink(report), self.layout.command(report), downloads.write(report), report)


def build_result(layout: Layout[_Report]) -> Result[_Report]:
    """Lay out the result, hidden until there is one. Call inside a page."""
    filled = []
    with gr.Column(visible=False, elem_id="m-result", elem_classes="m-box") as card:
        headline = _html()
        with gr.Tabs() as tabs:
            for number, tab in enumerate(layout.tabs):
                # Gradio can toggle only tabs that are initially hidden
                with gr.Tab(tab.name, id=None if number else _FIRST, visible=tab.when is None) as shown:
                    filled.append((tab, shown, [(part, part.build()) for part in tab.parts]))
            with gr.Tab("Share"):
                share = build_share("m")
    return Result(layout, card, headline, tabs if any(tab.when for tab in layout.tabs) else None, filled, share)


def _html(content: str = "") -> gr.HTML:
    return gr.HTML(content, elem_classes="m-plain")
