"""The whole gradient, dominance, weights, batches and deciles, against the same taken of written-out gradients."""

from itertools import combinations

import numpy as np
import pytest
import torch

from analyzers.conflict.activity_deciles import Deciles
from analyzers.conflict.grams import unit_group
from analyzers.conflict.measure import ALL, Collector, Settings, measurement
from analyzers.conflict.random_batches import DRAWS, BatchSums, partitions
from analyzers.conflict.rates import dominance, noise_bounds, whole
from analyzers.conflict.rows import WeightRates
from analyzers.conflict.sample_pairs import Pairs, Thresholds, packed
from analyzers.conflict.weight_signs import WeightSums
from analyzers.core.errors import InvalidCheckpoint

from .captures import FloatArray, capture, cosine, gradients, times, together

SAMPLES = 9


@pytest.fixture
def vectors() -> FloatArray:
    """(samples, width): a signal, noise, and one sample that is three times as large."""
    random = np.random.default_rng(5)
    found = random.standard_normal((SAMPLES, 12)) + 0.4 * random.standard_normal(12)
    found[4] *= 3
    return np.asarray(found)


def test_the_whole_gradient(vectors: FloatArray) -> None:
    found = whole(vectors @ vectors.T, Thresholds(0.0, 0.05))
    pairs = [cosine(vectors[i], vectors[j]) for i, j in combinations(range(SAMPLES), 2)]
    squares, total = np.square(vectors).sum(1), np.square(vectors.sum(0)).sum()
    assert found.conflict_rate == pytest.approx(np.mean(np.array(pairs) < 0))
    assert found.mean_cosine == pytest.approx(np.mean(pairs))
    dominating = dominance(vectors @ vectors.T, np.full(SAMPLES, 1 / SAMPLES))
    assert dominating.top_sample == 4 and dominating.top_share == pytest.approx(squares.max() / squares.sum())
    assert found.effective_samples == dominating.effective_samples == pytest.approx(squares.sum() ** 2 / np.square(squares).sum())
    assert dominating.diversity == pytest.approx(squares.sum() / total)
    covariance = np.cov(vectors.T)
    signal = np.square(vectors.mean(0)).sum() - np.trace(covariance) / SAMPLES
    assert found.noise_scale == pytest.approx(np.trace(covariance) / signal)


@pytest.mark.parametrize("samples", [8, 20])
def test_the_interval_of_the_noise_scale_covers_it(samples: int) -> None:
    random = np.random.default_rng(samples)
    signal, covered = random.standard_normal(300) * 0.4, 0
    true = 300 / np.square(signal).sum()
    for _ in range(200):
        gradient = signal + random.standard_normal((samples, 300))
        low, high = noise_bounds(gradient @ gradient.T)
        covered += low is not None and low <= true and (high is None or true <= high)
    assert covered >= 0.9 * 200
    assert noise_bounds(np.eye(3)) == (None, None)  # too few
    low, high = noise_bounds(np.eye(samples))
    assert high is None  # without a common signal nothing bounds it


def test_dominance_of_samples(vectors: FloatArray) -> None:
    mean = vectors.mean(0)
    for row in dominance(vectors @ vectors.T, np.full(SAMPLES, 1 / SAMPLES)).samples:
        others = np.delete(vectors, row.sample, 0).mean(0)
        assert row.norm == pytest.approx(np.linalg.norm(vectors[row.sample]))
        assert row.leave_one_out_cosine == pytest.approx(cosine(mean, others))
        assert row.cosine_to_rest == pytest.approx(cosine(vectors[row.sample], others))
        assert row.neurons_led == pytest.approx(1 / SAMPLES)


def weigh(gradient: FloatArray, chunks: int = 1) -> WeightRates:
    sums = WeightSums()
    for exponent, part in enumerate(np.array_split(gradient, chunks, axis=1)):
        sums.add(torch.from_numpy(part * 2.0**exponent), exponent)
    return sums.rates(len(gradient))


