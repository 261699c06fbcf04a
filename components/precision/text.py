"""Names and captions of precision variants; plain text."""

import math
from collections.abc import Iterator

from analyzers.precision_variants.columns import within_layer
from analyzers.precision_variants.measurements import TensorError
from analyzers.precision_variants.report import PrecisionReport
from analyzers.precision_variants.sentences import layer_name
from components.text.display_names import source_name
from components.text.plain_text import shown
from components.text.render import Sentences

# The presets that a page offers first, those of a request without any, in words.
IN_WORDS = {
    "bf16": "Everything in bf16",
    "bf16_fp32_lm_head": "bf16, head in fp32",
    "bf16_fp32_residual": "bf16, residual stream in fp32",
    "bf16_max_precision": "bf16, residual stream and head in fp32",
    "fp16": "Everything in fp16, with a loss scale",
}
_OURS = {"builtin": "the built-in text", "text": "your text", "random": "random tokens", "logprobs": "the engine's file"}


def data_name(report: PrecisionReport, pinned: bool = False) -> str:
    """Name the source of the tokens. pinned: with the commit of a dataset."""
    return source_name(report.inputs.source, _OURS, report.inputs.commit if pinned else None)


def _rows(report: PrecisionReport, kinds: list[str]) -> Iterator[TensorError]:
    return (row for variant in report.variants.values() for row in variant.tensors if row.kind in kinds)


def _unlike(report: PrecisionReport) -> list[str]:
    """List the variants whose routers choose other experts than the reference."""
    return [name for name, variant in report.variants.items() if variant.routing is not None and variant.routing.apart]


captions = Sentences(
    "precision/templates/captions.txt",
    data_name=data_name,
    layer_name=layer_name,
    within_layer=lambda name: shown(within_layer(name)),
    log2=math.log2,
    unlike=_unlike,
    overflows=lambda report, kinds: any(row.nonfinite for row in _rows(report, kinds)),
    matches=lambda report, kinds: any(row.rms_rel == 0 and not row.nonfinite for row in _rows(report, kinds)),
)
