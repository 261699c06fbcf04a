"""Layers run by hand in float32 against autograd in float64, and that only what is plain goes that way."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from analyzers.language_models import plain_layer
from analyzers.language_models.capture import run
from analyzers.language_models.ffn import attention_projections, ffn_layers
from analyzers.language_models.layer_capture import LayerCapture
from analyzers.language_models.plain_layer import PlainLayer
from analyzers.language_models.prompts import Encoded, collate
from tests.language_models.architectures import ARCHITECTURES, build
from tests.language_models.test_capture import Gradients, explicit, keep_larger, samples

TOLERANCE = 1e-5
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, own keys": ("llama", {"num_key_value_heads": 4}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, wide heads": ("llama", {"head_dim": 24}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral, window": ("mistral", {"sliding_window": 64}),
    "qwen2": ("qwen2", {}),
}


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """One entry for each layer that is run by hand: whether what it went through was kept."""
    calls: list[bool] = []
    backward = PlainLayer.backward

    def counted(layer: PlainLayer, came: Any, turns: Any, kept: Any, *others: Any) -> Any:
        calls.append(kept is not None)
        return backward(layer, came, turns, kept, *others)

    monkeypatch.setattr(PlainLayer, "backward", counted)
    return calls


def captured(model: nn.Module, encoded: list[Encoded], **options: Any) -> tuple[list[float], Gradients, list[LayerCapture]]:
    """Losses, gradients of each block of each sample, and what they are of."""
    result = run(model, collate(encoded, "cpu"), ffn_layers(model), **options)
    found: Gradients = {}
    every = []
    for capture in result:
        every.append(capture)
        for block in capture.blocks:
            rows = [block.left[capture.sample == s].T @ block.right[capture.sample == s] for s in range(len(encoded))]
            found[capture.layer, capture.expert, block.name] = torch.stack(rows)
            assert block.largest is None or block.largest == float(block.left.abs().max())
    return result.losses.tolist(), found, every


@pytest.mark.parametrize("kind", KINDS)
def test_captured_gradients_are_those_of_autograd(kind: str, threads: int, by_hand: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    name, settings = KINDS[kind]
    architecture = ARCHITECTURES[name]
    model = build(architecture, "sdpa", torch.float32, **settings)
    exact = build(architecture, "sdpa", torch.float64, **settings)
    exact.load_state_dict(model.state_dict())
    batches = [samples(), samples((9, 9), (4, 8)), samples((12,), (3,)), samples((3, 17, 2, 9, 9), (1, 16, 1, 5, 8))]
    for encoded in batches:
        losses, gradients = explicit(architecture, exact, encoded)
        for rows in (2048, 10):  # all samples together; a few at a time
            monkeypatch.setattr(plain_layer, "_ROWS", rows)
            monkeypatch.setattr(plain_layer, "_ROWS_AGAIN", rows)
            for checkpointing in (False, True):
                found = captured(model, encoded, checkpointing=checkpointing)
                assert by_hand == [not checkpointing] * 2
                by_hand.clear()
                assert found[0] == pytest.approx(losses, rel=TOLERANCE)
                assert found[1].keys() == {key for key in gradients if key[2] in ("gate", "up", "down")}
                for key, given in found[1].items():
                    expected = gradients[key]
                    assert (given - expected).norm() <= TOLERANCE * expected.norm(), key


@pytest.mark.parametrize("checkpointing", [False, True])
def test_what_else_is_captured_is_what_autograd_brings(checkpointing: bool, by_hand: list[bool]) -> None:
    model, encoded = build(ARCHITECTURES["llama"], "sdpa", torch.float32), samples()
    *_, ours = captured(model, encoded, checkpointing=checkpointing)
    assert len(by_hand) == 2
    *_, other = captured(model, encoded, checkpointing=checkpointing, by_autograd=(0, 1))
    assert len(by_hand) == 2
    for one, two in zip(ours, other, strict=True):
        assert (one.layer, one.expert) == (two.layer, two.expert)
        assert torch.equal(one.sample, two.sample) and torch.equal(one.tokens, two.tokens)
        assert one.activity is not None and two.activity is not None
        torch.testing.assert_close(one.activity, two.activity)
        assert [block.name for block in one.blocks] == [block.name for block in two.blocks]
        assert one.blocks[0].right is one.blocks[1].right
        for block, same in zip(one.blocks, two.blocks, strict=True):
            torch.testing.assert_close(block.left, same.left)
            torch.testing.assert_close(block.right, same.right)


def test_only_layers_that_are_plain_are_run_by_hand(by_hand: list[bool]) -> None:
    encoded = samples()

    def count(model: nn.Module, **options: Any) -> int:
        by_hand.clear()
        captured(model, encoded, **options)
        return len(by_hand)

    llama = ARCHITECTURES["llama"]
    model: Any = build(llama, "sdpa", torch.float32)
    assert count(model) == 2
    assert count(model, masks={1: keep_larger}) == 1 and count(model, by_autograd={0}) == 1
    assert count(build(llama, "eager", torch.float32)) == 0
    assert count(build(llama, "sdpa", torch.float64)) == count(build(llama, "sdpa", torch.bfloat16)) == 0
    assert count(build(llama, "sdpa", torch.float32, hidden_act="gelu")) == 0
    assert count(build(ARCHITECTURES["mistral"], "sdpa", torch.float32, sliding_window=5)) == 0  # a mask that hides more than what follows
    assert count(build(ARCHITECTURES["qwen3"], "sdpa", torch.float32)) == 0  # norms of queries and keys
    model.model.layers[0].mlp.up_proj._hf_hook = object()  # weights that are brought when they are needed
    assert count(model) == 1
    by_hand.clear()
    list(run(model, collate(encoded, "cpu"), attention_projections(model)))
    assert by_hand == []


def test_the_way_of_longer_samples_is_the_same_in_parts(by_hand: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(ARCHITECTURES["llama"], "sdpa", torch.float32, max_position_embeddings=1024)
    tokens = torch.randint(3, 67, (5, 700), generator=torch.Generator().manual_seed(3)).tolist()
    encoded = [Encoded(tuple(row[:length]), 2, "", False) for row, length in zip(tokens, (700, 30, 512, 513, 2 * 256), strict=True)]
    whole = captured(model, encoded)
    monkeypatch.setattr(plain_layer, "_ROWS", 1)
    parts = captured(model, encoded)
    assert len(by_hand) == 4 and whole[0] == pytest.approx(parts[0], rel=TOLERANCE)
    for key, expected in whole[1].items():
        assert (parts[1][key] - expected).norm() <= TOLERANCE * expected.norm(), key


def test_of_rows_that_are_left_out_nothing_is_said() -> None:
    model = build(ARCHITECTURES["llama"], "sdpa", torch.float32)
    *_, every = captured(model, samples((9, 9), (1, 1)))
    assert all(block.largest is not None for capture in every for block in capture.blocks)
    *_, some = captured(model, samples((9, 9), (4, 1)))
    known = {capture.layer: {block.largest is not None for block in capture.blocks} for capture in some}
    assert known == {1: {False}, 0: {True}}
