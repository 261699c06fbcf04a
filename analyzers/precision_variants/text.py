"""The report as text for a terminal."""

import math
from collections.abc import Iterator, Sequence

from analyzers.precision_variants.report import PrecisionReport
from analyzers.terminal import clean, columns, plural

# Column -> field of the summary. Shares are shown in per cent, log-probabilities in nats.
_FORWARD = {"Embeddings": "embeddings", "Mid median": "mid_median", "Mid max": "mid_max", "Logits": "logits", "Head": "head"}
_BACKWARD = {
    "Head bw": "head_bw", "Logits bw": "logits_bw", "Mid median bw": "mid_median_bw", "Mid max bw": "mid_max_bw",
    "First layer bw": "first_layer_bw",
}  # fmt: skip
_NATS = {"Logprob mean": "logprob_mean", "Logprob max": "logprob_max"}
_DIGITS = 2  # of the smallest value of a column


def one(report: PrecisionReport) -> str:
    """The statement, then the summary, headroom by layer, and notes."""
    inputs, reference = report.inputs, report.reference
    of = f"{plural(inputs.sequences, 'sequence')} of {plural(inputs.length, 'token')} ({inputs.source})"
    lines = [
        f"{report.checkpoint.ref} @ {report.checkpoint.commit[:12]}: {plural(reference.layers, 'layer')}, {reference.weights} weights, "
        f"{of}, {report.request.loss}; {report.timing.seconds:.3g} s",
        "",
        *report.statement.replace(". ", ".\n").splitlines(),
        "",
        "Relative error (rms) in per cent, log-probabilities in nats:",
        *columns(_summary(report), right=tuple(range(1, 20))),
        "",
        "Headroom of fp16 in bits (powers of two), in the reference:",
        *columns(list(_headroom(report)), right=(0, 1, 2, 3)),
    ]
    return clean("\n".join([*lines, "", *report.notes, f"report {report.id}"]))


def _summary(report: PrecisionReport) -> list[tuple[str, ...]]:
    """Each column with as many decimals as its smallest value needs."""
    found = list(report.variants.values())
    table: list[tuple[str, ...]] = [("Variant", *report.variants)]
    for title, field in (_FORWARD | _BACKWARD | _NATS).items():
        scale = 1 if title in _NATS else 100
        values = [getattr(variant.summary, field) for variant in found]
        table.append((title, *decimals([None if value is None else scale * value for value in values])))
    table.append(("Loss scale", *(_scale(variant.loss_scale) for variant in found)))
    return [tuple(column[row] for column in table) for row in range(len(found) + 1)]


def decimals(values: Sequence[float | None]) -> list[str]:
    """All with as many decimals as give the smallest that is not 0 two digits; a dash for what is missing."""
    small = min((abs(value) for value in values if value), default=1.0)
    places = max(0, _DIGITS - 1 - math.floor(math.log10(small)))
    return ["-" if value is None else f"{value:.{places}f}" if value else "0" for value in values]


def _scale(scale: float | None) -> str:
    return "none" if scale is None else "" if scale == 1 else f"2^{round(math.log2(scale))}"


def _headroom(report: PrecisionReport) -> Iterator[tuple[str, ...]]:
    yield ("Layer", "Forward", "Backward", "Weights", "Largest at")
    for row in report.reference.headroom:
        layer = "embeddings" if row.layer < 0 else "head" if row.layer == report.reference.layers else str(row.layer)
        bits = ("-" if value is None else f"{value:.2f}" for value in (row.forward, row.backward, row.weights))
        yield (layer, *bits, row.forward_at or "")
