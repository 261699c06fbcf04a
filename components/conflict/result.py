"""Lays out the result of gradient conflict: the headline with its tiles, and the tabs below."""

from functools import partial

from analyzers.gradient_conflict.columns import BATCHES, BLOCKS, DECILES, DIFFERENCES, NEURONS, PUBLISHED, RAN_SAMPLES, WEIGHTS, points
from analyzers.gradient_conflict.published import SOURCE
from analyzers.gradient_conflict.report import ConflictReport
from analyzers.gradient_conflict.summaries import Measurement
from components.conflict import plots
from components.conflict.form import command, permalink
from components.conflict.text import as_it_is, captions, change, has_neurons, inputs, unit, units
from components.results.layout import Caption, Layout, Piece, Plot, Rows, Tab
from components.results.tables import Sortable, listed
from components.text import html, model_name, notes, numbers, tag
from components.text.headline import ESTIMATE, FACT, about_sample, answer, answered, cannot_tell, card, model_head, tiles


def headline(report: ConflictReport, links: bool = True) -> str:
    """Render the model, the answer and the tiles. links: include those that work only on the app's pages."""
    last = ("topk", _topk(report)) if report.original is not None else ("whole", _batches(report))
    return card(
        "Gradient conflict",
        _head(report),
        answered(report, report.headline(), links),
        tiles(report, links, ("whole", _whole(report)), ("conflict", _size(report)), ("whole", _dominance(report)), last),
        about_sample(report.checkpoint.ref, more=", on the built-in text"),
        _undecided(report),
    )


def _head(report: ConflictReport) -> str:
    ffn = report.ffn
    facts = (
        f"{numbers.count(ffn.neurons)} {units(report)} in {numbers.plural(ffn.layers, 'layer')}, "
        f"{inputs(report)}, {report.dtype}. Took {numbers.duration(report.timing.seconds)}"
    )
    return model_head(model_name(report), report.checkpoint, facts)


def _undecided(report: ConflictReport) -> str:
    """Return a sentence on numerically undecided pairs, if the rate has many."""
    from analyzers.gradient_conflict.sentences import TRUSTED

    model = as_it_is(report).model
    share = model.undecided.share
    if share is None or share <= TRUSTED:
        return ""
    bounds = numbers.between(model.undecided)
    sentence = f"In {report.dtype} the rate is numerically undecided from {bounds}: run the model in float32 to narrow it."
    return f'<p class="m-left-out">{html(sentence, 300)}</p>'


def _whole(report: ConflictReport) -> str:
    whole = as_it_is(report).model.whole
    if whole.conflict_rate is None:
        return cannot_tell("Whole gradients", "No two samples have a gradient.")
    body = (
        f"Share of the pairs of samples whose whole gradients, all {units(report)} together, conflict. "
        f"Their mean cosine is {numbers.magnitude(whole.mean_cosine)}."
    )
    return answer("Whole gradients", change(report, lambda found: numbers.share(found.model.whole.conflict_rate)), FACT, body)


def _size(report: ConflictReport) -> str:
    body = f"2|g||h| / (|g|² + |h|²) of two samples in the same {unit(report)}, on average: 1 for equal norms, near 0 if one is far larger."
    value = change(report, lambda found: numbers.magnitude(found.model.magnitude_similarity))
    return answer("Gradient-norm similarity", value, FACT, body)


def _dominance(report: ConflictReport) -> str:
    found = as_it_is(report).dominance
    if found.effective_samples is None or found.top_share is None or found.top_sample is None:
        return cannot_tell("Dominance", "No sample has a gradient.")
    body = (
        f"Effective sample size of the whole gradients. The largest, sample {found.top_sample}, has {numbers.share(found.top_share)} of "
        f"their squared norm; an equal share is {numbers.share(1 / report.data.samples)}."
    )
    return answer("Dominance", change(report, _effective_samples), FACT, body)


