"""Names and captions of precision variants; plain text."""

import math
import re

from analyzers.precision_variants.report import PrecisionReport
from components.text import numbers
from components.text.names import source_name
from components.text.plain_text import shown

# A description of each preset of `analyzers.precision_variants.variants`.
PRESETS = {
    "fp32": "the reference itself, as a check: all errors are 0",
    "tf32": "fp32 tensors; a GPU may compute matrix products in TF32",
    "bf16": "everything in bf16",
    "bf16_fp32_lm_head": "bf16, LM head in fp32",
    "bf16_fp32_residual": "bf16, residual stream in fp32",
    "bf16_fp32_norms": "bf16, norms in fp32",
    "bf16_fp32_softmax": "bf16, attention in fp32 except for its projections",
    "bf16_fp32_router": "bf16, router of experts in fp32",
    "bf16_max_precision": "bf16, residual stream and LM head in fp32 (the published setting of this name)",
    "bf16_fp32_all_parts": "bf16 linear layers and embeddings, everything else in fp32, full-precision reductions",
    "bf16_autocast": "fp32 weights under torch.autocast to bf16",
    "bf16_eager": "bf16 with eager attention",
    "bf16_int8": "bf16 with the layers' linear weights quantized to int8",
    "bf16_fp8": "bf16 with the layers' linear weights quantized to fp8",
    "bf16_mxfp4": "bf16 with the layers' linear weights quantized to MXFP4",
    "fp16": "everything in fp16, with a loss scale",
    "fp16_fp32_lm_head": "fp16, LM head in fp32",
    "fp16_fp32_residual": "fp16, residual stream in fp32",
    "fp16_max_precision": "fp16, residual stream and LM head in fp32",
    "fp16_fp32_all_parts": "fp16 linear layers and embeddings, everything else in fp32, full-precision reductions",
    "fp16_autocast": "fp32 weights under torch.autocast to fp16",
}
KINDS = {
    "hidden": "hidden state",
    "hidden_grad": "hidden gradient",
    "logits": "logits",
    "logits_grad": "logits gradient",
    "parameter_grad": "parameter gradient",
    "logprob": "log-probability",
    "loss": "loss",
    "inside": "module output",
    "inside_grad": "module gradient",
}
_OURS = {"builtin": "the built-in text", "text": "your text", "random": "random tokens"}
_IN_LAYER = re.compile(r".*?\.\d+\.(?=\D)")


def data_name(report: PrecisionReport, pinned: bool = False) -> str:
    """The source of the tokens, ``pinned`` with the commit of a dataset."""
    return source_name(report.inputs.source, _OURS, report.inputs.commit if pinned else None)


def layer_name(layer: int, layers: int) -> str:
    """The name of a layer, of ``layers`` in the model."""
    return "the embeddings" if layer < 0 else "the head" if layer >= layers else f"layer {layer}"


def within_layer(name: str) -> str:
    """The name of a module or parameter without that of its layer; the full name outside layers."""
    prefix = _IN_LAYER.match(name)
    return name[prefix.end() :] if prefix else name


def short_layer(layer: int, layers: int) -> str:
    """A short name for axes and columns."""
    return "emb." if layer < 0 else "head" if layer >= layers else str(layer)


INSIDE = "Relative error of the output of each module within a layer: median over the layers."
_OVER = 'In the strip "overflow": values that are not finite.'
_SAME = 'In the strip "exact": no error at all.'


def forward(report: PrecisionReport) -> str:
    """Caption of the errors by depth."""
    against = "a reference with the same rounded weights" if report.request.pre_rounded else "the fp32 reference"
    said = f"Relative error of each layer's output, compared with {against}, from the embeddings to the loss."
    return " ".join([said, *_edges(report, {"hidden", "logits", "loss"})])


def backward(report: PrecisionReport) -> str:
    """Caption of the gradient errors by depth."""
    said = ["Relative error of the loss gradient with respect to each layer's output. Gradients flow from right to left."]
    for name, variant in report.variants.items():
        if variant.loss_scale is None:
            said.append(f"No loss scale keeps the gradients of {name} finite.")
        elif variant.loss_scale != 1:
            said.append(f"{name} ran with a loss scale of {numbers.power(round(math.log2(variant.loss_scale)))}, undone here.")
    return " ".join([*said, *_edges(report, {"hidden_grad", "logits_grad"})])


def _edges(report: PrecisionReport, kinds: set[str]) -> list[str]:
    """Explains the marks at the edges of the figure, if any."""
    rows = [row for variant in report.variants.values() for row in variant.tensors if row.kind in kinds]
    return [_OVER] * any(row.nonfinite for row in rows) + [_SAME] * any(row.rms_rel == 0 and not row.nonfinite for row in rows)


def parameters(report: PrecisionReport) -> str:
    """Caption of the parameter gradients."""
    return f"Relative error of the gradients of each kind of parameter, over all layers.{_gaps(report)}"


def inside_backward(report: PrecisionReport) -> str:
    """Caption of the gradients within layers."""
    return f"Relative error of the gradients with respect to these outputs: median over the layers.{_gaps(report)}"


def _gaps(report: PrecisionReport) -> str:
    """Explains the marks in the strip of overflows."""
    over = any(variant.overflow_bw is not None for variant in report.variants.values())
    return f" {_OVER}" if over else ""


def headroom(report: PrecisionReport) -> str:
    """Caption of the headroom."""
    over = report.reference.fp16_overflow
    said = "Largest magnitudes of each layer in the reference, with the limits of fp16 and bf16. One bit is a factor of 2."
    if over is None:
        return f"{said} Nothing overflows fp16 on this text."
    where = layer_name(over.layer, report.reference.layers)
    return f"{said} In fp16 {shown(within_layer(over.name))} of {where} would overflow first."


def logprobs(report: PrecisionReport) -> str:
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


def inputs(report: PrecisionReport) -> str:
    """The tokens of the runs."""
    tokens = report.inputs
    rows = f"{numbers.plural(tokens.sequences, 'sequence')} of {numbers.plural(tokens.length, 'token')}"
    begins = f' The first begins "{tokens.preview}".' if tokens.preview else ""
    return f"Run on {rows} of {data_name(report, pinned=True)}.{begins} The exact tokens are in the JSON."
