"""Precision reports as one self-contained page."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from components.plots import precision_variants as plots
from components.precision import captions, tables
from components.precision.headline import headline
from components.precision.tensor_table import TENSORS, left_out
from components.results.standalone import Page, article, card, figure, folded, report_page
from components.text.legend import legend
from components.text.markup import caption, notes
from components.text.names import model_name

if TYPE_CHECKING:
    from analyzers.precision_variants.report import PrecisionReport


def document(reports: "Sequence[PrecisionReport]") -> Page:
    """A page with the headline, the tables and the plots of each report."""
    return report_page("Precision variants", list(map(model_name, reports)), [_article(*each) for each in enumerate(reports, 1)])


def _article(row: int, report: "PrecisionReport") -> str:
    named, marks = legend(report.variants), legend(report.variants, lines=False)
    parts = [
        headline(report),
        figure("Forward", plots.forward(report), f"forward-{row}", captions.forward(report), named),
        card(tables.forward(report)),
        figure("Backward", plots.backward(report), f"backward-{row}", captions.backward(report), named),
        card(tables.backward(report) + notes(report.notes)),
        folded("Variants", tables.settings(report)),
        figure("Headroom", plots.headroom(report), f"headroom-{row}", captions.headroom(report), legend(plots.SIDES)),
        folded("Headroom by layer", tables.headroom(report)),
        figure("Parameters", plots.parameters(report), f"parameters-{row}", captions.parameters(report), marks),
        folded("Kinds of parameters", tables.parameters(report)),
        figure(
            "Log-probabilities",
            plots.logprobs(report),
            f"logprobs-{row}",
            captions.logprobs(report),
            legend(plots.DIFFERENCES, lines=False),
        ),
        card(tables.logprobs(report)),
    ]
    if report.request.inside:
        parts.append(figure("Inside the layers", plots.inside(report), f"inside-{row}", captions.INSIDE, marks))
        parts.append(
            figure("Inside, backward", plots.inside_backward(report), f"inside-backward-{row}", captions.inside_backward(report), marks)
        )
    about = caption(captions.inputs(report)) + caption(captions.tensors(left_out(report)))
    parts.append(folded("Tensors", about + TENSORS.html(report)))
    return article(row, parts)
