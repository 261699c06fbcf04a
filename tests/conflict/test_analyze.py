"""The analyzer end to end, on the built-in samples: what it finds, that it finds it again, and what it refuses."""

import json
import math
from collections.abc import Sequence
from itertools import combinations, pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForCausalLM

from analyzers.checkpoints import Access
from analyzers.conflict import ConflictReport, ConflictRequest, analyze
from analyzers.conflict.rows import LayerRow, ModelRow
from analyzers.core.errors import InvalidData, InvalidRequest, LimitExceeded, MantissaError
from analyzers.core.request import Progress
from analyzers.language_models.builtin_text import builtin_pairs
from analyzers.language_models.samples import sample_folder
from tests.language_models.architectures import ARCHITECTURES, build
from tests.language_models.repositories import WEIGHTS, files, written

from .captures import FloatArray, cosine
from .reports import SAMPLES, conflict_report
from .test_rates import published_rule


def report(request: ConflictRequest, access: Access | None = None) -> ConflictReport:
    *_, last = analyze(request, access)
    assert isinstance(last, ConflictReport)
    return last


def rows_of(found: ConflictReport, ffn: str) -> list[LayerRow]:
    """Return the layers with one FFN."""
    return [row for row in found.layers if row.ffn == ffn]


def explicit(found: ConflictReport, loss: str = "mean", topk: int | None = None) -> dict[str, FloatArray]:
    """By block, (layers, S, units, width): each sample of the report alone through the model in float64.

    topk: so many neurons by gate are kept in the last layer.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(sample_folder("tiny-bf16"), dtype=torch.float64)
    if topk is not None:
        mlp = model.model.layers[-1].mlp

        def forward(hidden: torch.Tensor) -> torch.Tensor:
            gate = mlp.act_fn(mlp.gate_proj(hidden))
            kept = torch.zeros_like(gate).scatter(-1, gate.topk(topk, dim=-1).indices, 1.0)
            down: torch.Tensor = mlp.down_proj(kept * gate * mlp.up_proj(hidden))
            return down

        mlp.forward = forward
    every: dict[str, list[Any]] = {"gate": [], "up": [], "down": []}
    for sample in found.samples:
        model.zero_grad()
        tokens = torch.tensor([sample.token_ids])
        logits = model(tokens).logits[0, (sample.answer_start or 0) - 1 : -1]
        value = torch.nn.functional.cross_entropy(logits, tokens[0, sample.answer_start :], reduction=loss)
        value.backward()  # type: ignore[no-untyped-call]
        assert sample.loss == pytest.approx(value.item(), rel=1e-5)
        for name, rows in every.items():
            weights = [getattr(layer.mlp, f"{name}_proj").weight.grad for layer in model.model.layers]
            rows.append(torch.stack([each.T if name == "down" else each for each in weights]).numpy().copy())
    return {name: np.stack(rows, 1) for name, rows in every.items()}


@pytest.mark.parametrize("loss", ["mean", "sum"])
def test_the_report_is_what_gradients_in_float64_say(loss: str) -> None:
    found = conflict_report(loss=loss)
    blocks = explicit(found, loss)
    blocks["all"] = np.concatenate(list(blocks.values()), axis=3)
    samples = SAMPLES
    assert found.ffn.blocks == ("gate", "up", "down") and len(found.layers) == 4 and found.model.neurons == 640
    for row in found.layers:
        for name in blocks:
            gradient = blocks[name][row.layer]
            norms = np.linalg.norm(gradient, axis=2)
            pairs = list(combinations(range(samples), 2))
            cosines = np.array([np.einsum("nd,nd->n", gradient[i], gradient[j]) / (norms[i] * norms[j]) for i, j in pairs])
            rates = row if name == "all" else row.blocks[name]
            low, high = rates.undecided.low, rates.undecided.high
            assert low is not None and high is not None and low <= (cosines < 0).mean() <= high
            assert rates.conflict_rate == pytest.approx((cosines < 0).mean(), abs=2 / cosines.size)
            assert rates.mean_cosine == pytest.approx(cosines.mean(), abs=1e-6)
            similarity = np.array([2 * norms[i] * norms[j] / (norms[i] ** 2 + norms[j] ** 2) for i, j in pairs])
            assert rates.magnitude_similarity == pytest.approx(similarity.mean(), abs=1e-6)
        flat = blocks["all"][row.layer].reshape(samples, -1)
        values = next(each.values for each in found.cosines.layers if each.layer == row.layer)
        np.testing.assert_allclose(np.array(values, dtype=float), [[cosine(g, h) for g in flat] for h in flat], atol=1e-5)
    whole = np.moveaxis(blocks["all"], 0, 1).reshape(samples, -1)
    np.testing.assert_allclose(np.array(found.cosines.model, dtype=float), [[cosine(g, h) for g in whole] for h in whole], atol=1e-5)
    assert [row.norm for row in found.dominance.samples] == pytest.approx(np.linalg.norm(whole, axis=1).tolist(), rel=1e-5)
    positive, negative = (whole > 0).sum(0), (whole < 0).sum(0)
    assert found.weights is not None
    assert found.weights.conflict == pytest.approx((positive * negative / (samples * (samples - 1) / 2)).mean(), abs=1e-4)
    assert found.weights.weights == whole.shape[1]


def test_the_historic_rates_are_those_of_the_published_rule() -> None:
    """Of a top-k FFN in the last layer, as in the published run, and of the original beside it."""
    found = conflict_report(ffn="topk")
    assert found.original is not None
    for ffn, topk in (("topk", 20), ("original", None)):
        blocks = explicit(found.model_copy(update={"samples": conflict_report().samples}) if topk is None else found, topk=topk)
        neurons = np.concatenate(list(blocks.values()), axis=3).swapaxes(1, 2)  # (layers, units, S, width)
        for row in rows_of(found, ffn):
            rate, similarity = published_rule(neurons[row.layer])
            assert row.conflict_rate_historic == pytest.approx(rate, abs=1e-4)
            assert row.magnitude_similarity_historic == (None if math.isnan(similarity) else pytest.approx(similarity, abs=1e-5))
    before, last = found.layers[-2:]
    assert last.magnitude_similarity_historic is None and last.pairs < 0.8 * before.pairs  # many gradients are zero


@pytest.mark.parametrize(("asked", "total"), [({}, 8), ({"ffn": "topk"}, 16)])
def test_progress_is_in_layers(asked: dict[str, Any], total: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyzers.language_models.stages.PART_TOKENS", 1)  # a sample at a time
    *steps, _ = analyze(ConflictRequest(model="sample:tiny-bf16", samples=3, weights=False, **asked))
    layers = [step for step in steps if isinstance(step, Progress) and step.unit == "layers" and step.total]
    assert all(before.done <= after.done for before, after in pairwise(layers)) and {step.total for step in layers} == {total}
    assert {step.done for step in layers} == set(range(total + 1))


def test_more_than_may_be_run_is_refused_before_the_model_is_loaded() -> None:
    request = ConflictRequest(model="sample:tiny-bf16", samples=3, weights=False)
    *_, last = analyze(request)
    assert isinstance(last, ConflictReport)
    work = last.checkpoint.parameters * 3 * max(len(sample.token_ids or ()) for sample in last.samples)  # one micro-batch
    assert isinstance([*analyze(request, largest=work)][-1], ConflictReport)
    for asked, largest in ((request, work - 1), (request.model_copy(update={"ffn": "topk"}), 2 * work - 1)):
        with pytest.raises(LimitExceeded, match="MANTISSA_WEB_MODEL_WORK"):
            list(analyze(asked, largest=largest))


def test_samples_are_chosen_by_the_seed_and_the_report_lists_their_rows() -> None:
    asked = {"model": "sample:tiny-bf16", "samples": 5, "weights": False}
    reports = [report(ConflictRequest.model_validate(asked | each)) for each in ({}, {"seed": 1}, {"choice": "first"})]
    for found, rows in zip(reports, (Random(0).sample(range(64), 5), Random(1).sample(range(64), 5), range(5)), strict=True):
        assert [sample.row for sample in found.samples] == sorted(rows) and found.data.rows == 64
        text = builtin_pairs()
        assert [sample.text for sample in found.samples] == [text[row].prompt + text[row].output for row in sorted(rows)]
        assert found.tables()["samples"]["row"].tolist() == sorted(rows)
    assert len({found.id for found in reports}) == 3


def test_the_order_of_the_samples_changes_only_their_numbers() -> None:
    given = {
        "token_ids": tuple(each.token_ids for each in conflict_report().samples),
        "answer_starts": tuple(each.answer_start for each in conflict_report().samples),
    }
    first, other = conflict_report(**given), conflict_report(**{name: each[::-1] for name, each in given.items()})
    for one_row, other_row in zip([first.model, *first.layers], [other.model, *other.layers], strict=True):
        assert one_row.conflict_rate == pytest.approx(other_row.conflict_rate, abs=1e-3)
        assert one_row.whole.mean_cosine == pytest.approx(other_row.whole.mean_cosine, abs=1e-5)
    assert [row.share for row in first.dominance.samples] == pytest.approx([row.share for row in other.dominance.samples][::-1], rel=1e-5)
    for one_decile, other_decile in zip(first.deciles, other.deciles, strict=True):
        assert one_decile.mean_activation == pytest.approx(other_decile.mean_activation, rel=1e-5)


def assert_alike(found: Sequence[ModelRow], other: Sequence[ModelRow]) -> None:
    """The same but for the order of additions."""
    for first, second in zip(found, other, strict=True):
        assert first.pairs == second.pairs and first.mean_cosine == pytest.approx(second.mean_cosine, abs=1e-6)
        assert first.conflict_rate == pytest.approx(second.conflict_rate, abs=1e-3)
        assert first.whole.mean_cosine == pytest.approx(second.whole.mean_cosine, abs=1e-5)


def test_top_k_of_the_whole_width_is_the_original() -> None:
    found = conflict_report(ffn="topk", topk=1.0, topk_layers="all")
    assert found.original == found.model
    for rows in (found.layers, found.batch_curve, found.deciles, found.neurons):
        original, topk = ([row.model_dump(exclude={"ffn"}) for row in rows if row.ffn == ffn] for ffn in ("original", "topk"))
        assert original == topk != []
    assert_alike([found.original, *rows_of(found, "original")], [conflict_report().model, *conflict_report().layers])
    assert found.change is not None and found.change.estimate == 0
    assert found.ffn.topk is not None and found.ffn.topk.kept == 1


def test_top_k_in_the_last_layer_stands_beside_the_original() -> None:
    found, original = conflict_report(ffn="topk"), conflict_report()
    assert found.original is not None
    assert_alike([found.original, *rows_of(found, "original")], [original.model, *original.layers])
    assert found.ffn.topk is not None and (found.ffn.topk.layers, found.ffn.topk.kept) == ((3,), 20 / 160)
    last, before = found.layers[-1], original.layers[-1]
    assert last.pairs < before.pairs  # a neuron that a sample never keeps has no gradient in it
    assert last.magnitude_similarity_historic is None
    assert found.model.conflict_rate is not None and original.model.conflict_rate is not None and found.change is not None
    assert found.change.estimate == pytest.approx(found.model.conflict_rate - original.model.conflict_rate)
    assert found.change.low <= found.change.estimate <= found.change.high
    assert found.samples[0].loss != original.samples[0].loss


def test_experts_that_receive_no_tokens_are_dead(tmp_path: Path) -> None:
    folder = written(tmp_path / "model", files(without=(WEIGHTS,)))
    vocabulary = json.loads(files()["config.json"])["vocab_size"]
    model = build(ARCHITECTURES["qwen3_moe"], "sdpa", torch.float32, vocab_size=vocabulary, num_experts=64)
    model.save_pretrained(folder)  # type: ignore[operator]
    request = ConflictRequest(model=str(folder), samples=2, max_length=12)
    found = report(request, Access(local=True))
    assert found.model.dead > found.model.neurons / 2  # 22 tokens go to 2 of 64 each
    assert found.model.conflict_rate is not None and found.weights is not None
    assert found.weights.weights == 3 * found.model.neurons * 32


@pytest.mark.parametrize(
    "asked",
    [
        {"samples": 1},
        {"samples": 10**6},
        {"token_ids": ((1, 2), (3, 4)), "data": "org/name"},
        {"token_ids": ((1, 2),)},
        {"gamma": float("nan")},
        {"topk_layers": "5-2"},
        {"model_": 1},
    ],
)
def test_requests_that_are_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ConflictRequest(model="m", **asked)


@pytest.mark.parametrize(
    ("asked", "kind"), [({"data": "./file.jsonl"}, InvalidData), ({"ffn": "topk", "topk_layers": "2-9"}, InvalidRequest)]
)
def test_what_cannot_be_conflict_report(asked: dict[str, Any], kind: type[MantissaError]) -> None:
    with pytest.raises(kind):
        report(ConflictRequest(**{"model": "sample:tiny-bf16", **asked}))
