"""The report as text for a terminal."""

from collections.abc import Iterator

from analyzers.base import Interval
from analyzers.gradient_conflict.report import ConflictReport
from analyzers.gradient_conflict.request import ATTENTION_BLOCKS, COMBINED_BLOCKS, FFN_BLOCKS
from analyzers.gradient_conflict.summaries import Measurement
from analyzers.terminal import clean, columns, number, percent, plural

# Rows of samples, those with the largest gradients, and of the most and of the least conflicted neurons.
_SHOWN = 5


def one(report: ConflictReport) -> str:
    """The statement, then layers, the samples with the largest gradients, neurons, batches, deciles, weights and notes."""
    data, ffn = report.data, report.ffn
    units = ("row of an attention projection", "rows of attention projections") if ffn.unit == "attention" else ("neuron", "neurons")
    lines = [
        f"{report.checkpoint.ref} @ {report.checkpoint.commit[:12]}: {plural(ffn.neurons, *units)} in {plural(ffn.layers, 'layer')}, "
        f"{plural(data.samples, 'sample')} of {data.source}, {plural(data.tokens, 'token')}, {report.dtype}; {report.timing.seconds:.3g} s",
        "",
        *report.answer_lines(),
        "",
        *columns(list(_layers(report)), right=tuple(range(1, 14))),
        *(["With the top-k FFN; Original: the model as it is."] if report.original is not None else []),
        "As published: ordered pairs whose gradients are both above 0, each sample with itself included.",
        "",
        *columns(list(_samples(report)), right=(0, 1, 2, 3, 4)),
    ]
    for table in (_combined(report), _neurons(report), _batches(report), _deciles(report), _weights(report)):
        rows = list(table)
        if len(rows) > 1:
            lines += ["", *columns(rows, right=tuple(range(len(rows[0]))))]
    return clean("\n".join([*lines, "", *report.notes, f"report {report.id}"]))


def _layers(report: ConflictReport) -> Iterator[tuple[str, ...]]:
    blocks = [name for name in (*FFN_BLOCKS, *ATTENTION_BLOCKS) if name in report.ffn.blocks]
    compared = ("Original", "Difference", "Top share", "Eff. samples") if report.original is not None else ()
    yield ("Layer", "Conflict", "95%", "Undecided", "As published", "Similarity", *blocks, "Whole layer", *compared)
    rows = [("model", report.model, None if report.original is None else report.original.model)]
    originals = report.original.layers if report.original is not None else [None] * len(report.layers)
    rows += [(str(row.layer), row, original) for row, original in zip(report.layers, originals, strict=True)]
    for (name, row, original), difference in zip(rows, report.differences or [None] * len(rows), strict=True):
        each = (getattr(row, block) for block in blocks)
        undecided = f"{percent(row.undecided.low)} - {percent(row.undecided.high)}"
        cells: tuple[str, ...] = (name, percent(row.conflict_rate), _interval(row.interval), undecided)
        cells += (percent(row.conflict_rate_historic), number(row.magnitude_similarity))
        cells += (*(percent(rates.conflict_rate if rates else None) for rates in each), percent(row.whole.conflict_rate))
        if original is not None and difference is not None:
            cells += (percent(original.conflict_rate), percent(difference.conflict_rate))
            cells += (percent(difference.neuron_top_share), number(difference.neuron_effective_samples))
        yield cells


def _combined(report: ConflictReport) -> Iterator[tuple[str, ...]]:
    yield ("Conflict in layer", *("+".join(blocks) for blocks in COMBINED_BLOCKS.values()))
    for name, row in (("model", report.model), *((str(row.layer), row) for row in report.layers)):
        each = [getattr(row, block) for block in COMBINED_BLOCKS]
        if any(each):
            yield (name, *(percent(rates.conflict_rate if rates else None) for rates in each))


def _samples(report: ConflictReport) -> Iterator[tuple[str, ...]]:
    yield ("Sample", "Share", "Cosine to the rest", "Largest in units", "Loss", "Text")
    ranked = sorted(report.dominance.samples, key=lambda row: -row.norm)
    for row in ranked[:_SHOWN]:
        sample = report.samples[row.sample]
        text = " ".join(sample.text.split())
        short = text if len(text) <= 60 else f"{text[:57]}..."
        yield (str(row.sample), percent(row.share), number(row.cosine_to_rest), percent(row.neurons_led), number(sample.loss), short)


def _neurons(found: Measurement) -> Iterator[tuple[str, ...]]:
    yield ("Neuron", "Conflict", "Similarity", "Mean cosine", "Mean |activation|", "Top sample", "Share", "Effective samples")
    kept = found.neurons
    for row in () if kept is None else (*kept.most[:_SHOWN], *reversed(kept.least[:_SHOWN])):
        within = f", expert {row.expert}" if row.expert is not None else f", {row.block}" if row.block is not None else ""
        cells = (percent(row.conflict_rate), *map(number, (row.magnitude_similarity, row.mean_cosine, row.mean_activation)))
        top = "-" if row.top_sample is None else str(row.top_sample)
        yield (f"layer {row.layer}{within}, {row.neuron}", *cells, top, percent(row.top_share), number(row.effective_samples))


def _batches(found: Measurement) -> Iterator[tuple[str, ...]]:
    yield ("Batch size", "Conflict", "Mean cosine", "Whole gradient: conflict", "Mean cosine")
    model = found.model
    whole = percent(model.whole.conflict_rate), number(model.whole.mean_cosine)
    yield ("1", percent(model.conflict_rate), number(model.mean_cosine), *whole)
    for row in found.batch_curve:
        whole = percent(row.whole_conflict_rate), number(row.whole_mean_cosine)
        yield (str(row.batch_size), percent(row.conflict_rate), number(row.mean_cosine), *whole)


def _deciles(found: Measurement) -> Iterator[tuple[str, ...]]:
    yield ("Decile by activation", "Mean |activation|", "Conflict", "95%", "Similarity")
    for row in found.deciles:
        conflict = percent(row.conflict_rate), _interval(row.interval)
        yield (str(row.decile), number(row.mean_activation), *conflict, number(row.magnitude_similarity))


def _weights(found: Measurement) -> Iterator[tuple[str, ...]]:
    yield ("Weights", "Opposite signs", "Agreement", "Signal to noise", "Without a signal")
    if found.weights is not None:
        row = found.weights
        yield (f"{row.weights:,}", percent(row.conflict), number(row.agreement), number(row.snr), number(row.noise_floor))


def _interval(interval: Interval | None) -> str:
    return "-" if interval is None else f"{percent(interval.low)} - {percent(interval.high)}"
