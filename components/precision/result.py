"""The result on the precision page: the headline and the tabs."""

from typing import TYPE_CHECKING

from components.plots import precision_variants as plots
from components.precision import captions, tables
from components.precision.form import command, permalink
from components.precision.headline import headline, summary
from components.precision.tensor_table import TENSORS, left_out
from components.results.result_tabs import Layout, Tab, html, plot, rows, said
from components.text.legend import legend
from components.text.markup import caption, notes

if TYPE_CHECKING:
    from analyzers.precision_variants.report import PrecisionReport


def _named(report: "PrecisionReport") -> str:
    return legend(report.variants)


def _marks(report: "PrecisionReport") -> str:
    return legend(report.variants, lines=False)


def _about_tensors(report: "PrecisionReport") -> str:
    return tables.settings(report) + caption(captions.inputs(report)) + caption(captions.tensors(left_out(report)))


_TABS: "tuple[Tab[PrecisionReport], ...]" = (
    Tab(
        "By depth",
        [
            said(captions.forward, _named),
            plot("Error by depth, forward", plots.forward),
            html(tables.forward),
            said(captions.backward, _named),
            plot("Error by depth, backward", plots.backward),
            html(lambda report: tables.backward(report) + notes(report.notes)),
        ],
    ),
    Tab(
        "Headroom",
        [
            said(captions.headroom, lambda _: legend(plots.SIDES)),
            plot("Headroom by layer", plots.headroom),
            html(tables.headroom),
        ],
    ),
    Tab(
        "Parameters",
        [
            said(captions.parameters, _marks),
            plot("Error of gradients by kind of parameter", plots.parameters),
            html(tables.parameters),
        ],
    ),
    Tab(
        "Log-probabilities",
        [
            said(captions.logprobs, lambda _: legend(plots.DIFFERENCES, lines=False)),
            plot("Differences of log-probabilities", plots.logprobs),
            html(tables.logprobs),
        ],
    ),
    Tab(
        "Inside layers",
        [
            said(captions.INSIDE, _marks),
            plot("Error inside the layers, forward", plots.inside),
            said(captions.inside_backward, _marks),
            plot("Error inside the layers, backward", plots.inside_backward),
        ],
        when=lambda report: report.request.inside,
    ),
    Tab("Tensors", [html(_about_tensors), rows(TENSORS)]),
)
RESULT = Layout(headline, summary, permalink, command, _TABS)
