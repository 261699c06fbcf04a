"""The table of neurons: against loops over float64 gradients, in any chunks; what the report lists of it, and what the command writes."""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

from analyzers import limits
from analyzers.__main__ import main
from analyzers.checkpoints import Access
from analyzers.gradient_conflict import ConflictReport, ConflictRequest, analyze
from analyzers.gradient_conflict.neurons import SHOWN, NeuronTable
from analyzers.gradient_conflict.sample_pairs import Pairs, packed
from analyzers.gradient_conflict.summaries import NeuronRow
from tests.components.conflict_reports import PAIRS, conflict_report

from .captures import FloatArray
from .test_analyze import explicit

SAMPLES = 6


def gradients(units: int, seed: int = 0) -> FloatArray:
    """(n, S, d), some of them zero, and units without any."""
    random = np.random.default_rng(seed)
    found: FloatArray = random.standard_normal((units, SAMPLES, 9)) * random.lognormal(size=(units, SAMPLES, 1))
    found[random.random((units, SAMPLES)) < 0.15] = 0
    found[::17] = 0
    return found


def table_of(found: FloatArray, chunks: int, gamma: float = 0.0, floor: float = 0.0) -> NeuronTable:
    """With mean activations 0, 1, 2 ..."""
    table = NeuronTable(SAMPLES, gamma)
    tokens = torch.arange(1, SAMPLES + 1)
    table.begin(3, 1, None, torch.arange(len(found)) * tokens[:, None], tokens)
    gram = torch.from_numpy(found @ found.swapaxes(1, 2))
    for start in range(0, len(found), chunks):
        table.add(slice(start, min(start + chunks, len(found))), Pairs(packed(gram[start : start + chunks]), SAMPLES, floor))
    return table


def slowly(found: FloatArray, gamma: float, floor: float) -> list[dict[str, Any]]:
    """A row for each unit, pair by pair."""
    rows = []
    for neuron, each in enumerate(found):
        norms = [float(np.sqrt(g @ g)) for g in each]
        pairs = [(i, j) for i, j in combinations(range(SAMPLES), 2) if norms[i] > 0 < norms[j] and min(norms[i], norms[j]) >= floor]
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


@pytest.mark.parametrize(("gamma", "floor"), [(0.0, 0.0), (0.2, 0.0), (-0.1, 1.0)])
@pytest.mark.parametrize("chunks", [1, 7, 500])
def test_every_row_is_what_loops_say(gamma: float, floor: float, chunks: int) -> None:
    found = gradients(100)
    rows = table_of(found, chunks, gamma, floor).frame().to_dict("records")
    for row, expected in zip(rows, slowly(found, gamma, floor), strict=True):
        assert (row["layer"], row["expert"], row["mean_activation"]) == (3, 1, row["neuron"])
        for name, value in expected.items():
            assert pandas.isna(row[name]) if value is None else row[name] == pytest.approx(value, rel=1e-6, abs=1e-6), name


