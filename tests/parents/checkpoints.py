"""Makes checkpoints of known descent: models, and derivatives of one, two or three of them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from analyzers.checkpoints import Access
from analyzers.comparison.parents import ParentsReport, ParentsRequest, analyze
from analyzers.core.request import Progress
from tests.dtype.checkpoints import write

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
Tensors = dict[str, torch.Tensor]


def model(seed: int = 0, layers: int = 4, width: int = 128, dtype: torch.dtype = BF16, vocabulary: int = 512) -> Tensors:
    """Make a small decoder with random matrices of different scales, and norms that are similar in all models."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int, scale: float) -> torch.Tensor:
        return torch.from_numpy((rng.standard_normal(shape) * scale).astype(np.float32))

    tensors = {"model.embed_tokens.weight": normal(vocabulary, width, scale=0.02)}
    for layer in range(layers):
        start = f"model.layers.{layer}."
        tensors |= {
            f"{start}self_attn.q_proj.weight": normal(width, width, scale=0.04),
            f"{start}self_attn.o_proj.weight": normal(width, width, scale=0.03),
            f"{start}mlp.up_proj.weight": normal(2 * width, width, scale=0.02),
            f"{start}mlp.down_proj.weight": normal(width, 2 * width, scale=0.015),
            f"{start}input_layernorm.weight": 1 + normal(width, scale=0.01),
        }
    tensors["model.norm.weight"] = 1 + normal(width, scale=0.01)
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}


def each(function: Callable[..., torch.Tensor], *models: Mapping[str, torch.Tensor], dtype: torch.dtype = BF16) -> Tensors:
    """Apply ``function`` to each parameter of ``models`` in fp32, and save in ``dtype``."""
    return {name: function(*(each[name].to(F32) for each in models)).to(dtype) for name in models[0]}


def tuned(base: Tensors, norm: float, seed: int = 1, dtype: torch.dtype = BF16) -> Tensors:
    """Move each tensor in a random direction by ``norm`` times its norm."""
    generator = torch.Generator().manual_seed(seed)

    def move(x: torch.Tensor) -> torch.Tensor:
        step = torch.randn(x.shape, generator=generator)
        return torch.add(x, step * (norm * x.norm() / step.norm()))

    return each(move, base, dtype=dtype)


def merged(weights: Sequence[float], *models: Tensors, dtype: torch.dtype = BF16) -> Tensors:
    """Merge linearly in fp32."""
    return each(lambda *xs: sum((w * x for w, x in zip(weights, xs, strict=True)), torch.zeros(())), *models, dtype=dtype)


def stacked(*parts: tuple[Tensors, int, int]) -> Tensors:
    """Stack layers first to last (exclusive) of each model; everything else comes from the first model."""
    tensors = {name: tensor for name, tensor in parts[0][0].items() if ".layers." not in name}
    number = 0
    for source, first, last in parts:
        for layer in range(first, last):
            start = f"model.layers.{layer}."
            tensors |= {
                f"model.layers.{number}.{name.removeprefix(start)}": each.clone() for name, each in source.items() if name.startswith(start)
            }
            number += 1
    return tensors


def int8(tensors: Tensors) -> Tensors:
    """Quantize symmetrically per row to int8, and dequantize."""

    def back(x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax(dim=-1, keepdim=True) / 127
        return torch.round(x / scale) * scale

    return {name: back(x.to(F32)).to(BF16) if x.dim() > 1 else x for name, x in tensors.items()}


def fp8(tensors: Tensors) -> Tensors:
    """Quantize to E4M3 with a scale per tensor, and dequantize."""

    def back(x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax() / 448
        return (x / scale).to(torch.float8_e4m3fn).to(F32) * scale

    return {name: back(x.to(F32)).to(BF16) if x.dim() > 1 else x for name, x in tensors.items()}


def permuted(tensors: Tensors, seed: int = 5) -> Tensors:
    """Permute the neurons of each MLP, which leaves the function unchanged."""
    generator = torch.Generator().manual_seed(seed)
    found = dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith("up_proj.weight"):
            order = torch.randperm(tensor.shape[0], generator=generator)
            found[name] = tensor[order]
            down = name.replace("up_proj", "down_proj")
            found[down] = tensors[down][:, order]
    return found


class Folder:
    """A folder of checkpoints, with the parents of one of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, tensors: Tensors, config: dict[str, Any] | None = None) -> str:
        """Write a checkpoint, and return its reference."""
        return str(write(self.folder / name, tensors, config))

    def parents(self, child: Tensors, *candidates: Tensors, **options: Any) -> ParentsReport:
        """Return the report on ``child``, with the candidates in folders named c0, c1, ..."""
        names = [self.write(f"c{number}", tensors) for number, tensors in enumerate(candidates)]
        return asked(self.write("x", child), *names, **options)


def asked(model: str, *candidates: str, **options: Any) -> ParentsReport:
    """Return the report, and check that progress grows, that the report is the last item, and that its JSON can be read back."""
    request = ParentsRequest(model=model, candidates=candidates, **options)
    *steps, report = list(analyze(request, Access(local=True)))
    assert isinstance(report, ParentsReport)
    done = [step.done for step in steps if isinstance(step, Progress)]
    assert len(done) == len(steps) and done == sorted(done) and report.bytes_read == done[-1]
    assert ParentsReport.model_validate_json(report.model_dump_json()).model_dump() == report.model_dump()
    return report
