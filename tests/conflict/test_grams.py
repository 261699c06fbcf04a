"""Gram matrices in any chunks, against gradients that are written out."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from analyzers.conflict.grams import held_group, unit_group
from analyzers.language_models.unit_gradients import Block, UnitGradients

from .captures import FloatArray, capture, gradients, neuron_grams

FEW_BYTES = 3000
COUNTS = [(3, 5, 1, 4), (4, 4, 4), (0, 6, 2, 0), (9, 7)]


def grams(captured: UnitGradients, samples: int, **options: Any) -> dict[str, FloatArray]:
    """All chunks as one."""
    chunks = list(neuron_grams(unit_group(captured, samples), **options))
    assert [units.start for units, _ in chunks] == [0, *(units.stop for units, _ in chunks[:-1])]
    return {name: torch.cat([each[name] for _, each in chunks]).double().numpy() for name in chunks[0][1]}


def explicit(captured: UnitGradients, samples: int) -> dict[str, FloatArray]:
    return {name: np.einsum("snd,rnd->nsr", each, each) for name, each in gradients(captured, samples).items()}


@pytest.mark.parametrize("chunk_bytes", [1, 3000, 1 << 20])
@pytest.mark.parametrize("counts", COUNTS)
def test_all_chunks_give_the_products_of_the_gradients(counts: tuple[int, ...], chunk_bytes: int) -> None:
    captured = capture(counts, dtype=torch.float64)
    found = grams(captured, len(counts), chunk_bytes=chunk_bytes)
    for name, expected in explicit(captured, len(counts)).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-12, atol=1e-12)


def test_float32_keeps_every_cosine_within_1e_5() -> None:
    captured = capture((40, 25, 60, 33, 51), 64, 96)
    found, expected = grams(captured, 5, chunk_bytes=FEW_BYTES), explicit(captured, 5)
    for name in expected:
        for one, other in ((found[name], expected[name]), (sum(found.values()), sum(expected.values()))):
            exact, ours = (each / np.sqrt(np.einsum("ns,nr->nsr", *2 * (np.einsum("nss->ns", each),))) for each in (other, one))
            assert np.abs(ours - exact).max() < 1e-5
            assert (np.sign(ours) == np.sign(exact))[np.abs(exact) > 1e-3].all()


def test_the_order_of_the_samples_tokens_does_not_matter() -> None:
    counts, order = (3, 5, 1, 4), [2, 0, 3, 1]
    captured = capture(counts, dtype=torch.float64)
    starts = np.cumsum((0, *counts))
    tokens = torch.cat([torch.arange(starts[s], starts[s + 1]) for s in order])
    blocks = tuple(Block(b.name, b.left[tokens], b.right[tokens]) for b in captured.blocks)
    swapped = grams(replace(captured, blocks=blocks, sample=captured.sample[tokens]), 4)
    for name, gram in grams(captured, 4).items():
        np.testing.assert_allclose(swapped[name], gram, rtol=1e-12, atol=1e-12)


def test_gradients_held_in_memory_give_the_same() -> None:
    captured = capture(dtype=torch.float64)
    held = {name: torch.from_numpy(each).transpose(1, 2) for name, each in gradients(captured, 4).items()}
    whole = {name: torch.cat([each[name] for _, each in neuron_grams(held_group(0, None, held))]).numpy() for name in held}
    for name, gram in grams(captured, 4).items():
        np.testing.assert_allclose(whole[name], gram, rtol=1e-12, atol=1e-12)
