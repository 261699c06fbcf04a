"""What inputs, layers and kinds of tensors are called on the page; plain text."""

import re
from typing import TYPE_CHECKING

from components.text.names import source_name

if TYPE_CHECKING:
    from analyzers.precision_variants.report import PrecisionReport

# What each preset is for. `analyzers.precision_variants.variants`, which knows what each sets, would bring torch along.
PRESETS = {
    "fp32": "the reference again, as a check: all errors are 0",
    "tf32": "fp32 tensors whose products a GPU may compute in TF32",
    "bf16": "everything in bf16",
    "bf16_fp32_lm_head": "bf16 but for the head, from the last hidden state to the logits",
    "bf16_fp32_residual": "bf16 but for the sum that runs through the layers",
    "bf16_fp32_norms": "bf16 but for the norms",
    "bf16_fp32_softmax": "bf16 but for attention between its projections",
    "bf16_fp32_router": "bf16 but for the choice of experts",
    "bf16_max_precision": "bf16 with every part in fp32 that can be",
    "bf16_autocast": "fp32 weights, and torch.autocast to bf16",
    "bf16_eager": "bf16 with plain matrix products in attention",
    "bf16_int8": "bf16 with the layers' weights rounded to int8",
    "bf16_fp8": "bf16 with the layers' weights rounded to fp8",
    "bf16_mxfp4": "bf16 with the layers' weights rounded to MXFP4",
    "fp16": "everything in fp16, with a loss scale",
    "fp16_fp32_lm_head": "fp16 but for the head",
    "fp16_fp32_residual": "fp16 but for the sum that runs through the layers",
    "fp16_max_precision": "fp16 with every part in fp32 that can be",
    "fp16_autocast": "fp32 weights, and torch.autocast to fp16",
}
DEFAULT = ("bf16", "bf16_fp32_lm_head", "bf16_fp32_residual", "bf16_max_precision", "fp16")
KINDS = {
    "hidden": "hidden state",
    "hidden_grad": "hidden gradient",
    "logits": "logits",
    "logits_grad": "logits gradient",
    "parameter_grad": "parameter gradient",
    "logprob": "log-probability",
    "loss": "loss",
    "inside": "inside a layer",
    "inside_grad": "inside gradient",
}
_OURS = {"builtin": "the built-in text", "text": "the text given", "random": "random tokens"}
_IN_LAYER = re.compile(r".*?\.\d+\.(?=\D)")


def data_name(report: "PrecisionReport", pinned: bool = False) -> str:
    """What the model was run on, ``pinned`` with the commit of a dataset."""
    return source_name(report.inputs.source, _OURS, report.inputs.commit if pinned else None)


def layer_name(layer: int, layers: int) -> str:
    """Of a layer of a model that has ``layers``."""
    return "the embeddings" if layer < 0 else "the head" if layer >= layers else f"layer {layer}"


def within_layer(name: str) -> str:
    """Of a module or parameter, what follows the number of its layer; the whole name outside of layers."""
    prefix = _IN_LAYER.match(name)
    return name[prefix.end() :] if prefix else name


def short_layer(layer: int, layers: int) -> str:
    """The same at an axis or in a column."""
    return "emb." if layer < 0 else "head" if layer >= layers else str(layer)
