"""Cosines, ratios and energies against the plain formulas, also where they are undefined; and the meter."""

import numpy as np
import pytest
import torch

from analyzers.exit.alignment import alignment, cosines, loss_bins, products
from analyzers.exit.cost import metered

GENERATOR = torch.Generator().manual_seed(4)
S, E, U = (torch.randn(40, 7, generator=GENERATOR, dtype=torch.float64) for _ in range(3))


def test_all_tokens_as_one_vector() -> None:
    found = alignment(products(S, E, U))
    each = torch.nn.functional.cosine_similarity(S, E)
    assert found.cosine is not None and found.cosine.mean == pytest.approx(float(each.mean()))
    assert found.cosine.p90 == pytest.approx(float(each.quantile(0.9)))
    assert found.total_cosine == pytest.approx(float(torch.nn.functional.cosine_similarity(S.flatten(), E.flatten(), 0)))
    assert found.norm_ratio == pytest.approx(float(S.norm() / E.norm()))
    # The scale by which the signal comes nearest, by least squares, and what that leaves.
    scale, residual, *_ = np.linalg.lstsq(S.flatten()[:, None].numpy(), E.flatten().numpy())
    assert found.best_scale == pytest.approx(float(scale[0]))
    assert found.total_cosine is not None and 1 - found.total_cosine**2 == pytest.approx(float(residual[0] / (E**2).sum()))
    along = torch.stack([(s @ u) / (u @ u) * u for s, u in zip(S, U, strict=True)])
    assert found.parallel_energy == pytest.approx(float((along**2).sum() / (S**2).sum()))
    assert found.tokens == 40 and found.zero == 0


def test_zeros_leave_no_nan() -> None:
    signal, exact = S.clone(), E.clone()
    signal[:5] = 0
    exact[3:8] = 0
    rows = products(signal, exact, torch.zeros_like(U))
    found = alignment(rows)
    assert (found.tokens, found.zero) == (35, 3) and found.parallel_energy == 0
    assert np.isnan(cosines(rows)[3:8]).all() and (cosines(rows)[:3] == 0).all()
    nothing = alignment(products(torch.zeros_like(S), torch.zeros_like(E), U))
    assert set(nothing.model_dump(exclude={"tokens", "zero"}).values()) == {None}


def test_bins_of_loss_are_equally_full_and_in_order() -> None:
    losses = np.arange(40.0)[::-1].copy()
    rows = products(S, E, U)
    found = loss_bins(rows, losses)
    assert [row.tokens for row in found] == [8] * 5 and found[0].low == 0 and found[-1].high == 39
    last = torch.nn.functional.cosine_similarity(S[:8], E[:8])
    assert found[-1].cosine is not None and found[-1].cosine.mean == pytest.approx(float(last.mean()))
    assert len(loss_bins(rows[:2], losses[:2])) == 2


def test_the_meter_sees_what_is_there_at_one_time() -> None:
    before = torch.ones(1000)
    with metered(torch.device("cpu")) as peak:
        for _ in range(5):
            both = before + 1, before + 2
            views = [both[0].view(10, 100), both[1][:10]]
            views[0].add_(1)
            del both, views
    assert peak() == 8000
