"""Gradients of units against autograd, sample by sample, for every family."""

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from analyzers.core.errors import InvalidCheckpoint
from analyzers.language_models.batch import Batch, collate
from analyzers.language_models.ffn import ffn_layers
from analyzers.language_models.prompts import Encoded
from analyzers.language_models.unit_gradients import UnitGradients, UnitPass
from tests.language_models.architectures import ARCHITECTURES, Architecture, blocks_of, build, every_architecture, supports_sdpa

LENGTHS, STARTS = (9, 14, 5), (4, 1, 3)
TOLERANCE = 1e-5  # models compute norms, softmax and rotations in float32 whatever they are given
Gradients = dict[tuple[int, int | None, str], Tensor]


def samples(lengths: tuple[int, ...] = LENGTHS, starts: tuple[int, ...] = STARTS) -> list[Encoded]:
    """Random tokens; the answers begin at ``starts``."""
    tokens = torch.randint(3, 67, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(1)).tolist()
    return [Encoded(tuple(row[:length]), start, "", False) for row, length, start in zip(tokens, lengths, starts, strict=True)]


def explicit(architecture: Architecture, model: nn.Module, encoded: list[Encoded], loss: str = "mean") -> tuple[list[float], Gradients]:
    """Losses, and the gradients of every block, (samples, units, width): each sample alone, unpadded, through the whole model."""
    losses, found = [], []
    model.requires_grad_(True)
    for sample in encoded:
        model.zero_grad()
        tokens = torch.tensor([sample.token_ids])
        logits: Tensor = model(tokens).logits[0, sample.answer_start - 1 : -1]
        value = cross_entropy(logits, tokens[0, sample.answer_start :], reduction=loss)
        value.backward()  # type: ignore[no-untyped-call]
        losses.append(value.item())
        found.append({key: rows.clone() for key, rows in blocks_of(architecture, model, lambda weight: weight.grad).items()})
    model.requires_grad_(False)
    return losses, {key: torch.stack([each[key] for each in found]) for key in found[0]}


def run(model: nn.Module, batch: Batch, **options: Any) -> list[UnitGradients]:
    """A pass over the batch."""
    passed = UnitPass(model, batch, **options)
    list(passed.forward())
    return list(passed.backward())


def captured(model: nn.Module, batch: Batch, **options: Any) -> tuple[list[float], Gradients]:
    """The same as `explicit` by a pass over the batch; also that what it gives has the promised form."""
    found: Gradients = {}
    passed, order = UnitPass(model, batch, **options), []
    list(passed.forward())
    for each in passed.backward():
        present = torch.unique_consecutive(each.sample).tolist()
        assert len(present) == len({*present})
        named = {block.name: block for block in each.blocks}
        assert list(named) in (["gate", "up", "down"], ["up", "down"])
        if "gate" in named:
            assert named["gate"].right is named["up"].right
        for block in each.blocks:
            assert not (block.left.requires_grad or block.right.requires_grad)
            rows = [block.left[each.sample == s].T @ block.right[each.sample == s] for s in range(len(batch.lengths))]
            found[each.layer, each.expert, block.name] = torch.stack(rows)
        order.append(each.layer)
    assert order == sorted(order, reverse=True) and len(order) == len(ffn_layers(model))
    return passed.losses.tolist(), found


def assert_same(found: tuple[list[float], Gradients], expected: tuple[list[float], Gradients]) -> None:
    assert found[0] == pytest.approx(expected[0], rel=TOLERANCE)
    assert found[1].keys() == expected[1].keys()
    for key, rows in expected[1].items():
        scale = rows.norm().item() or 1.0
        assert torch.isfinite(found[1][key]).all(), key
        assert (found[1][key] - rows).norm().item() <= TOLERANCE * scale, key


@pytest.mark.parametrize("name", every_architecture(("llama", "phi3", "opt", "falcon", "mixtral", "gpt_oss", "qwen3_next")))
def test_gradients_are_those_of_each_sample_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    architecture = ARCHITECTURES[name]
    encoded = samples()
    model = build(architecture)
    expected = explicit(architecture, model, encoded)
    assert all(rows.norm() > 0 for (_, expert, _), rows in expected[1].items() if expert is None)
    batch = collate(encoded, "cpu")
    for tokens in (1, 2 * max(LENGTHS), 1024):  # a sample at a time; two and the last; all
        monkeypatch.setattr("analyzers.language_models.stages.PART_TOKENS", tokens)
        assert_same(captured(model, batch), expected)
    if supports_sdpa(model):
        model.set_attn_implementation("sdpa")  # type: ignore[operator]
        assert_same(captured(model, batch), expected)
    assert_same(captured(model, batch, loss="sum"), explicit(architecture, model, encoded, "sum"))


