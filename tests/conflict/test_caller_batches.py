"""Conflict between batches of the caller, against plain autograd and against the path by tokens."""

from collections.abc import Callable
from itertools import combinations, count
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

import mantissa
from analyzers.conflict import ConflictReport
from analyzers.core.errors import InvalidData, InvalidRequest, MantissaError, UnknownArchitecture, UnsupportedWeights
from analyzers.core.request import Progress
from tests.language_models.architectures import ARCHITECTURES, build

BATCHES, LAYERS = 6, 2


def tiny_llama(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=61, hidden_size=16, intermediate_size=24, num_hidden_layers=LAYERS, num_attention_heads=2, num_key_value_heads=1
    )
    model: Any = LlamaForCausalLM(config)
    return model.to(dtype)


def rows(samples: int = BATCHES) -> list[list[int]]:
    random = torch.Generator().manual_seed(1)
    return [torch.randint(0, 61, (5 + 2 * number,), generator=random).tolist() for number in range(samples)]


def tokens_loss(model: nn.Module, ids: list[int]) -> Tensor:
    """The loss of the path by tokens: the mean over all tokens but the first."""
    given = torch.tensor([ids])
    logits = model(input_ids=given[:, :-1]).logits
    return cross_entropy(logits[0].float(), given[0, 1:])


def by_autograd(model: nn.Module, loss: Callable[[nn.Module, Any], Tensor], batches: Any, blocks: list[dict[str, str]]) -> list[Any]:
    """By layer, (S, units, width) float64 gradients of its units: rows of gate and up, columns of down."""
    weights = dict(model.eval().named_parameters())
    found: list[list[Tensor]] = [[] for _ in blocks]
    for batch in batches:
        gradients = dict(zip(weights, torch.autograd.grad(loss(model, batch), list(weights.values()), allow_unused=True), strict=True))
        for layer, names in enumerate(blocks):
            parts = [gradients[name].t() if block == "down" else gradients[name] for block, name in names.items()]
            found[layer].append(torch.cat(parts, 1))
    return [torch.stack(each).double().numpy() for each in found]


def check_against(report: ConflictReport, gradients: list[Any]) -> None:
    """Conflict rates, mean cosines and Gram matrices from explicit gradients."""
    for row in report.layers:
        vectors = gradients[row.layer]
        norms = np.linalg.norm(vectors, axis=2)
        cosines = np.array([(vectors[i] * vectors[j]).sum(1) / (norms[i] * norms[j]) for i, j in combinations(range(len(vectors)), 2)])
        assert row.neurons == vectors.shape[1] and row.pairs == cosines.size
        assert row.conflict_rate == pytest.approx((cosines < 0).mean(), abs=1 / cosines.size)
        assert row.mean_cosine == pytest.approx(cosines.mean(), abs=1e-5)
        assert row.neuron_effective_samples == pytest.approx(((norms**2).sum(0) ** 2 / (norms**4).sum(0)).mean(), rel=1e-4)
    every = np.concatenate([each.reshape(len(each), -1) for each in gradients], 1)
    norms = np.linalg.norm(every, axis=1)
    assert [each.norm for each in report.dominance.samples] == pytest.approx(list(norms), rel=1e-5)
    assert np.array(report.cosines.model) == pytest.approx(every @ every.T / np.outer(norms, norms), abs=1e-5)
    assert report.weights is not None and report.weights.weights == every.shape[1]
    signs = np.sign(every)
    positive, negative = (signs > 0).sum(0), (signs < 0).sum(0)
    pairs = (positive + negative) * (positive + negative - 1) / 2
    assert report.weights.conflict == pytest.approx((positive * negative / pairs)[pairs > 0].mean(), rel=1e-3)


def test_a_language_model_gives_what_autograd_gives() -> None:
    names = [{block: f"model.layers.{layer}.mlp.{block}_proj.weight" for block in ("gate", "up", "down")} for layer in range(LAYERS)]
    report = mantissa.conflict(tiny_llama(), batches=rows(), loss=tokens_loss)
    check_against(report, by_autograd(tiny_llama(), tokens_loss, rows(), names))
    assert report.ffn.blocks == ("gate", "up", "down") and [row.layer for row in report.layers] == [0, 1]


@pytest.mark.parametrize("family", ["gpt2", "phi3", "mixtral", "gpt_oss", "qwen2_moe", "falcon"])
def test_fused_transposed_and_routed_weights(family: str) -> None:
    """Units that are rows, columns or slices of one parameter."""
    architecture = ARCHITECTURES[family]
    ids = [[token % 67 for token in row] for row in rows(4)]
    by_tokens = mantissa.conflict(build(architecture).float(), token_ids=ids)
    same_figures(mantissa.conflict(build(architecture).float(), batches=ids, loss=tokens_loss), by_tokens)


