"""Declares the layout of a result, once per analyzer: a headline, and tabs of sentences, figures and tables computed from the report.

The same layout is shown on a page (`result_tabs`) and written into a self-contained document.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, cast

from analyzers.core.report import Report
from components.results import self_contained_page
from components.results.copy_offer import CopyOffer
from components.results.tables import Sortable
from components.text import caption

_Report = TypeVar("_Report", bound=Report)


@dataclass(frozen=True, slots=True)
class Caption(Generic[_Report]):
    """A sentence above a figure or a table, plain text or a function of the report; optionally followed by a legend (HTML)."""

    words: str | Callable[[_Report], str]
    legend: Callable[[_Report], str] | None = None

    def html(self, report: _Report) -> str:
        """Render the sentence and the legend."""
        said = self.words if isinstance(self.words, str) else self.words(report)
        return caption(said) + (self.legend(report) if self.legend else "")


@dataclass(frozen=True, slots=True)
class Piece(Generic[_Report]):
    """HTML computed from the report. folded: the title under which a document folds it."""

    html: Callable[[_Report], str]
    folded: str = ""


@dataclass(frozen=True, slots=True)
class Plot(Generic[_Report]):
    """A figure, called ``label``. when: whether a report has data for it; None: always."""

    label: str
    draw: Callable[[_Report], Any]
    when: Callable[[_Report], bool] | None = None


@dataclass(frozen=True, slots=True)
class Rows(Generic[_Report]):
    """A table with sorting and search."""

    table: Sortable


Part = Caption[_Report] | Piece[_Report] | Plot[_Report] | Rows[_Report]


@dataclass(frozen=True, slots=True)
class Tab(Generic[_Report]):
    """A tab. when: whether a report has content for it; None: always shown."""

    name: str
    parts: Sequence[Part[_Report]]
    when: Callable[[_Report], bool] | None = None

    def shows(self, report: _Report) -> bool:
        """Return whether the tab is shown for ``report``."""
        return self.when is None or self.when(report)

    def of(self, part: Callable[[Any], _Report | None]) -> "Tab[Any]":
        """Return this tab for a report that contains such a report, ``part(report)``; hidden where that is None."""

        def inner(function: Callable[[_Report], Any]) -> Callable[[Any], Any]:
            return lambda report: function(cast(_Report, part(report)))

        def moved(each: Part[_Report]) -> Part[Any]:
            match each:
                case Caption():
                    words = each.words if isinstance(each.words, str) else inner(each.words)
                    return Caption(words, inner(each.legend) if each.legend else None)
                case Piece():
                    return Piece(inner(each.html), each.folded)
                case Plot():
                    return Plot(each.label, inner(each.draw), inner(each.when) if each.when else None)
                case Rows():
                    return Rows(each.table.of(part))

        return Tab(self.name, [moved(each) for each in self.parts], lambda report: part(report) is not None and inner(self.shows)(report))


class Verdict(NamedTuple):
    """A short answer to one of the questions of a result, plain text. kind: of the evidence, as `tag` styles it; how: in words."""

    question: str
    answer: str
    kind: str
    how: str


@dataclass(frozen=True, slots=True)
class Layout(Generic[_Report]):
    """The parts of a result, each computed from a report.

    title: title of the document; name: name of a report within it; headline: the first card, HTML, with the links that work only on the
    app's pages if True; permalink: the page query of a request; command: the same request on the command line. overview: HTML above several
    reports. summary: the report's own headline, with the library's knowledge; plain text. related: names and addresses of further pages of
    the app. markdown: the lines of the result as GitHub Markdown, for an issue; None: it has none. copy: the offer of a pull request with a
    narrower copy, if the report has one.
    verdicts: the short answers that a card shows; without any, it shows the first figure.
    """

    title: str
    name: Callable[[_Report], str]
    headline: Callable[[_Report, bool], str]
    permalink: Callable[[Any], str]
    command: Callable[[Any], str]
    tabs: Sequence[Tab[_Report]]
    overview: Callable[[Sequence[_Report]], str] | None = None
    summary: Callable[[_Report], str] = lambda report: report.headline
    related: Callable[[_Report], Sequence[tuple[str, str]]] = lambda report: ()
    markdown: Callable[[_Report], list[str]] | None = None
    verdicts: Callable[[_Report], Sequence[Verdict]] = lambda report: ()
    copy: Callable[[_Report], CopyOffer | None] | None = None

    def document(self, reports: Sequence[_Report], figures: bool = True) -> self_contained_page.Page:
        """Render a page with the headline, tables and figures of each report; without ``figures`` as in `article`."""
        above = [self.overview(reports)] if self.overview and len(reports) > 1 else []
        articles = [self.article(row, report, figures) for row, report in enumerate(reports, 1)]
        return self_contained_page.report_page(self.title, list(map(self.name, reports)), above + articles)

    def plots(self, report: _Report) -> list[Plot[_Report]]:
        """Return the figures for which ``report`` has data."""
        parts = [part for tab in self.tabs if tab.shows(report) for part in tab.parts]
        return [part for part in parts if isinstance(part, Plot) and (part.when is None or part.when(report))]

    def article(self, row: int, report: _Report, figures: bool = True) -> str:
        """Render one report of a document, numbered ``row``: a figure or a table is preceded by the sentences about it.

        Without ``figures`` it names them, and omits the tables with sorting and search, which may be long.
        """
        parts = [self.headline(report, False)]
        for tab in (tab for tab in self.tabs if tab.shows(report)):
            said = ""
            for part in tab.parts:
                match part:
                    case Caption():
                        said += part.html(report)
                        continue
                    case Plot() | Rows() if not figures:
                        pass
                    case Plot():
                        if part.when is not None and not part.when(report):
                            continue
                        parts.append(self_contained_page.figure(part.label, part.draw(report), f"figure-{row}-{len(parts)}", said))
                    case Rows():
                        parts.append(self_contained_page.folded(part.table.label, said + part.table.html(report)))
                    case Piece():
                        content = said + part.html(report)
                        parts.append(
                            self_contained_page.folded(part.folded, content)
                            if part.folded
                            else self_contained_page.card(content)
                            if content
                            else ""
                        )
                said = ""
            if said:
                parts.append(self_contained_page.card(said))
        if not figures:
            parts.append(self_contained_page.calls([plot.label for plot in self.plots(report)]))
        return self_contained_page.article(row, parts)
