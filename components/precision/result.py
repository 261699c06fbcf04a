"""Lays out the result of precision variants: the headline with its tiles, and the tabs below."""

from collections.abc import Callable
from functools import partial

from analyzers.precision_variants.columns import (
    BACKWARD,
    CAUSES,
    ENGINE,
    FORWARD,
    HEADROOM,
    LOGPROBS,
    PARAMETERS,
    SETTINGS,
    WORST,
    of_reference,
)  # fmt: skip
from analyzers.precision_variants.engine.sentences import times
from analyzers.precision_variants.fp16_passport import short
from analyzers.precision_variants.measurements import Variant
from analyzers.precision_variants.report import PrecisionReport
from components.precision import engine_plots, plots
from components.precision.form import command, permalink
from components.precision.tables import LARGEST, left_out
from components.precision.text import captions, data_name
from components.results.layout import Caption, Layout, Piece, Plot, Rows, Tab
from components.results.tables import listed
from components.text import numbers
from components.text.display_names import model_name
from components.text.headline import FACT, UNKNOWN, about_sample, answer, answered, cannot_tell, card, model_head, tiles
from components.text.legend import legend
from components.text.markup import notes, tag

_VERDICTS = {
    "safe": ("On these texts", FACT),
    "at_risk": ("At risk", tag("inference", "under 2 bits")),
    "overflows": ("Overflows", tag("warning", "not safe")),
}


def headline(report: PrecisionReport, links: bool = True) -> str:
    """Render the model, the answer and the tiles. links: include those that work only on the app's pages."""
    return card(
        "Rounding error",
        _head(report),
        answered(report, report.headline(), links),
        tiles(
            report,
            links,
            *([("engine", _engine(report))] if report.engine else []),
            ("precision", _closest(report)),
            ("precision", _worst_layer(report)),
            ("logprobs", _ratio(report)),
            ("fp16-passport", _safe_in_fp16(report)),
        ),
        about_sample(report.checkpoint.ref),
    )


def _head(report: PrecisionReport) -> str:
    inputs, reference = report.inputs, report.reference
    facts = (
        f"{numbers.plural(reference.layers, 'layer')}, {numbers.parameters(reference.parameters)} parameters"
        f"{', random' if reference.weights == 'random' else ''}; {numbers.plural(inputs.sequences, 'sequence')} of "
        f"{numbers.plural(inputs.length, 'token')} of {data_name(report)}. Took {numbers.duration(report.timing.seconds)}"
    )
    return model_head(model_name(report), report.checkpoint, facts)


def _closest(report: PrecisionReport) -> str:
    errors = _errors(report, lambda variant: variant.summary.logprob_mean)
    if not errors:
        return cannot_tell("Closest to fp32", "No variant has finite log-probabilities.")
    closest, farthest = min(errors, key=errors.__getitem__), max(errors, key=errors.__getitem__)
    body = f"Mean log-probability error {numbers.magnitude(errors[closest])} nats"
    body += f"; largest for {farthest}: {numbers.magnitude(errors[farthest])}." if farthest != closest else "."
    return answer("Closest to fp32", closest, FACT, body)


def _worst_layer(report: PrecisionReport) -> str:
    errors = _errors(report, lambda variant: variant.summary.mid_max)
    if not errors:
        return cannot_tell("Worst layer", "No variant has finite hidden states in every layer.")
    best, worst = min(errors, key=errors.__getitem__), max(errors, key=errors.__getitem__)
    low, high = (f"{numbers.rounded(errors[name], 2, 2):.2g}" for name in (best, worst))
    between, which = (f"{high}%", "") if best == worst else (f"{low} to {high}%", f" from {best} to {worst};")
    layer = report.variants[worst].summary.mid_max_layer
    body = f"Largest relative error (rms) of a layer's output,{which} for {worst} in layer {layer}."
    return answer("Worst layer", between, FACT, body)


def _ratio(report: PrecisionReport) -> str:
    errors = _errors(report, lambda variant: variant.logprobs.ratio_mean)
    if not errors:
        return cannot_tell("Importance ratio", "No variant has finite log-probabilities.")
    name = max(errors, key=errors.__getitem__)
    logprobs = report.variants[name].logprobs
    body = (
        f"Mean distance from 1 of the token ratio you get when sampling in {name} and training in fp32, or the reverse; at most "
        f"{numbers.share(logprobs.ratio_max)}."
    )
    return answer("Importance ratio" + f" of {name}" * (report.engine is not None), numbers.share(errors[name]), FACT, body)


