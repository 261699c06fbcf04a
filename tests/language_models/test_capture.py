"""Captured gradients against autograd, sample by sample, for every family."""

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from analyzers.core.errors import InvalidCheckpoint, UnknownArchitecture
from analyzers.language_models.capture import run
from analyzers.language_models.ffn import FFN, Attention, attention_projections, ffn_layers
from analyzers.language_models.prompts import Batch, Encoded, collate
from tests.language_models.architectures import ARCHITECTURES, Architecture, blocks_of, build, every_architecture, supports_sdpa

LENGTHS, STARTS = (9, 14, 5), (4, 1, 3)
TOLERANCE = 1e-5  # models compute norms, softmax and rotations in float32 whatever they are given
Gradients = dict[tuple[int, int | None, str], Tensor]


@pytest.fixture(autouse=True)
def _single_thread() -> Iterator[None]:
    """Waking a second thread takes longer than anything these models compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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


def captured(model: nn.Module, batch: Batch, **options: Any) -> tuple[list[float], Gradients]:
    """The same by one run over the batch; also that what is captured has the promised form."""
    units: list[FFN | Attention] = [*ffn_layers(model), *attention_projections(model)]
    result = run(model, batch, units, **options)
    found: Gradients = {}
    number = len(batch.lengths)
    order = []
    for capture in result:
        assert capture.sample.tolist() == sorted(capture.sample.tolist())
        named = {block.name: block for block in capture.blocks}
        assert list(named) in (
            ["gate", "up", "down"], ["up", "down"], ["q", "k", "v", "o"], ["q", "g", "k", "v", "o"], ["q_a", "q_b", "kv_a", "kv_b", "o"],
            ["q", "kv_a", "kv_b", "o"],
        )  # fmt: skip
        for first, second in (("gate", "up"), ("q", "k"), ("q", "v"), ("q", "g"), ("q", "kv_a"), ("q_a", "kv_a")):
            if {first, second} <= named.keys():
                assert named[first].right is named[second].right
        for block in capture.blocks:
            assert not (block.left.requires_grad or block.right.requires_grad)
            rows = [block.left[capture.sample == s].T @ block.right[capture.sample == s] for s in range(number)]
            found[capture.layer, capture.expert, block.name] = torch.stack(rows)
        order.append(capture.layer)
    assert order == sorted(order, reverse=True)
    assert len(order) == len(units)
    return result.losses.tolist(), found


def assert_same(found: tuple[list[float], Gradients], expected: tuple[list[float], Gradients]) -> None:
    assert found[0] == pytest.approx(expected[0], rel=TOLERANCE)
    assert found[1].keys() == expected[1].keys()
    for key, rows in expected[1].items():
        scale = rows.norm().item() or 1.0
        assert torch.isfinite(found[1][key]).all(), key
        assert (found[1][key] - rows).norm().item() <= TOLERANCE * scale, key


@pytest.mark.parametrize("name", every_architecture(("llama", "phi3", "opt", "falcon", "mixtral", "gpt_oss", "qwen3_next")))
def test_captured_gradients_are_those_of_each_sample_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    architecture = ARCHITECTURES[name]
    encoded = samples()
    model = build(architecture)
    expected = explicit(architecture, model, encoded)
    assert all(rows.norm() > 0 for (_, expert, _), rows in expected[1].items() if expert is None)
    batch = collate(encoded, "cpu")
    assert_same(captured(model, batch), expected)
    assert_same(captured(model, batch, checkpointing=True), expected)
    for tokens in (1, 2 * max(LENGTHS)):  # a sample at a time; two and the last
        monkeypatch.setattr("analyzers.language_models.capture.PART_TOKENS", tokens)
        assert_same(captured(model, batch, checkpointing=True), expected)
    with monkeypatch.context() as patched:
        patched.setattr("analyzers.language_models.capture.length_groups", lambda *_: [[1], [0, 2]])
        assert_same(captured(model, batch), expected)
        assert_same(captured(model, batch, checkpointing=True), expected)
    if supports_sdpa(model):
        model.set_attn_implementation("sdpa")  # type: ignore[operator]
        assert_same(captured(model, batch), expected)
        assert_same(captured(model, batch, checkpointing=True), expected)
    assert_same(captured(model, batch, loss="sum"), explicit(architecture, model, encoded, "sum"))
    alone = captured(model, collate(encoded[1:2], "cpu"))
    assert_same(alone, ([expected[0][1]], {key: rows[1:2] for key, rows in expected[1].items()}))
    same_length = samples((9, 9), (4, 8))
    assert_same(captured(model, collate(same_length, "cpu")), explicit(architecture, model, same_length))


def keep_larger(gate: Tensor | None, up: Tensor, product: Tensor, tokens: Tensor) -> Tensor:
    """Half of the neurons of each token: those whose score is above its median."""
    score = (up if gate is None else gate).detach()
    return product * (score > score.median(-1, keepdim=True).values)


def test_a_mask_stands_between_the_activation_and_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    architecture, encoded = ARCHITECTURES["llama"], samples()
    model = build(architecture)
    block = model.get_submodule("model.layers.1.mlp")

    def masked(hidden: Tensor) -> Tensor:
        gate, up = block.act_fn(block.gate_proj(hidden)), block.up_proj(hidden)  # type: ignore[operator]
        kept: Tensor = block.down_proj(keep_larger(gate, up, gate * up, torch.empty(0)))  # type: ignore[operator]
        return kept

    with monkeypatch.context() as patched:
        patched.setattr(block, "forward", masked)
        expected = explicit(architecture, model, encoded)
    batch = collate(encoded, "cpu")
    for checkpointing in (False, True):
        assert_same(captured(model, batch, masks={1: keep_larger}, checkpointing=checkpointing), expected)
    with monkeypatch.context() as patched:
        patched.setattr("analyzers.language_models.capture.length_groups", lambda *_: [[0, 1], [2]])
        assert_same(captured(model, batch, masks={1: keep_larger}), expected)
    monkeypatch.setattr("analyzers.language_models.capture.PART_TOKENS", 1)
    assert_same(captured(model, batch, masks={1: keep_larger}, checkpointing=True), expected)
    with pytest.raises(AssertionError):
        assert_same(captured(model, batch), expected)


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral"])
def test_masks_are_told_which_tokens_of_the_batch_they_see(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The masked neuron is chosen by the token's number in the batch: whichever samples run together, the result is the same."""
    model, batch = build(ARCHITECTURES[name]), collate(samples(), "cpu")
    seen: list[set[int]] = []

    def by_number(gate: Tensor | None, up: Tensor, product: Tensor, tokens: Tensor) -> Tensor:
        rows = product.flatten(0, -2)
        seen.append(set(tokens.tolist()))
        kept = torch.arange(rows.shape[1]) % 5 != (tokens % 5)[:, None]
        return (rows * kept).view_as(product)

    expected = captured(model, batch, masks={0: by_number, 1: by_number})
    assert set.union(*seen) == set(range(batch.token_ids[:, 1:].numel()))
    for together in ([[1], [0, 2]], [[1], [0], [2]]):
        seen.clear()
        monkeypatch.setattr("analyzers.language_models.capture.length_groups", lambda *_, together=together: together)
        assert_same(captured(model, batch, masks={0: by_number, 1: by_number}), expected)
        width = batch.token_ids.shape[1] - 1
        real = {sample * width + place for sample, length in enumerate(LENGTHS) for place in range(length - 1)}
        assert real <= set.union(*seen)


