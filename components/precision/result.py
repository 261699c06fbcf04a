"""Lays out the result of precision variants: the tabs below the headline and its tiles."""

from typing import Any

from analyzers.precision_variants.report import PrecisionReport
from components.precision import engine_plots, plots
from components.precision.form import command, permalink
from components.results.answer import layout_of, short_table, table
from components.results.layout import Caption, Plot, Tab
from components.text.legend import legend


def _named(report: PrecisionReport) -> str:
    return legend(report.variants)


def _marks(report: PrecisionReport) -> str:
    return legend(report.variants, lines=False)


def _inside(report: PrecisionReport) -> bool:
    return report.request.inside


_TABS: tuple[Tab[Any], ...] = (
    Tab(
        "Engine",
        [
            short_table(PrecisionReport, "causes"),
            Caption("log p less that of the fp32 reference, of the tokens below.", lambda _: legend(engine_plots.SERIES, lines=False)),
            Plot("Engine against fp32", engine_plots.tokens),
            short_table(PrecisionReport, "nearest"),
            short_table(PrecisionReport, "tokens"),
        ],
        when=lambda report: report.engine is not None,
    ),
    Tab(
        "By depth",
        [
            Caption("Relative error of each layer's output, compared with the reference.", _named),
            Plot("Error by depth, forward", plots.forward),
            short_table(PrecisionReport, "variants"),
            Caption("Relative error of the gradients with respect to these outputs.", _named),
            Plot("Error by depth, backward", plots.backward),
            short_table(PrecisionReport, "backward"),
        ],
    ),
    Tab(
        "Headroom",
        [
            short_table(PrecisionReport, "magnitudes"),
            Caption("Largest magnitudes of each layer in the reference. One bit is a factor of 2.", lambda _: legend(plots.SIDES)),
            Plot("Headroom by layer", plots.headroom),
            short_table(PrecisionReport, "headroom"),
        ],
    ),
    Tab(
        "Log-probabilities",
        [
            Caption("d = log p - log p of the reference, per token.", lambda _: legend(plots.DIFFERENCES, lines=False)),
            Plot("Differences of log-probabilities", plots.logprobs),
            short_table(PrecisionReport, "logprobs"),
        ],
    ),
    Tab(
        "Tensors",
        [
            short_table(PrecisionReport, "settings"),
            Caption("Relative error of parameters' gradients: median over the layers.", _marks),
            Plot("Error of gradients by kind of parameter", plots.parameters),
            Caption("Errors within layers, forward and backward: median over the layers.", _marks),
            Plot("Error inside the layers, forward", plots.inside, _inside),
            Plot("Error inside the layers, backward", plots.inside_backward, _inside),
            table(PrecisionReport, "tensors"),
        ],
    ),
)
RESULT = layout_of("Rounding error", _TABS, permalink=permalink, command=command)
