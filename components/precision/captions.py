"""Captions of the figures."""

import math
from typing import TYPE_CHECKING

from components.precision.names import data_name, layer_name, within_layer
from components.text import numbers
from components.text.plain_text import shown

if TYPE_CHECKING:
    from analyzers.precision_variants.report import PrecisionReport

INSIDE = "Relative error of the output of each module within a layer: median over the layers."
_OVER = 'In the strip "overflow": values that are not finite.'
_SAME = 'In the strip "exact": no error at all.'


def forward(report: "PrecisionReport") -> str:
    """Caption of the errors by depth."""
    against = "a reference with the same rounded weights" if report.request.pre_rounded else "the fp32 reference"
    said = f"Relative error of each layer's output, compared with {against}, from the embeddings to the loss."
    return " ".join([said, *_edges(report, {"hidden", "logits", "loss"})])


def backward(report: "PrecisionReport") -> str:
    """Caption of the gradient errors by depth."""
    said = ["Relative error of the loss gradient with respect to each layer's output. Gradients flow from right to left."]
    for name, variant in report.variants.items():
        if variant.loss_scale is None:
            said.append(f"No loss scale keeps the gradients of {name} finite.")
        elif variant.loss_scale != 1:
            said.append(f"{name} ran with a loss scale of {numbers.power(round(math.log2(variant.loss_scale)))}, undone here.")
    return " ".join([*said, *_edges(report, {"hidden_grad", "logits_grad"})])


def _edges(report: "PrecisionReport", kinds: set[str]) -> list[str]:
    """Explains the marks at the edges of the figure, if any."""
    rows = [row for variant in report.variants.values() for row in variant.tensors if row.kind in kinds]
    return [_OVER] * any(row.nonfinite for row in rows) + [_SAME] * any(row.rms_rel == 0 and not row.nonfinite for row in rows)


def parameters(report: "PrecisionReport") -> str:
    """Caption of the parameter gradients."""
    return f"Relative error of the gradients of each kind of parameter, over all layers.{_gaps(report)}"


def inside_backward(report: "PrecisionReport") -> str:
    """Caption of the gradients within layers."""
    return f"Relative error of the gradients with respect to these outputs: median over the layers.{_gaps(report)}"


def _gaps(report: "PrecisionReport") -> str:
    """Explains the marks in the strip of overflows."""
    over = any(variant.overflow_bw is not None for variant in report.variants.values())
    return f" {_OVER}" if over else ""


def headroom(report: "PrecisionReport") -> str:
    """Caption of the headroom."""
    over = report.reference.fp16_overflow
    said = "Largest magnitudes of each layer in the reference, with the limits of fp16 and bf16. One bit is a factor of 2."
    if over is None:
        return f"{said} Nothing overflows fp16 on this text."
    where = layer_name(over.layer, report.reference.layers)
    return f"{said} In fp16 {shown(within_layer(over.name))} of {where} would overflow first."


def logprobs(report: "PrecisionReport") -> str:
    """Caption of the log-probabilities."""
    return (
        f"Errors d = log p - log p of the reference over {numbers.plural(report.inputs.predicted, 'predicted token')}, in nats: 0.01 "
        "changes a probability by 1%. Ratios are |exp(d) - 1| per token and |exp(mean d) - 1| per sequence; the last column is the share "
        "of sequences outside GSPO's published clip range."
    )


def tensors(left_out: int) -> str:
    """Caption of the table of tensors."""
    omitted = f" The {numbers.plural(left_out, 'row')} with the smallest errors are in the downloads only." if left_out else ""
    return (
        "All tensors that were compared. Error: rms(x - ref) / rms(ref), and its range over sequences. "
        f"Max error: max |x - ref| / rms(ref).{omitted}"
    )


def inputs(report: "PrecisionReport") -> str:
    """The tokens of the runs."""
    tokens = report.inputs
    rows = f"{numbers.plural(tokens.sequences, 'sequence')} of {numbers.plural(tokens.length, 'token')}"
    begins = f' The first begins "{tokens.preview}".' if tokens.preview else ""
    return f"Run on {rows} of {data_name(report, pinned=True)}.{begins} The exact tokens are in the JSON."