@pytest.mark.parametrize("name", ["llama", "phi3", "gpt2", "opt", "bloom", "mixtral", "qwen2_moe", "gpt_oss"])
def test_masks_see_what_enters_the_map_down(name: str) -> None:
    architecture, batch = ARCHITECTURES[name], collate(samples(), "cpu")
    model = build(architecture)
    seen: list[int] = []

    def look(gate: Tensor | None, up: Tensor, product: Tensor, tokens: Tensor) -> Tensor:
        seen.append(product[..., 0].numel())
        assert len({*tokens.bincount().tolist()}) == 1  # each token once, or once for each of its experts
        assert product.shape == up.shape
        if gate is not None:
            # That of gpt-oss is off by one and clamped: the map's output is given as it is.
            torch.testing.assert_close(gate * ((up.clamp(-7, 7) + 1) if name == "gpt_oss" else up), product)
        return product.clone()

    plain = captured(model, batch)
    assert_same(captured(model, batch, masks={0: look, 1: look}), plain)
    tokens = batch.token_ids[:, 1:].numel()  # a last token predicts nothing
    assert (
        seen == [tokens * 2] * 2
        if name in ("mixtral", "gpt_oss")
        else sorted(seen) == sorted([tokens] * 2 + [2 * tokens] * (2 * ("moe" in name)))
    )
    units = ffn_layers(model)
    nothing = list(run(model, batch, units, masks={1: lambda gate, up, product, tokens: product * 0}))
    assert all(not block.left.any() for capture in nothing if capture.layer == 1 for block in capture.blocks)
    assert all(capture.activity is not None and not capture.activity.any() for capture in nothing if capture.layer == 1)


