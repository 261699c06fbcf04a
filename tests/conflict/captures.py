"""Units with known gradients, and slow references from those gradients in float64."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from analyzers.conflict.grams import UnitGroup
from analyzers.core import limits
from analyzers.language_models.unit_gradients import Block, UnitGradients

FloatArray = npt.NDArray[np.float64]


def capture(
    counts: tuple[int, ...] = (3, 5, 1, 4),
    units: int = 7,
    width: int = 6,
    *,
    layer: int = 0,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> UnitGradients:
    """Draw random gradients: gate and up with one input, down with another. counts: tokens with a gradient, by sample."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype)

    tokens = sum(counts)
    given, left = normal(tokens, width), [normal(tokens, units) for _ in range(3)]
    blocks = (Block("gate", left[0], given), Block("up", left[1], given), Block("down", left[2], normal(tokens, width)))
    sample = torch.repeat_interleave(torch.tensor(counts))
    activity = torch.stack([part.abs().sum(0).float() for part in torch.split(left[2], list(counts))])
    return UnitGradients(layer, None, sample, blocks, activity, torch.tensor(counts))


def times(captured: UnitGradients, factor: float) -> UnitGradients:
    """Return the gradients of a loss that is ``factor`` times as large."""
    gate, up, down = captured.blocks
    blocks = (*(Block(each.name, each.left * factor, each.right) for each in (gate, up)), Block("down", down.left, down.right * factor))
    return replace(captured, blocks=blocks)


def gradients(captured: UnitGradients, samples: int) -> dict[str, FloatArray]:
    """Compute the gradient of each unit in each sample token by token: block -> (S, F, d)."""
    found = {}
    for block in captured.blocks:
        left, right = block.left.double().numpy(), block.right.double().numpy()
        each = np.zeros((samples, left.shape[1], right.shape[1]))
        for token, sample in enumerate(captured.sample.tolist()):
            each[sample] += np.outer(left[token], right[token])
        found[block.name] = each
    return found


def together(each: dict[str, FloatArray]) -> FloatArray:
    """Concatenate the gradients of all blocks: (S, F, d of all blocks)."""
    return np.concatenate(list(each.values()), axis=2)


def cosine(first: FloatArray, second: FloatArray) -> float:
    """Return the cosine of two vectors; NaN if one of them is zero."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(first @ second / (np.linalg.norm(first) * np.linalg.norm(second)))


def neuron_grams(group: UnitGroup, *, chunk_bytes: int = limits.GRAM_CHUNK_BYTES) -> Iterator[tuple[slice, dict[str, Tensor]]]:
    """Yield the units of each chunk and the Gram matrices of their gradients without their scale."""
    for units in group.chunks(chunk_bytes):
        found = {name: of_units(units) for name, of_units in group.gradients.items()}
        yield units, {name: each @ each.transpose(1, 2) * 4.0**-group.exponent for name, each in found.items()}