def same_figures(first: ConflictReport, second: ConflictReport) -> None:
    assert first.ffn == second.ffn
    for one_row, other in zip((first.model, *first.layers), (second.model, *second.layers), strict=True):
        assert (one_row.neurons, one_row.dead, one_row.pairs) == (other.neurons, other.dead, other.pairs)
        assert one_row.conflict_rate == pytest.approx(other.conflict_rate, abs=2 / other.pairs + 1e-9)
        for name in ("magnitude_similarity", "mean_cosine", "neuron_top_share", "neuron_effective_samples"):
            assert getattr(one_row, name) == pytest.approx(getattr(other, name), abs=1e-4), name
        assert one_row.whole.effective_samples == pytest.approx(other.whole.effective_samples, rel=1e-4)
        assert one_row.whole.mean_cosine == pytest.approx(other.whole.mean_cosine, abs=1e-4)
    assert np.array(first.cosines.model, float) == pytest.approx(np.array(second.cosines.model, float), abs=1e-4)
    assert [each.norm for each in first.dominance.samples] == pytest.approx([each.norm for each in second.dominance.samples], rel=1e-4)
    assert (first.weights is None) == (second.weights is None)
    if first.weights is not None and second.weights is not None:
        assert first.weights.conflict == pytest.approx(second.weights.conflict, abs=1e-3)


def test_a_mapping_brings_its_own_loss() -> None:
    model = tiny_llama()
    batches = [{"input_ids": torch.tensor([row]), "labels": torch.tensor([row])} for row in rows()]
    default = mantissa.conflict(model, batches=batches)
    own = mantissa.conflict(model, batches=batches, loss=lambda model, batch: model(**batch).loss)
    assert default.model == own.model and default.id == own.id != mantissa.conflict(model, batches=rows(), loss=tokens_loss, gamma=0.1).id


def test_nothing_of_the_model_or_its_surroundings_changes() -> None:
    """Not between batches either, nor after a loss that fails: flags, modes, gradients, hooks, random numbers."""
    model = tiny_llama()
    first, second = (layer.mlp for layer in model.model.layers)
    first.requires_grad_(False)
    second.eval()
    model.lm_head.weight.grad = torch.full_like(model.lm_head.weight, 2.0)
    second.register_forward_hook(lambda *_: None)

    def state() -> list[Any]:
        values = [(name, each.detach().clone(), each.requires_grad) for name, each in model.named_parameters()]
        modes = [(each.training, len(each._forward_hooks), len(each._forward_pre_hooks)) for each in model.modules()]
        gradients = [(name, each.grad is None) for name, each in model.named_parameters()]
        return [*values, *modes, *gradients, model.lm_head.weight.grad.clone(), torch.random.get_rng_state()]

    def same(first: Any, second: Any) -> bool:
        if isinstance(first, Tensor):
            return torch.equal(first, second)
        return all(map(same, first, second)) if isinstance(first, list | tuple) else first == second

    def failing(model: nn.Module, batch: Any) -> Tensor:
        if batch is data[2]:
            raise KeyError("a fault of the caller")
        return noisy(model, batch)

    def noisy(model: nn.Module, batch: Any) -> Tensor:
        assert not model.training
        return tokens_loss(model, batch) * (1 + torch.rand(()))

    data, before = rows(), state()
    seen = []
    for item in mantissa.stream("conflict", model=model, batches=data, loss=noisy):
        assert same(state(), before)
        seen.append(item)
    assert same(state(), before)
    units = [(item.unit, item.done, item.total) for item in seen if isinstance(item, Progress)]
    assert units[:2] == [("batches", 0, 6), ("batches", 1, 6)] and units[-1] == ("layers", 2, 2)
    with torch.inference_mode():
        assert mantissa.conflict(model, batches=data, loss=noisy).model == seen[-1].model  # type: ignore[union-attr]
    with pytest.raises(KeyError, match="a fault of the caller"):
        mantissa.conflict(model, batches=data, loss=failing)
    assert same(state(), before)
    shuffled: Any = DataLoader(torch.randint(0, 61, (6, 5)), batch_size=None, shuffle=True)  # type: ignore[arg-type]
    before = state()
    mantissa.conflict(model, batches=shuffled, loss=lambda model, batch: tokens_loss(model, batch.tolist()))
    assert same(state(), before)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"loss": lambda model, batch: 1.5}, InvalidRequest),
        ({"loss": lambda model, batch: model.lm_head.weight}, InvalidRequest),
        ({"loss": lambda model, batch: model.lm_head.weight.sum()}, InvalidRequest),
        ({"loss": lambda model, batch: tokens_loss(model, batch) / 0}, InvalidData),
        ({}, InvalidRequest),
        ({"loss": tokens_loss, "batches": rows()[:1]}, InvalidData),
        ({"loss": tokens_loss, "batches": ({"number": number} for number in count())}, InvalidData),
        ({"loss": tokens_loss, "ffn": "topk"}, InvalidRequest),
        ({"loss": tokens_loss, "token_ids": [[1, 2], [3, 4]]}, InvalidRequest),
        ({"loss": tokens_loss, "model": "sample:tiny-bf16"}, InvalidRequest),
        ({"loss": tokens_loss, "model": nn.Linear(2, 2)}, UnknownArchitecture),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], kind: type[MantissaError]) -> None:
    asked: dict[str, Any] = {"model": tiny_llama(), "batches": rows()} | options
    with pytest.raises(kind):
        mantissa.conflict(asked.pop("model"), **asked)


def test_weights_that_are_shared_or_computed_are_refused() -> None:
    shared, computed = tiny_llama(), tiny_llama()
    shared.model.layers[1].mlp.up_proj.weight = shared.model.layers[0].mlp.up_proj.weight
    torch.nn.utils.parametrizations.weight_norm(computed.model.layers[0].mlp.up_proj)
    for model in (shared, computed):
        with pytest.raises(UnsupportedWeights):
            mantissa.conflict(model, batches=rows(), loss=tokens_loss)