@pytest.mark.parametrize("zeros", [0.0, 0.5])
def test_weight_by_weight(zeros: float) -> None:
    random = np.random.default_rng(2)
    gradient = random.standard_normal((7, 30, 20)) + 0.5 * random.standard_normal((30, 20))
    gradient[random.random(gradient.shape) < zeros] = 0
    positive, negative = (gradient > 0).sum(0), (gradient < 0).sum(0)
    counted = positive + negative >= 2
    pairs = ((positive + negative) * (positive + negative - 1) / 2)[counted]
    moving = (positive + negative) > 0
    ratio = np.square(gradient.mean(0))[moving] / gradient.var(0, ddof=1)[moving]
    found = weigh(gradient, 3)
    assert (found.weights, found.counted) == (600, int(counted.sum()))
    assert found.conflict == pytest.approx(((positive * negative)[counted] / pairs).mean())
    assert found.agreement == pytest.approx((np.abs(positive - negative)[counted] / (positive + negative)[counted]).mean())
    assert found.snr == pytest.approx(np.square(gradient.mean(0)).sum() / gradient.var(0, ddof=1).sum())
    for share, value in ((10, found.snr_p10), (50, found.snr_p50), (90, found.snr_p90)):
        assert value == pytest.approx(np.percentile(ratio, share, method="inverted_cdf"), rel=0.03)


def test_batches_are_averages_over_disjoint_samples(vectors: FloatArray) -> None:
    draws = partitions(tuple(range(SAMPLES)), seed=1)
    assert {size: len(members) for size, members in draws.items()} == {2: DRAWS, 4: DRAWS}
    units = np.stack([vectors, vectors[::-1] * 2, np.zeros_like(vectors)])
    sums = BatchSums(draws, gamma=0.1)
    for chunk in (units[:1], units[1:]):
        sums.add(torch.from_numpy(np.einsum("nsd,nrd->nsr", chunk, chunk)))
    for row in sums.rows(vectors @ vectors.T):
        found: list[float] = []
        of_whole: list[float] = []
        for draw in draws[row.batch_size]:
            members = list(draw)
            assert [len(each) for each in members] == [row.batch_size] * row.batches
            assert len(set(np.concatenate(members))) == row.batches * row.batch_size
            for into, each in ((found, units[0]), (found, units[1]), (of_whole, vectors)):
                means = [each[list(samples)].mean(0) for samples in members]
                into += [cosine(g, h) for g, h in combinations(means, 2)]
        assert row.conflict_rate == pytest.approx(np.mean(np.array(found) < 0.1))
        assert row.mean_cosine == pytest.approx(np.mean(found))
        assert row.whole_conflict_rate == pytest.approx(np.mean(np.array(of_whole) < 0.1))
        assert row.whole_mean_cosine == pytest.approx(np.mean(of_whole))


@pytest.mark.parametrize("gamma", [0.0, 0.3])
def test_deciles_rank_on_one_half_and_measure_on_the_other(gamma: float) -> None:
    random = np.random.default_rng(8)
    units, order = 30, (3, 8, 1, 0, 6, 2, 7, 5, 4)
    gradient = random.standard_normal((units, SAMPLES, 6))
    gradient[5, 4] = 0
    activity = torch.from_numpy(random.random((SAMPLES, units))).float()
    deciles = Deciles(order, gamma)
    deciles.begin(activity, torch.full((SAMPLES,), 10))
    gram = torch.from_numpy(np.einsum("nsd,nrd->nsr", gradient, gradient))
    for chunk in (slice(0, 11), slice(11, units)):
        deciles.add(chunk, Pairs(packed(gram[chunk]), SAMPLES))
    ranking, measured = list(order[:4]), list(order[4:])
    ranked = np.argsort(activity.double().numpy()[ranking].sum(0), kind="stable")
    for number, row in enumerate(deciles.rows()):
        neurons = ranked[3 * number : 3 * number + 3]
        pairs = [(gradient[n, i], gradient[n, j]) for n in neurons for i, j in combinations(measured, 2)]
        found = np.array([cosine(g, h) for g, h in pairs])
        norms = np.array([(np.linalg.norm(g), np.linalg.norm(h)) for g, h in pairs])[np.isfinite(found)]
        assert (row.decile, row.neurons, row.pairs) == (number + 1, 3, len(norms))
        assert row.conflict_rate == pytest.approx(np.mean(found[np.isfinite(found)] < gamma))
        assert row.magnitude_similarity == pytest.approx((2 * norms.prod(1) / np.square(norms).sum(1)).mean())
        assert row.mean_activation == pytest.approx(activity.numpy()[ranking][:, neurons].sum() / (3 * 4 * 10), rel=1e-5)
        assert row.interval is not None and row.interval.low <= row.conflict_rate <= row.interval.high  # type: ignore[operator]


