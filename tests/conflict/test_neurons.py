"""The table of neurons: against loops over float64 gradients, in any chunks; and what the report lists of it."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from analyzers.conflict.grams import UnitGroup
from analyzers.conflict.neurons import NeuronTable
from analyzers.conflict.sample_pairs import Pairs, packed
from analyzers.core import limits

from .captures import FloatArray

SAMPLES = 6


def gradients(units: int, seed: int = 0) -> FloatArray:
    """(n, S, d), some of them zero, and units without any."""
    random = np.random.default_rng(seed)
    found: FloatArray = random.standard_normal((units, SAMPLES, 9)) * random.lognormal(size=(units, SAMPLES, 1))
    found[random.random((units, SAMPLES)) < 0.15] = 0
    found[::17] = 0
    return found


def table_of(found: FloatArray, chunks: int, gamma: float = 0.0) -> NeuronTable:
    """With mean activations 0, 1, 2 ..."""
    table = NeuronTable(SAMPLES, gamma)
    tokens = torch.arange(1, SAMPLES + 1)
    table.begin(UnitGroup(3, 1, len(found), {}, 0, 1, True, torch.arange(len(found)) * tokens[:, None], tokens))
    gram = torch.from_numpy(found @ found.swapaxes(1, 2))
    for start in range(0, len(found), chunks):
        table.add(slice(start, min(start + chunks, len(found))), Pairs(packed(gram[start : start + chunks]), SAMPLES))
    return table


def slowly(found: FloatArray, gamma: float) -> list[dict[str, Any]]:
    """A row for each unit, pair by pair."""
    rows = []
    for neuron, each in enumerate(found):
        norms = [float(np.sqrt(g @ g)) for g in each]
        pairs = [(i, j) for i, j in combinations(range(SAMPLES), 2) if min(norms[i], norms[j]) > 0]
        cosines = [float(each[i] @ each[j]) / (norms[i] * norms[j]) for i, j in pairs]
        similar = [2 * norms[i] * norms[j] / (norms[i] ** 2 + norms[j] ** 2) for i, j in pairs]
        squares = [norm**2 for norm in norms]
        total = sum(squares)
        row: dict[str, Any] = {"neuron": neuron, "pairs": len(pairs)}
        row |= {"conflict_rate": sum(c < gamma for c in cosines) / len(pairs)} if pairs else {"conflict_rate": None}
        row |= {"mean_cosine": sum(cosines) / len(pairs) if pairs else None}
        row |= {"magnitude_similarity": sum(similar) / len(pairs) if pairs else None}
        row |= {"top_sample": squares.index(max(squares)) if total else None, "top_share": max(squares) / total if total else None}
        row |= {"effective_samples": total**2 / sum(square**2 for square in squares) if total else None}
        rows.append(row)
    return rows


@pytest.mark.parametrize("gamma", [0.0, 0.2, -0.1])
@pytest.mark.parametrize("chunks", [1, 7, 500])
def test_every_row_is_what_loops_say(gamma: float, chunks: int) -> None:
    found = gradients(100)
    rows = [row.model_dump() for row in table_of(found, chunks, gamma).rows()]
    for row, expected in zip(rows, slowly(found, gamma), strict=True):
        assert (row["layer"], row["expert"], row["mean_activation"]) == (3, 1, row["neuron"])
        for name, value in expected.items():
            assert row[name] is None if value is None else row[name] == pytest.approx(value, rel=1e-6, abs=1e-6), name


@pytest.mark.parametrize("chunks", [1, 7, 500])
def test_the_report_lists_the_most_and_the_least_conflicted(chunks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REPORT_NEURONS", 12)
    found = gradients(100)
    listed = table_of(found, chunks).rows(listed=True)
    ranked = [row for row in slowly(found, 0) if row["pairs"] >= SAMPLES * (SAMPLES - 1) / 4]
    assert 24 < len(ranked) < 94
    most = sorted(ranked, key=lambda row: (-row["conflict_rate"], row["mean_cosine"]))
    assert [row.neuron for row in listed] == [row["neuron"] for row in (*most[:12], *most[-12:])]
    assert [row.rank for row in listed] == [*range(1, 13), *range(len(ranked) - 11, len(ranked) + 1)]