@pytest.mark.parametrize("name", ["llama", "phi3", "gpt2", "opt", "bloom", "mixtral", "qwen2_moe", "gpt_oss"])
def test_masks_see_what_enters_the_map_down(name: str) -> None:
    architecture, batch = ARCHITECTURES[name], collate(samples(), "cpu")
    model = build(architecture)
    seen: list[int] = []

    def look(gate: Tensor | None, up: Tensor, product: Tensor, real: Tensor) -> Tensor:
        seen.append(int(real.sum()))
        assert product.shape == up.shape and product.shape[:-1] == real.shape
        if gate is not None:
            # That of gpt-oss is off by one and clamped: the map's output is given as it is.
            torch.testing.assert_close(gate * ((up.clamp(-7, 7) + 1) if name == "gpt_oss" else up), product)
        return product.clone()

    passes = run(model, batch), run(model, batch, masks={0: look, 1: look})
    for one, other in zip(*passes, strict=True):
        assert all(torch.equal(a.left, b.left) and torch.equal(a.right, b.right) for a, b in zip(one.blocks, other.blocks, strict=True))
    tokens = sum(length - 1 for length in LENGTHS)  # a last token predicts nothing, and padding is not real
    assert {*seen} == ({2 * tokens, tokens} if name == "qwen2_moe" else {2 * tokens} if name in ("mixtral", "gpt_oss") else {tokens})
    nothing = run(model, batch, masks={1: lambda gate, up, product, real: product * 0})
    assert all(not block.left.any() for each in nothing if each.layer == 1 for block in each.blocks)
    assert all(not each.activity.any() for each in nothing if each.layer == 1)


@pytest.mark.parametrize("tokens_together", [1, 1024])
@pytest.mark.parametrize("name", ["llama", "opt", "qwen2_moe"])
def test_activity_is_summed_over_the_tokens_of_each_sample(name: str, tokens_together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyzers.language_models.stages.PART_TOKENS", tokens_together)
    encoded, model = samples(), build(ARCHITECTURES[name])
    alone = [run(model, collate([sample], "cpu")) for sample in encoded]
    together = run(model, collate(encoded, "cpu"))
    arrived: dict[int, list[int]] = {}
    for place, capture in enumerate(together):
        for s, parts in enumerate(alone):
            assert (parts[place].layer, parts[place].expert) == (capture.layer, capture.expert)
            torch.testing.assert_close(capture.activity[s : s + 1], parts[place].activity)
            assert capture.tokens[s] == parts[place].tokens[0]
        if capture.expert is None:
            assert capture.tokens.tolist() == [length - 1 for length in LENGTHS]
        else:
            arrived.setdefault(capture.layer, []).append(int(capture.tokens.sum()))
    assert all(sum(counts) == 2 * sum(length - 1 for length in LENGTHS) for counts in arrived.values())
    down = {block.name: block for block in together[0].blocks}["down"]
    last = together[0]
    if last.expert is None:  # in the last layer the tokens before the answer have no gradient, and neither has the last one
        assert torch.bincount(last.sample).tolist() == [length - start for length, start in zip(LENGTHS, STARTS, strict=True)]
        assert down.left.shape[0] == len(last.sample)


def test_neurons_and_samples_without_gradient() -> None:
    architecture, encoded = ARCHITECTURES["llama"], samples()
    model = build(architecture)
    with torch.no_grad():
        for layer in range(2):
            model.get_parameter(f"model.layers.{layer}.mlp.up_proj.weight")[:40] = 0
        model.get_parameter("model.layers.1.mlp.down_proj.weight")[:] = 0
        model.get_parameter("model.layers.1.self_attn.o_proj.weight")[:] = 0
    assert_same(captured(model, collate(encoded, "cpu")), explicit(architecture, model, encoded))
    with torch.no_grad():
        model.get_parameter("lm_head.weight")[:] = 0
    nothing = run(model, collate(encoded, "cpu"))
    assert [len(capture.sample) for capture in nothing] == [0, 0]
    assert all(torch.isfinite(capture.activity).all() for capture in nothing)


def test_gradients_of_a_layer_are_freed_when_the_next_begins() -> None:
    model = build(ARCHITECTURES["llama"])
    freed: list[bool] = []
    earlier: weakref.ref[Tensor] | None = None
    passed = UnitPass(model, collate(samples(), "cpu"))
    list(passed.forward())
    for each in passed.backward():
        if earlier is not None:
            freed.append(earlier() is None)
        earlier = weakref.ref(each.blocks[0].left)
        del each
    assert freed == [True]


def test_losses_that_are_not_finite_are_refused() -> None:
    model = build(ARCHITECTURES["llama"], dtype=torch.float16)
    with torch.no_grad():
        model.get_parameter("model.layers.0.mlp.down_proj.weight")[:] = 6e4
    with pytest.raises(InvalidCheckpoint, match=r"not finite when it runs in float16: choose --dtype float32"):
        run(model, collate(samples(), "cpu"))
