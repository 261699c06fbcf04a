"""Registers Mantissa's analyzers: questions about the numbers in a language model's weights.

`ANALYZERS` is the one list of them: the command line, the pages, the navigation, the API, the MCP tools, exports and the library read it,
and nothing else names an analyzer.
"""

import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any

__version__ = "0.1.0"


@dataclass(frozen=True, slots=True)
class Analyzer:
    """One analyzer. Its modules are given by name and imported when needed: no command imports torch or Gradio without using it.

    name: the command, the API endpoint, the key in the library and the address of its page. question: what it answers, for ``--help``.
    package: exports ``analyze``, ``NameRequest`` and ``NameReport``. Its modules: ``command``, the options of the command line, and
    ``words``, its templates and tiles.
    title, short: of its page, on a wide and on a narrow screen. home: its page is the app's first.
    components: the package, by default ``components.name``, with the modules ``form`` (as typed, as a link, as a command, for programs, the
    ``COST`` of a run), ``page`` and ``result`` (the layout of the page and of documents).
    runs_model: it runs the model; else it reads weights. many: a call may name several models, by the endpoint ``NAME_many``.
    shown_by: the analyzer whose page answers this question too; this one has none of its own, and its address leads there.
    """

    name: str
    question: str
    package: str
    title: str
    short: str
    home: bool = False
    components: str = ""
    runs_model: bool = False
    shown_by: str = ""

    @property
    def address(self) -> str:
        """Address of its page, relative to the app's."""
        return "" if self.home else self.name

    def load(self) -> Any:
        """Import the package: ``load().analyze``."""
        return import_module(self.package)

    def request_model(self) -> Any:
        """Return the class of its requests."""
        return getattr(self.load(), f"{self.name.capitalize()}Request")

    def report_model(self) -> Any:
        """Return the class of its reports."""
        return getattr(self.load(), f"{self.name.capitalize()}Report")

    def analysis_version(self) -> int:
        """Return the version of the analysis, raised when the same request would give other results.

        It is stored in the module of the request class, which does not import torch.
        """
        version: int = vars(sys.modules[self.request_model().__module__])["ANALYSIS_VERSION"]
        return version

    def module(self, name: str) -> Any:
        """Import a module of the package: "command" or "words"."""
        return import_module(f"{self.package}.{name}")

    def component(self, name: str) -> Any:
        """Import a module of what the product shows of it: "layout" or "plots"."""
        return import_module(f"{self.components or f'components.analyses.{self.name}'}.{name}")


ANALYZERS = {
    analyzer.name: analyzer
    for analyzer in (
        Analyzer(
            name="dtype",
            question="what formats the weights are stored in, have passed through, and fit into",
            package="analyzers.dtype",
            title="Passport",
            short="Passport",
            home=True,
        ),
        Analyzer(
            name="sparsity",
            question="what a fine-tune changed at bf16 resolution, where, and by how much",
            package="analyzers.comparison.sparsity",
            title="Fine-tune diff",
            short="Diff",
            shown_by="compare",
        ),
        Analyzer(
            name="parents",
            question="which models these weights come from: a copy, a fine-tune, a merge (of what, in which proportions), or none",
            package="analyzers.comparison.parents",
            title="Parents",
            short="Parents",
            shown_by="compare",
        ),
        Analyzer(
            name="compare",
            question="what checkpoints are to each other: the same in another form, a fine-tune, a merge, a stack of layers, or unrelated",
            package="analyzers.comparison.compare",
            title="Compare",
            short="Compare",
        ),
        Analyzer(
            name="check",
            question="whether an upload loads and is what it claims, what is wrong with it, and how many bytes it wastes",
            package="analyzers.check",
            title="Check",
            short="Check",
        ),
        Analyzer(
            name="precision",
            question="how rounding error grows through a model, for each way of running it",
            package="analyzers.precision",
            title="Rounding error",
            short="Rounding",
            runs_model=True,
        ),
        Analyzer(
            name="conflict",
            question="whether samples pull the same neuron in opposite directions, and whether one dominates",
            package="analyzers.conflict",
            title="Gradient conflict",
            short="Conflict",
            runs_model=True,
        ),
        Analyzer(
            name="exit",
            question="how close a gradient without backpropagation at the LM head comes to the exact one",
            package="analyzers.exit",
            title="Backprop-free gradients",
            short="No backprop",
            runs_model=True,
        ),
    )
}


def with_pages() -> list[Analyzer]:
    """Return the analyzers that have a page of their own."""
    return [each for each in ANALYZERS.values() if not each.shown_by]


def analyzer_of(request: Any) -> Analyzer:
    """Return the analyzer of a request."""
    return next(each for each in ANALYZERS.values() if f"{type(request).__module__}.".startswith(f"{each.package}."))
