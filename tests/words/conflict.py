"""Reports of gradient conflict: text through a built-in sample, and batches of a caller whose gradients are known."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import mantissa
from analyzers.checkpoints import Access
from analyzers.core.errors import MantissaError
from analyzers.core.report import Report
from analyzers.gradient_conflict import ConflictReport, ConflictRequest, analyze
from analyzers.language_models.words import WORDS as REMARKS
from tests.gradient_conflict.reports import PAIRS
from tests.language_models.architectures import ARCHITECTURES, build
from tests.language_models.repositories import WEIGHTS, files, written
from tests.words.hostile import HOSTILE


def reports() -> dict[str, Report | MantissaError]:
    """Make the reports; the names say what is special about each."""
    with torch.random.fork_rng([]):
        full = _analysed()
        return {
            "eight samples": full,
            "identical samples": _analysed(pairs=PAIRS[:1] * 5),
            "three samples, in float16": _analysed(pairs=PAIRS[:3], samples=3, dtype="float16"),
            "attention rows of a hybrid model, gamma 0.1": _hybrid(),
            "top-k in all layers": _analysed(ffn="topk", topk_layers="all"),
            "top-k that keeps everything": _analysed(ffn="topk", topk=1.0),
            "top-k, strong conflict only": _analysed(pairs=(), samples=24, ffn="topk", topk_layers="all", gamma=-0.3),
            "batches of the caller that conflict": _of_batches(torch.eye(8) - 1 / 8),
            "batches of the caller, one of them large": _of_batches([torch.full((8,), scale) for scale in (50.0, *[1.0] * 7)]),
            "batches of the caller without gradients": _of_batches(torch.zeros(8, 8)),
            "batches of the caller in bfloat16": _of_noise(),
            "hostile names": hostile(full),
            "error": _error(),
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
    pairs = asked.pop("pairs", PAIRS)
    asked = {"pairs": pairs, "samples": len(pairs), "weights": False} | asked
    return _last(analyze(ConflictRequest(model="sample:tiny-bf16", **asked)))


def _last(items: Iterator[Any]) -> ConflictReport:
    *_, report = items
    assert isinstance(report, ConflictReport)
    return report


def _hybrid() -> ConflictReport:
    """Measure the attention of a model of which one layer of two has a convolution instead."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(written(Path(folder) / "hybrid", files(without=(WEIGHTS,))))
        built = build(ARCHITECTURES["lfm2"], "sdpa", torch.float32, vocab_size=512, layer_types=["conv", "full_attention"])
        built.save_pretrained(model)  # type: ignore[operator]
        request = ConflictRequest(model=str(model), pairs=PAIRS, samples=len(PAIRS), unit="attention", gamma=0.1)
        report = _last(analyze(request, Access(local=True)))
    return report.model_copy(update={"checkpoint": report.checkpoint.model_copy(update={"ref": "./hybrid"})})


def _of_batches(directions: "Sequence[Tensor] | Tensor") -> ConflictReport:
    """Measure a network whose loss is the output along a direction of each batch."""
    generator = torch.Generator().manual_seed(1)
    given = torch.randn(1, 8, generator=generator)
    return mantissa.conflict(_network(8, 32, nn.GELU()), batches=[(given, each) for each in directions], loss=_along)


def _of_noise() -> ConflictReport:
    """Measure gradients with so weak a common part that bfloat16 cannot tell the sign of most cosines."""
    generator = torch.Generator().manual_seed(1)
    common, given = torch.randn(1, 2048, generator=generator), torch.full((1, 2048), 1e-3).bfloat16()
    batches = [(given, (0.12 * common + torch.randn(1, 2048, generator=generator)).bfloat16()) for _ in range(24)]
    return mantissa.conflict(_network(2048, 8, nn.Sigmoid()).bfloat16(), batches=batches, loss=_along)


def _network(width: int, hidden: int, activation: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, hidden), activation, nn.Linear(hidden, width))


def _along(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    output: Tensor = model(batch[0])
    return (output * batch[1]).sum()


def _error() -> MantissaError:
    try:
        _analysed(ffn="topk", topk_layers="2-9")
    except MantissaError as error:
        return error
    raise AssertionError("a layer that the model lacks was measured")