def collected(settings: Settings, factor: float = 1.0) -> Collector:
    found = Collector(4, settings)
    for layer in (2, 1):
        found.add(unit_group(times(capture(layer=layer, seed=layer), factor), 4))
    found.add(unit_group(times(capture(layer=1, seed=9), factor), 4))  # a second expert of that layer
    return found


def test_layers_and_experts_add_up() -> None:
    settings = Settings(Thresholds(0.0, 1e-3), (0, 1, 2, 3))
    found = collected(settings)
    report = measurement({"original": found}, settings)
    assert [(row.layer, row.neurons) for row in report.layers] == [(1, 14), (2, 7)]
    assert report.model.neurons == 21
    each = [gradients(capture(seed=seed), 4) for seed in (1, 9)]
    units = np.concatenate([together(one) for one in each], axis=1)
    gram = np.einsum("snd,rnd->sr", units, units)
    np.testing.assert_allclose(found.layers[1].sums[ALL].gram, gram, rtol=1e-5)
    flat = units.reshape(4, -1)
    assert report.layers[0].whole.mean_cosine == pytest.approx(
        np.mean([cosine(flat[i], flat[j]) for i, j in combinations(range(4), 2)]), abs=1e-5
    )
    for name, rates in report.layers[0].blocks.items():
        block = np.concatenate([one[name] for one in each], axis=1)
        rate = np.mean([cosine(block[i, n], block[j, n]) < 0 for n in range(14) for i, j in combinations(range(4), 2)])
        assert rates.conflict_rate == pytest.approx(rate)
    squares = np.square(units).sum(2)
    leading = np.bincount(squares.argmax(0), minlength=4)
    concentration = found.neurons.concentration(1)
    np.testing.assert_allclose(concentration.leading, leading / 14)
    assert concentration.top_share == pytest.approx((squares.max(0) / squares.sum(0)).mean(), rel=1e-5)


@pytest.mark.parametrize("power", [-90, -55, 60, 90])
@pytest.mark.parametrize("weights", [True, False])
def test_the_size_of_the_loss_changes_no_rate(power: int, weights: bool) -> None:
    settings = Settings(Thresholds(0.0, 1e-3), (0, 1, 2, 3), weights=weights)
    expected, found = (collected(settings, factor) for factor in (1.0, 2.0**power))
    said, other = (measurement({"original": each}, settings).model_dump() for each in (expected, found))
    for row, same in zip(other["dominance"]["samples"], said["dominance"]["samples"], strict=True):
        assert row["norm"] == same["norm"] * 2.0**power > 0
        row["norm"] = same["norm"]
    assert other == said


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_gradients_that_are_not_finite_are_refused(value: float) -> None:
    captured = capture(layer=5)
    captured.blocks[1].left[2, 3] = value
    with pytest.raises(InvalidCheckpoint, match="gradients of layer 5 are not finite when it runs in float32: its weights"):
        unit_group(captured, 4)
