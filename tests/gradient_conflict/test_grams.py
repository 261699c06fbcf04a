"""Gram matrices in any chunks, against gradients that are written out."""

from typing import Any

import numpy as np
import pytest
import torch

from analyzers.gradient_conflict.grams import Group
from analyzers.gradient_conflict.weight_signs import WeightSums
from analyzers.language_models.layer_capture import Block, LayerCapture

from .captures import FloatArray, capture, gradients, group, neuron_grams

FEW_BYTES = 3000
COUNTS = [(3, 5, 1, 4), (4, 4, 4), (0, 6, 2, 0), (9, 7)]


def grams(captured: LayerCapture, samples: int, **options: Any) -> dict[str, FloatArray]:
    """All chunks as one."""
    chunks = list(neuron_grams(group(captured, samples), **options))
    assert [units.start for units, _ in chunks] == [0, *(units.stop for units, _ in chunks[:-1])]
    return {name: torch.cat([each[name] for _, each in chunks]).double().numpy() for name in chunks[0][1]}


def explicit(captured: LayerCapture, samples: int) -> dict[str, FloatArray]:
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_captures_are_multiplied_in_float32(dtype: torch.dtype) -> None:
    captured = capture(dtype=dtype)
    for name, expected in explicit(captured, 4).items():
        np.testing.assert_allclose(grams(captured, 4)[name], expected, rtol=1e-5, atol=1e-5)


def test_symmetric_and_positive_semidefinite() -> None:
    for gram in grams(capture((20, 30, 25), 32, 48), 3).values():
        np.testing.assert_allclose(gram, gram.swapaxes(1, 2), rtol=1e-5, atol=1e-5 * gram.max())
        assert (np.linalg.eigvalsh(gram) >= -1e-5 * gram.max()).all()


def test_the_order_of_the_samples_only_reorders_the_matrices() -> None:
    counts, order = (3, 5, 1, 4), [2, 0, 3, 1]
    captured = capture(counts, dtype=torch.float64)
    starts = np.cumsum((0, *counts))
    tokens = torch.cat([torch.arange(starts[s], starts[s + 1]) for s in order])
    given = captured.blocks[0].right[tokens]
    blocks = tuple(Block(b.name, b.left[tokens], given if b.name != "down" else b.right[tokens]) for b in captured.blocks)
    swapped = {
        name: torch.cat([each[name] for _, each in neuron_grams(Group(blocks, tuple(counts[s] for s in order)))]) for name in ("up", "down")
    }
    found = grams(captured, 4)
    for name, gram in swapped.items():
        np.testing.assert_allclose(gram, found[name][:, order][:, :, order], rtol=1e-12, atol=1e-12)


def test_leaving_out_a_block_takes_away_its_gram() -> None:
    captured = capture(dtype=torch.float64)
    every, without = grams(captured, 4), Group(captured.blocks[:2], (3, 5, 1, 4))
    found = torch.cat([sum(each.values(), torch.zeros(())) for _, each in neuron_grams(without)])
    np.testing.assert_allclose(found, every["gate"] + every["up"] + every["down"] - every["down"], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_single_weights_are_added_on_the_way(dtype: torch.dtype) -> None:
    captured = capture(dtype=dtype)
    each, found = group(captured, 4), WeightSums()
    for _ in neuron_grams(each, chunk_bytes=FEW_BYTES, weights=found):
        pass
    expected = WeightSums()
    for gradient in gradients(captured, 4).values():
        expected.add(torch.from_numpy(gradient.copy()))
    one, other = found.rates(4), expected.rates(4)
    assert (one.weights, one.counted) == (other.weights, other.counted)
    for name, value in one:
        assert value == pytest.approx(getattr(other, name), rel=0.035 if name.startswith("snr_p") else 1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_columns_of_fused_projections_are_taken_as_they_are(dtype: torch.dtype) -> None:
    plain = capture(dtype=dtype)
    fused = torch.stack([plain.blocks[0].left, plain.blocks[1].left], 2)
    given = plain.blocks[0].right
    blocks = (Block("gate", fused[..., 0], given), Block("up", fused[..., 1], given), plain.blocks[2])
    for (_, one), (_, other) in zip(neuron_grams(Group(blocks, (3, 5, 1, 4))), neuron_grams(group(plain, 4)), strict=True):
        for name in one:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-12)


def test_a_chunk_stays_within_its_bytes() -> None:
    each = group(capture((30, 30), 500, 64, dtype=torch.float64), 2)
    largest = max(gram.shape[0] for _, grams in neuron_grams(each, chunk_bytes=1 << 17) for gram in grams.values())
    assert 1 < largest * 2 * 64 * 8 * 2 <= 1 << 17