@pytest.mark.parametrize("tokens_together", [None, 1, 2 * max(LENGTHS), "groups"])
@pytest.mark.parametrize("name", ["llama", "opt", "qwen2_moe"])
def test_activity_is_summed_over_the_tokens_of_each_sample(
    name: str, tokens_together: int | str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tokens_together == "groups":
        monkeypatch.setattr(
            "analyzers.language_models.capture.length_groups", lambda model, lengths, device: [[1], [0, 2]] if len(lengths) == 3 else [[0]]
        )
        tokens_together = None
    monkeypatch.setattr("analyzers.language_models.capture.PART_TOKENS", tokens_together)
    architecture, encoded = ARCHITECTURES[name], samples()
    model = build(architecture)
    alone = [list(run(model, collate([sample], "cpu"), ffn_layers(model))) for sample in encoded]
    together = list(run(model, collate(encoded, "cpu"), ffn_layers(model), checkpointing=tokens_together is not None))
    arrived: dict[int, list[int]] = {}
    for place, capture in enumerate(together):
        assert capture.activity is not None
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


def test_queries_of_tokens_that_ask_for_nothing_have_no_gradient_and_their_keys_have() -> None:
    for name in ("gpt_neox", "gpt2", "bloom", "falcon", "falcon, one key", "falcon, alibi", "phi3"):
        model = build(ARCHITECTURES[name])
        last = next(iter(run(model, collate(samples((8,), (7,)), "cpu"), attention_projections(model))))
        moved = {block.name: block.left.any(1).tolist() for block in last.blocks}
        assert moved["q"] == moved["o"] == [False] * 6 + [True], name
        assert all(moved["k"]) and all(moved["v"]), name


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
    nothing = list(run(model, collate(encoded, "cpu"), ffn_layers(model)))
    assert [len(capture.sample) for capture in nothing] == [0, 0]
    assert all(torch.isfinite(capture.activity).all() for capture in nothing if capture.activity is not None)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_model_is_left_as_it_was(checkpointing: bool) -> None:
    for name in ("llama", "mixtral"):
        model = build(ARCHITECTURES[name])
        batch = collate(samples(), "cpu")
        before = [
            (module.__dict__.get("forward"), len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()
        ]
        captures = iter(run(model, batch, ffn_layers(model), checkpointing=checkpointing, masks={0: keep_larger, 1: keep_larger}))
        next(captures)
        after = [(module.__dict__.get("forward"), len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()]
        assert before == after
        assert all(parameter.grad is None for parameter in model.parameters())


def test_with_checkpointing_nothing_is_kept_for_the_backward_pass_but_what_enters_each_layer() -> None:
    model = build(ARCHITECTURES["llama"])
    batch = collate(samples(), "cpu")
    saved: dict[bool, int] = {}
    for checkpointing in (False, True):
        kept: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor, kept=kept: (kept.append(tensor), tensor)[1], lambda tensor: tensor):  # type: ignore[misc]
            result = run(model, batch, ffn_layers(model), checkpointing=checkpointing)
        saved[checkpointing] = sum(tensor.numel() for tensor in kept)
        assert len(list(result)) == 2
    of_head_and_norm = 40_000
    assert saved[True] < of_head_and_norm < saved[False]


def test_what_was_captured_of_a_layer_is_freed_when_the_next_begins() -> None:
    model = build(ARCHITECTURES["llama"])
    freed: list[bool] = []
    earlier: weakref.ref[Tensor] | None = None
    for capture in run(model, collate(samples(), "cpu"), ffn_layers(model)):
        if earlier is not None:
            freed.append(earlier() is None)
        earlier = weakref.ref(capture.blocks[0].left)
        del capture
    assert freed == [True]


def test_with_checkpointing_no_more_tokens_than_said_go_through_a_layer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(ARCHITECTURES["llama"])
    seen: list[int] = []
    model.get_submodule("model.layers.1.mlp").register_forward_pre_hook(lambda module, given: seen.append(given[0].shape[:-1].numel()))
    monkeypatch.setattr("analyzers.language_models.capture.PART_TOKENS", 30)
    captures = list(run(model, collate(samples(), "cpu"), ffn_layers(model), checkpointing=True))
    assert seen == [26, 4, 26, 4]  # two samples of 13 and one of 4, forward and again
    assert [int(capture.sample.max()) for capture in captures] == [2, 2]


def test_losses_that_are_not_finite_are_refused() -> None:
    model = build(ARCHITECTURES["llama"], dtype=torch.float16)
    with torch.no_grad():
        model.get_parameter("model.layers.0.mlp.down_proj.weight")[:] = 6e4
    with pytest.raises(InvalidCheckpoint, match=r"not finite when it runs in float16: choose --dtype float32"):
        run(model, collate(samples(), "cpu"), ffn_layers(model))


def test_an_unknown_family_is_named() -> None:
    model = build(Architecture("bitnet", {}))
    for find in (ffn_layers, attention_projections):
        with pytest.raises(UnknownArchitecture, match=r'type "bitnet" .* Supported are llama, '):
            find(model)
