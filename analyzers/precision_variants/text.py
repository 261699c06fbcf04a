"""The report as text for a terminal."""

import math
from collections.abc import Iterator, Sequence

from analyzers.precision_variants.report import PrecisionReport
from analyzers.terminal import clean, columns, number, percent, plural, printable

# Column -> field of the summary. Errors are shown in percent, log-probabilities in nats.
_FORWARD = {"Embeddings": "embeddings", "Mid median": "mid_median", "Mid max": "mid_max", "Logits": "logits", "Head": "head"}
_BACKWARD = {
    "Head bw": "head_bw", "Logits bw": "logits_bw", "Mid median bw": "mid_median_bw", "Mid max bw": "mid_max_bw",
    "First layer bw": "first_layer_bw",
}  # fmt: skip
_NATS = {"Logprob mean": "logprob_mean", "Logprob max": "logprob_max"}
_DIGITS = 2  # significant digits of the smallest value of a column


def one(report: PrecisionReport) -> str:
    """The statement, the summary, headroom by layer, and notes."""
    inputs, reference = report.inputs, report.reference
    tokens = f"{plural(inputs.sequences, 'sequence')} of {plural(inputs.length, 'token')} ({inputs.source})"
    lines = [
        f"{report.checkpoint.ref} @ {report.checkpoint.commit[:12]}: {plural(reference.layers, 'layer')}, {reference.weights} weights, "
        f"{tokens}, {report.request.loss}; {report.timing.seconds:.3g} s",
        "",
        *report.statement.replace(". ", ".\n").splitlines(),
        "",
        "Relative error (rms) in %, log-probabilities in nats:",
        *columns(_summary(report), right=tuple(range(1, 20))),
        "",
        "fp16 headroom of the reference in bits (powers of two):",
        *columns(list(_headroom(report)), right=(0, 1, 2, 3)),
    ]
    return clean("\n".join([*lines, "", *report.notes, f"report {report.id}"]))


def _summary(report: PrecisionReport) -> list[tuple[str, ...]]:
    """A row per variant; each column has as many decimals as its smallest value needs."""
    variants = list(report.variants.values())
    table: list[tuple[str, ...]] = [("Variant", *report.variants)]
    for title, field in (_FORWARD | _BACKWARD | _NATS).items():
        scale = 1 if title in _NATS else 100
        values = [getattr(variant.summary, field) for variant in variants]
        table.append((title, *decimals([None if value is None else scale * value for value in values])))
    table.append(("Loss scale", *(_scale(variant.loss_scale) for variant in variants)))
    if report.request.loss != "ce":
        table.append(("Clipped", *(percent(variant.clipped) for variant in variants)))
    return [tuple(column[row] for column in table) for row in range(len(variants) + 1)]


def decimals(values: Sequence[float | None]) -> list[str]:
    """All with the same number of decimals, two digits for the smallest that is not 0; a dash for None."""
    smallest = min((abs(value) for value in values if value), default=1.0)
    count = max(0, _DIGITS - 1 - math.floor(math.log10(smallest)))
    return ["-" if value is None else f"{value:.{count}f}" if value else "0" for value in values]


def tensors(report: PrecisionReport) -> list[str]:
    """One line per tensor of each variant."""
    rows: list[tuple[str, ...]] = [
        ("Variant", "Tensor", "Kind", "Shape", "rms rel", "max rel", "rms", "Max", "Bias", "rms of ref", "Not finite")
    ]
    rows += [
        (
            name,
            printable(row.name),
            row.kind,
            "-" if row.shape is None else "x".join(map(str, row.shape)) or "-",
            *map(percent, (row.rms_rel, row.max_rel)),
            *map(number, (row.rms, row.max, row.bias, row.ref_rms)),
            f"{row.nonfinite:,}",
        )
        for name, variant in report.variants.items()
        for row in variant.tensors
    ]
    return columns(rows, right=tuple(range(4, 11)))


def _scale(scale: float | None) -> str:
    return "none" if scale is None else "" if scale == 1 else f"2^{round(math.log2(scale))}"


def _headroom(report: PrecisionReport) -> Iterator[tuple[str, ...]]:
    yield ("Layer", "Forward", "Backward", "Weights", "Largest at")
    for row in report.reference.headroom:
        layer = "embeddings" if row.layer < 0 else "head" if row.layer == report.reference.layers else str(row.layer)
        bits = ("-" if value is None else f"{value:.2f}" for value in (row.forward, row.backward, row.weights))
        yield (layer, *bits, row.forward_at or "")