def _effective_samples(found: Measurement) -> str:
    effective, samples = found.dominance.effective_samples, len(found.dominance.samples)
    return numbers.NOTHING if effective is None else f"{numbers.magnitude(effective)} of {samples}"


def _topk(report: ConflictReport) -> str:
    model = report.differences[0] if report.differences else None
    original = report.original.model.conflict_rate if report.original is not None else None
    if model is None or model.conflict_rate is None:
        return cannot_tell("Top-k against original", "There is nothing to compare.")
    kept = f"Tokens keep {numbers.share(report.ffn.topk.kept)} of the neurons. " if report.ffn.topk is not None else ""
    after = numbers.share(report.model.conflict_rate)
    body = f"{kept}The conflict rate is {numbers.share(original)} with the original FFN and {after} with top-k."
    interval, how = model.interval, FACT
    if interval is not None:
        body += f" 95% interval of the difference: {numbers.rounded(interval.low, 2, 2):+.2g} to {points(interval.high)}."
        how = tag("undecided", "no clear difference") if interval.low <= 0 <= interval.high else ESTIMATE
    return answer("Top-k against original", points(model.conflict_rate), how, body)


def _batches(report: ConflictReport) -> str:
    scale = report.model.whole.noise_scale
    if scale is None:
        body = "The mean gradient of these samples cannot be distinguished from noise; more samples may show a signal."
        return cannot_tell("Noise scale", body)
    body = "The batch size at which a batch's gradient has as much noise as signal, estimated from these samples."
    return answer("Noise scale", numbers.magnitude(scale), ESTIMATE, body)


def published_layers(report: ConflictReport) -> str:
    """Render the published layers, next to those of this run if it has the published setting."""
    link = f'<a href="{SOURCE}" rel="noopener noreferrer" target="_blank">ZeroYuHuang/DynamicK-Tuning</a>'
    return f'{listed(PUBLISHED, report)}<p class="m-say m-below">Source: {link}, analysis_grads.ipynb.</p>'


_TABS: tuple[Tab[ConflictReport], ...] = (
    Tab(
        "Layers",
        [
            Caption(captions.rates),
            Plot("Conflict rate by layer", plots.rates),
            Caption(captions.similarity),
            Plot("Similarity by layer", plots.similarity),
            Piece(lambda report: listed(DIFFERENCES, report) + notes(report.notes)),
            Caption(captions.layers),
            Rows(Sortable(BLOCKS, "m-layers-table")),
        ],
    ),
    Tab(
        "Samples",
        [
            Caption(captions.cosines),
            Plot("Cosines between samples", plots.cosines),
            Caption(captions.dominance),
            Plot("Share of each sample", plots.dominance),
            Caption(captions.samples),
            Rows(Sortable(RAN_SAMPLES, "m-samples-table")),
        ],
    ),
    Tab(
        "Neurons",
        [
            Caption(captions.neurons),
            Rows(Sortable(NEURONS, "m-neurons-table")),
            Caption(captions.neuron_cosines),
            Plot("Cosines between samples in one neuron", plots.neurons),
        ],
        when=has_neurons,
    ),
    Tab("Batches", [Caption(captions.batches), Plot("Conflict by batch size", plots.batches), Piece(partial(listed, BATCHES))]),
    Tab(
        "Activation",
        [Caption(captions.deciles), Plot("Conflict by activation", plots.deciles), Piece(partial(listed, DECILES))],
        when=lambda report: bool(report.deciles),
    ),
    Tab(
        "Weights",
        [Caption(captions.weights), Piece(partial(listed, WEIGHTS), folded="Weights")],
        when=lambda report: report.weights is not None,
    ),
    Tab(
        "Published",
        [
            Caption(captions.published),
            Plot("Published conflict rates", plots.published),
            Piece(published_layers, folded="Published layers"),
        ],
    ),
)
RESULT = Layout("Gradient conflict", model_name, headline, permalink, command, _TABS)