def _safe_in_fp16(report: PrecisionReport) -> str:
    passport = report.fp16_passport
    if passport is None or passport.verdict is None:
        return cannot_tell(
            "Safe in fp16?", short(passport) if passport is not None else "This result is older than the answer: run it again."
        )
    words, how = _VERDICTS[passport.verdict]
    return answer("Safe in fp16?", words, how, short(passport))


def _fp16(report: PrecisionReport) -> str:
    return report.fp16_passport.statement if report.fp16_passport is not None else ""


def _errors(report: PrecisionReport, error: Callable[[Variant], float | None]) -> dict[str, float]:
    """Return a measure by variant, without variants that overflow or equal the reference."""
    measured = ((name, error(variant)) for name, variant in report.variants.items() if variant.overflow is None)
    return {name: value for name, value in measured if value}


def _named(report: PrecisionReport) -> str:
    return legend(report.variants)


def _marks(report: PrecisionReport) -> str:
    return legend(report.variants, lines=False)


def _engine(report: PrecisionReport) -> str:
    assert report.engine is not None
    engine, answers = report.engine, {"within": "Within", "beyond": "Beyond", "undecided": "Not decided"}
    body = f"Mean difference from fp32 {numbers.magnitude(engine.difference.mean_abs)} nats, {times(engine.ratio)} as much as bf16's own."
    tags = {"within": FACT, "beyond": tag("warning", "more than rounding"), "undecided": UNKNOWN}
    return answer("Engine within bf16 rounding?", answers[engine.verdict], tags[engine.verdict], body)


def _has_causes(report: PrecisionReport) -> str:
    return listed(CAUSES, report) if report.engine and report.engine.causes else ""


_TABS: tuple[Tab[PrecisionReport], ...] = (
    Tab(
        "Engine",
        [
            Piece(_has_causes),
            Caption(captions.engine, lambda _: legend(engine_plots.SERIES, lines=False)),
            Plot("Engine against fp32", engine_plots.tokens),
            Piece(partial(listed, WORST)),
            Piece(partial(listed, ENGINE)),
            Piece(lambda report: notes(report.notes)),
        ],
        when=lambda report: report.engine is not None,
    ),
    Tab(
        "By depth",
        [
            Caption(captions.forward, _named),
            Plot("Error by depth, forward", plots.forward),
            Piece(partial(listed, FORWARD)),
            Caption(captions.backward, _named),
            Plot("Error by depth, backward", plots.backward),
            Piece(lambda report: listed(BACKWARD, report) + notes(report.notes)),
        ],
    ),
    Tab(
        "Headroom",
        [
            Caption(_fp16),
            Caption(captions.headroom, lambda _: legend(plots.SIDES)),
            Plot("Headroom by layer", plots.headroom),
            Piece(lambda report: listed(HEADROOM, report, of_reference(report)), folded="Headroom by layer"),
        ],
    ),
    Tab(
        "Parameters",
        [
            Caption(captions.parameters, _marks),
            Plot("Error of gradients by kind of parameter", plots.parameters),
            Piece(partial(listed, PARAMETERS), folded="Kinds of parameters"),
        ],
    ),
    Tab(
        "Log-probabilities",
        [
            Caption(captions.logprobs, lambda _: legend(plots.DIFFERENCES, lines=False)),
            Plot("Differences of log-probabilities", plots.logprobs),
            Piece(partial(listed, LOGPROBS)),
        ],
    ),
    Tab(
        "Inside layers",
        [
            Caption(captions.inside, _marks),
            Plot("Error inside the layers, forward", plots.inside),
            Caption(captions.inside_backward, _marks),
            Plot("Error inside the layers, backward", plots.inside_backward),
        ],
        when=lambda report: report.request.inside,
    ),
    Tab(
        "Tensors",
        [
            Piece(partial(listed, SETTINGS), folded="Variants"),
            Caption(captions.inputs),
            Caption(lambda report: captions.tensors(left_out(report))),
            Rows(LARGEST),
        ],
    ),
)
RESULT = Layout("Rounding error", model_name, headline, permalink, command, _TABS)
