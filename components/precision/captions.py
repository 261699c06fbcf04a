"""What the figures show, in a sentence each."""

import math
from typing import TYPE_CHECKING

from components.precision.names import data_name, layer_name, within_layer
from components.text import numbers
from components.text.plain_text import shown

if TYPE_CHECKING:
    from analyzers.precision_variants.report import PrecisionReport

INSIDE = "Error of what each module within a layer gives: the median over the layers."
_OVER = "A cross at the upper edge: numbers that are not finite."
_SAME = "A hollow triangle at the lower edge: exactly the reference's."


def forward(report: "PrecisionReport") -> str:
    """What stands above the errors by depth."""
    against = "a reference with the same rounded weights" if report.request.pre_rounded else "the reference in fp32"
    said = f"Error of what each layer gives, against {against}, from the embeddings to the loss."
    return " ".join([said, *_edges(report, {"hidden", "logits", "loss"})])


def backward(report: "PrecisionReport") -> str:
    """What stands above the errors of gradients."""
    said = ["Error of the gradient of the loss with respect to what each layer gives: it runs from right to left."]
    for name, variant in report.variants.items():
        if variant.loss_scale is None:
            said.append(f"No loss scale keeps the gradients of {name} finite.")
        elif variant.loss_scale != 1:
            said.append(f"{name} ran with a loss scale of {numbers.power(round(math.log2(variant.loss_scale)))}, which is undone here.")
    return " ".join([*said, *_edges(report, {"hidden_grad", "logits_grad"})])


def _edges(report: "PrecisionReport", kinds: set[str]) -> list[str]:
    """Of marks at the edges of the figure, those there are."""
    rows = [row for variant in report.variants.values() for row in variant.tensors if row.kind in kinds]
    return [_OVER] * any(row.nonfinite for row in rows) + [_SAME] * any(row.rms_rel == 0 and not row.nonfinite for row in rows)


def parameters(report: "PrecisionReport") -> str:
    """What stands above the parameters."""
    return f"Error of the gradients of each kind of parameter, all layers together.{_gaps(report)}"


def inside_backward(report: "PrecisionReport") -> str:
    """What stands above the gradients within layers."""
    return f"Error of the gradients with respect to these: the median over the layers.{_gaps(report)}"


def _gaps(report: "PrecisionReport") -> str:
    """Of variants that have no marks."""
    over = any(variant.overflow_bw is not None for variant in report.variants.values())
    return " Nothing is drawn where gradients are not finite." if over else ""


def headroom(report: "PrecisionReport") -> str:
    """What stands above the headroom."""
    over = report.reference.fp16_overflow
    said = "The largest numbers of each layer in the reference, as powers of two, below what fp16 and bf16 hold: one bit is a factor of 2."
    if over is None:
        return f"{said} On this text nothing would overflow in fp16."
    where = layer_name(over.layer, report.reference.layers)
    return f"{said} In fp16 {shown(within_layer(over.name))} of {where} would overflow first."


def logprobs(report: "PrecisionReport") -> str:
    """What stands above the log-probabilities."""
    return (
        f"How far the log-probabilities of the {numbers.plural(report.inputs.predicted, 'predicted token')} are from the reference's, in "
        "nats: d = log p - log p of the reference; 0.01 changes a probability by one percent. Ratios are |exp(d) - 1|, of sequences with "
        "the mean of d; clipped are the sequences whose ratio GSPO would cut off."
    )


def tensors(left_out: int) -> str:
    """What stands above the table of tensors."""
    least = f" The {numbers.plural(left_out, 'row')} with the smallest errors are in the downloads only." if left_out else ""
    return f"Everything that was compared. The spread is between sequences.{least}"


def inputs(report: "PrecisionReport") -> str:
    """What the model was run on."""
    found = report.inputs
    rows = f"{numbers.plural(found.sequences, 'sequence')} of {numbers.plural(found.length, 'token')}"
    begins = f' The first begins "{found.preview}".' if found.preview else ""
    return f"Run on {rows} of {data_name(report, pinned=True)}.{begins} The exact tokens are in the JSON."
