"""Reports of gradient conflict: text through a built-in sample, and batches of a caller whose gradients are known."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import mantissa
from analyzers.conflict import ConflictReport, ConflictRequest, analyze
from analyzers.core.errors import MantissaError
from analyzers.core.report import Report
from analyzers.language_models.words import WORDS as REMARKS
from tests.language_models.architectures import Architecture, build
from tests.words.hostile import HOSTILE, refusal


def reports() -> dict[str, Report | MantissaError]:
    """Make the reports; the names say what is special about each."""
    with torch.random.fork_rng([]):
        full = _analysed()
        return {
            "eight samples": full,
            "identical samples": _analysed(token_ids=((5, 6, 7, 8),) * 5),
            "three samples, in float16": _analysed(samples=3, dtype="float16"),
            "another gamma": _analysed(gamma=0.1),
            "top-k in all layers": _analysed(ffn="topk", topk_layers="all"),
            "top-k that keeps everything": _analysed(ffn="topk", topk=1.0),
            "top-k, strong conflict only": _analysed(samples=24, ffn="topk", topk_layers="all", gamma=-0.3),
            "batches of the caller that conflict": _of_batches(torch.eye(8) - 1 / 8),
            "batches of the caller, one of them large": _of_batches([torch.full((8,), scale) for scale in (50.0, *[1.0] * 7)]),
            "batches of the caller without gradients": _of_batches(torch.zeros(8, 8)),
            "batches of the caller in bfloat16": _of_noise(),
            "hostile names": hostile(full),
            "error": refusal(lambda: _analysed(ffn="topk", topk_layers="2-9")),
        }


def hostile(report: ConflictReport) -> ConflictReport:
    """Return the report with markup and control characters wherever text comes from outside."""
    samples = tuple(each.model_copy(update={"text": f"Say it.\n{row} {HOSTILE}"}) for row, each in enumerate(report.samples))
    return report.model_copy(
        update={
            "checkpoint": report.checkpoint.model_copy(update={"ref": HOSTILE}),
            "data": report.data.model_copy(update={"source": HOSTILE}),
            "samples": samples,
            "notes": (REMARKS.note("few-samples", source=HOSTILE, samples=8, requested=50),),
        }
    )


def _analysed(**asked: Any) -> ConflictReport:
    asked = {"samples": 8, "weights": False} | asked
    return _last(analyze(ConflictRequest(model="sample:tiny-bf16", **asked)))


def _last(items: Iterator[Any]) -> ConflictReport:
    *_, report = items
    assert isinstance(report, ConflictReport)
    return report


def _of_batches(directions: "Sequence[Tensor] | Tensor") -> ConflictReport:
    """Measure a model whose loss has, in one neuron, the gradient that each batch is."""
    return mantissa.conflict(_model(torch.float32), batches=list(directions), loss=_along)


def _of_noise() -> ConflictReport:
    """Measure gradients with so weak a common part that bfloat16 cannot tell the sign of most cosines."""
    generator = torch.Generator().manual_seed(1)
    common = torch.randn(2048, generator=generator)
    batches = [(0.12 * common + torch.randn(2048, generator=generator)).bfloat16() for _ in range(24)]
    return mantissa.conflict(_model(torch.bfloat16), batches=batches, loss=_along)


def _model(dtype: torch.dtype) -> nn.Module:
    return build(Architecture("llama", {}, {"hidden_size": 2048, "num_hidden_layers": 1}), dtype=dtype)


def _along(model: Any, batch: Tensor) -> Tensor:
    product: Tensor = model.model.layers[0].mlp.down_proj.weight[: len(batch), 0] @ batch
    return product
