"""Names and captions of precision variants; plain text."""

import math
from collections.abc import Iterator

from analyzers.precision_variants.columns import within_layer
from analyzers.precision_variants.measurements import TensorError
from analyzers.precision_variants.report import PrecisionReport
from analyzers.precision_variants.text import layer_name
from components.text.display_names import source_name
from components.text.plain_text import shown
from components.text.render import Sentences

# Descriptions of the presets in `analyzers.precision_variants.variants`.
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
_OURS = {"builtin": "the built-in text", "text": "your text", "random": "random tokens"}


def data_name(report: PrecisionReport, pinned: bool = False) -> str:
    """Name the source of the tokens. pinned: with the commit of a dataset."""
    return source_name(report.inputs.source, _OURS, report.inputs.commit if pinned else None)


def _rows(report: PrecisionReport, kinds: list[str]) -> Iterator[TensorError]:
    return (row for variant in report.variants.values() for row in variant.tensors if row.kind in kinds)


captions = Sentences(
    "precision/templates/captions.txt",
    data_name=data_name,
    layer_name=layer_name,
    within_layer=lambda name: shown(within_layer(name)),
    log2=math.log2,
    overflows=lambda report, kinds: any(row.nonfinite for row in _rows(report, kinds)),
    matches=lambda report, kinds: any(row.rms_rel == 0 and not row.nonfinite for row in _rows(report, kinds)),
)