@pytest.mark.parametrize("chunks", [1, 7, 500])
def test_the_report_lists_the_most_and_the_least_conflicted_with_their_cosines(chunks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REPORT_NEURONS", 12)
    found = gradients(100)
    summary = table_of(found, chunks).summary()
    ranked = [row for row in slowly(found, 0, 0) if row["pairs"] >= SAMPLES * (SAMPLES - 1) / 4]
    assert (summary.total, summary.ranked) == (100, len(ranked)) and len(ranked) < 94
    most = sorted(ranked, key=lambda row: (-row["conflict_rate"], row["mean_cosine"]))
    least = sorted(ranked, key=lambda row: (row["conflict_rate"], -row["mean_cosine"]))
    assert [row.neuron for row in summary.most] == [row["neuron"] for row in most[:12]]
    assert [row.neuron for row in summary.least] == [row["neuron"] for row in least[:12]]
    expected = [row["neuron"] for row in (*most[:SHOWN], *least[:SHOWN])]
    assert [each.neuron for each in summary.cosines] == expected
    for each in summary.cosines:
        norms = np.linalg.norm(found[each.neuron], axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            cosines = found[each.neuron] @ found[each.neuron].T / np.outer(norms, norms)
        np.testing.assert_allclose(np.array(each.values, dtype=float), cosines, atol=5.1e-5)


def test_few_units_are_listed_once_and_units_with_few_pairs_not_at_all() -> None:
    few = table_of(gradients(7), 7).summary()
    listed = [row.neuron for row in (*few.most, *few.least)]
    assert sorted(listed) == sorted(set(listed)) and len(listed) == few.ranked <= 6
    assert sorted(each.neuron for each in few.cosines) == sorted(listed)
    alone = np.zeros((3, SAMPLES, 4))
    alone[:, 0] = 1
    none = table_of(alone, 3).summary()
    assert (none.total, none.ranked, none.most, none.least, none.cosines) == (3, 0, (), (), ())


def test_many_samples_have_fewer_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "NEURON_COSINES", 5 * SAMPLES**2)
    found = table_of(gradients(50), 9).summary()
    assert [each.neuron for each in found.cosines] == [row.neuron for row in (*found.most[:2], *found.least[:2])]


def test_a_report_has_the_neurons_of_gradients_in_float64() -> None:
    found = conflict_report()
    blocks = explicit(found)
    gradient = np.concatenate(list(blocks.values()), axis=3)  # (layers, S, F, d)
    assert found.neurons is not None and found.neurons.total == 640
    samples = len(PAIRS)
    for row in (*found.neurons.most[:20], *found.neurons.least[:20]):
        each = gradient[row.layer, :, row.neuron]
        norms = np.linalg.norm(each, axis=1)
        cosines = (each @ each.T / np.outer(norms, norms))[np.tril_indices(samples, -1)]
        assert row.conflict_rate == pytest.approx((cosines < 0).mean(), abs=1.01 / len(cosines))  # a cosine near 0 may turn
        assert row.mean_cosine == pytest.approx(cosines.mean(), abs=1e-5)
        shares = norms**2 / (norms**2).sum()
        assert row.top_sample == shares.argmax() and row.top_share == pytest.approx(shares.max(), rel=1e-4)
        assert row.effective_samples == pytest.approx(1 / (shares**2).sum(), rel=1e-4)
    rates = [row.conflict_rate or 0 for row in found.neurons.most]
    assert rates == sorted(rates, reverse=True) and rates[0] > (found.model.conflict_rate or 0) > (
        found.neurons.least[0].conflict_rate or 0
    )


def test_mean_activation_is_that_of_all_tokens_but_the_last() -> None:
    found = conflict_report()
    assert found.neurons is not None
    deciles = sum((row.mean_activation or 0) * row.neurons for row in found.deciles) / sum(row.neurons for row in found.deciles)
    table = full(found.request)
    assert len(table) == 640
    assert table["mean_activation"].mean() == pytest.approx(deciles, rel=0.2)  # of one half of the samples
    for row in found.neurons.most[:5]:
        same = table[(table["layer"] == row.layer) & (table["neuron"] == row.neuron)]
        assert same["mean_activation"].item() == pytest.approx(row.mean_activation, rel=1e-6)


def full(request: ConflictRequest) -> pandas.DataFrame:
    """The table with every neuron, which only the command line's report holds."""
    *_, last = analyze(request, Access(local=True))
    assert isinstance(last, ConflictReport)
    return last.full_tables()["neurons"]


def test_the_whole_table_averages_to_the_model() -> None:
    """Rates of neurons, weighed by their pairs, are the model's."""
    found = conflict_report()
    table = full(found.request)
    weights = table["pairs"] / table["pairs"].sum()
    assert (table["conflict_rate"] * weights).sum() == pytest.approx(found.model.conflict_rate, abs=1e-6)
    assert (table["mean_cosine"] * weights).sum() == pytest.approx(found.model.mean_cosine, abs=1e-6)
    assert (table["magnitude_similarity"] * weights).sum() == pytest.approx(found.model.magnitude_similarity, abs=1e-6)
    assert table["top_share"].mean() == pytest.approx(found.dominance.neuron_top_share, abs=1e-6)
    assert table["effective_samples"].mean() == pytest.approx(found.dominance.neuron_effective_samples, rel=1e-6)
    assert list(table.columns) == ["ffn", *(name for name in NeuronRow.model_fields if name not in ("expert", "block"))]
    assert len(found.tables()["neurons"]) == 400 == len(found.full_tables()["neurons"])  # the page's has not kept it


def test_rows_of_attention_projections_are_named_by_projection() -> None:
    found = conflict_report(unit="attention")
    assert found.neurons is not None and found.neurons.total == found.ffn.neurons
    assert {row.block for row in (*found.neurons.most, *found.neurons.least)} <= {"q", "k", "v", "o"}
    assert found.neurons.most[0].mean_activation is None
    assert set(found.tables()["neurons"]["block"]) <= {"q", "k", "v", "o"}


def test_the_command_writes_every_neuron(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(limits, "REPORT_TENSORS", 1_000)
    arguments = ["conflict", "sample:tiny-bf16", "--samples", "4", "--no-weights", "--csv", str(tmp_path)]
    assert main([*arguments, "--ffn", "topk", "--topk-layers", "all"]) == 0
    capsys.readouterr()
    written = pandas.read_csv(tmp_path / "neurons.csv")
    assert len(written) == 2 * 640 and set(written["ffn"]) == {"topk", "original"} and set(written["model"]) == {"sample:tiny-bf16"}
    columns = pandas.read_parquet(tmp_path / "neurons.parquet")
    pandas.testing.assert_frame_equal(columns.astype({"top_sample": float}), written, check_dtype=False, rtol=1e-6)
    monkeypatch.setattr(limits, "REPORT_TENSORS", 2_000)
    assert main([*arguments[:-1], str(tmp_path / "few")]) == 0
    assert len(pandas.read_csv(tmp_path / "few" / "neurons.csv")) == 640 and not (tmp_path / "few" / "neurons.parquet").exists()
