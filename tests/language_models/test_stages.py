"""A decoder run layer by layer, against plain autograd through the whole model in float64."""

import weakref
from collections import UserDict
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from analyzers.core.errors import UnknownArchitecture
from analyzers.language_models.ffn import decoder_layers
from analyzers.language_models.stages import Stages, check_stages, micro_batches
from tests.language_models.architectures import ARCHITECTURES, VOCABULARY, build, every_architecture

TOKENS = torch.randint(3, VOCABULARY, (3, 12), generator=torch.Generator().manual_seed(1))
Tensors = dict[tuple[str, str], Tensor]


def whole_pass(model: Any) -> Tensors:
    """Hidden states, logits, and gradients of the mean cross-entropy of TOKENS, by kind and name."""
    hidden: list[Tensor] = []

    def enter(module: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not hidden:
            hidden.append(inputs[0] if inputs else named["hidden_states"])

    def leave(module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        hidden.append(output[0] if isinstance(output, tuple) else output)

    model.requires_grad_(True)
    layers = list(decoder_layers(model))
    hooks = [layer.register_forward_hook(leave) for layer in layers] + [layers[0].register_forward_pre_hook(enter, with_kwargs=True)]
    logits = model(input_ids=TOKENS[:, :-1], use_cache=False).logits
    loss, weights = cross_entropy(logits.flatten(0, 1), TOKENS[:, 1:].flatten()), dict(model.named_parameters())
    gradients = torch.autograd.grad(loss, [*hidden, *weights.values()], allow_unused=True)
    for hook in hooks:
        hook.remove()
    model.requires_grad_(False)
    result = {("logits", ""): logits.detach()}
    for number, (state, gradient) in enumerate(zip(hidden, gradients, strict=False), -1):
        result |= {("hidden", str(number)): state.detach(), ("hidden_grad", str(number)): gradient}
    named = zip(weights, gradients[len(hidden) :], strict=True)
    return result | {("weight", name): gradient for name, gradient in named if gradient is not None}


def staged_pass(model: Any) -> Tensors:
    """The same by stages."""
    stages = Stages(model, [TOKENS[:, :-1]], weights=True)
    (part,) = stages.parts
    result: Tensors = {("hidden", "-1"): part.embedded.detach()}
    for i in stages.forward(keep=True):
        result["hidden", str(i)] = part.hidden[i + 1]
    leaf, outside = part.hidden[-1].requires_grad_(), {name: w for name, w in stages.outside.named_parameters() if not w.is_meta}
    logits = stages.head(leaf)
    loss = cross_entropy(logits.flatten(0, 1), TOKENS[:, 1:].flatten())
    gradient, *of_head = torch.autograd.grad(loss, [leaf, *outside.values()], allow_unused=True)
    result["logits", ""] = logits.detach()
    layers = {layer: name for name, layer in model.named_modules()}
    for i in reversed(range(len(stages.calls))):
        result["hidden_grad", str(i)] = gradient
        with stages.module(i) as module:
            weights = dict(module.named_parameters())
            of_input, found = stages.backward(i, part, gradient, module, lambda weights=weights: list(weights.values()))  # type: ignore[misc]
        assert of_input is not None
        gradient = of_input
        prefix = layers[decoder_layers(model)[stages.calls[i].layer]]
        result |= {("weight", f"{prefix}.{name}"): each for name, each in zip(weights, found, strict=True) if each is not None}
    result["hidden_grad", "-1"] = gradient
    for name, *both in zip(outside, of_head, stages.embed_backward(part, gradient, list(outside.values())), strict=True):
        if given := [each for each in both if each is not None]:
            result["weight", name] = sum(given[1:], given[0])
    return result


@pytest.mark.parametrize("name", every_architecture())
def test_stages_are_the_whole_model(name: str) -> None:
    """Hidden states, logits, and the gradients of hidden states and of all weights."""
    model = build(ARCHITECTURES[name])
    expected, found = whole_pass(model), staged_pass(model)
    assert {key for key, value in expected.items() if value.any()} <= found.keys() and len(expected) > 10
    for key, value in expected.items():
        if key in found:
            assert (found[key] - value).norm() <= 1e-9 * value.norm(), key
    check_stages(model, TOKENS)


def test_the_model_is_not_changed() -> None:
    model = build(ARCHITECTURES["mixtral"])
    before = {name: (value, value.clone()) for name, value in model.state_dict(keep_vars=True).items()}
    staged_pass(model)
    after = model.state_dict(keep_vars=True)
    assert all(after[name] is value and torch.equal(value, copy) and value.grad is None for name, (value, copy) in before.items())
    assert not any("forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("what", ["between", "shared dictionary", "earlier hidden states"])
def test_decoders_that_do_not_fit_are_refused(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Llama whose decoder doubles the hidden states between layers, or whose second layer sees more than these."""
    model = build(ARCHITECTURES["llama"])
    kind: Any = type(decoder_layers(model)[0])
    call, outputs = kind.__call__, list[Tensor]()

    def changed(layer: Any, hidden: Tensor, *arguments: Any, **keywords: Any) -> Tensor:
        if outputs:
            hidden = 2 * hidden if what == "between" else hidden
            extra: dict[str, Any] = {"shared dictionary": UserDict(), "earlier hidden states": 2 * outputs[-1]}
            keywords |= {"extra": extra[what]} if what in extra else {}
        outputs.append(call(layer, hidden, *arguments, **keywords))
        return outputs[-1]

    monkeypatch.setattr(kind, "__call__", changed)
    with pytest.raises(UnknownArchitecture, match='"llama" cannot be run layer by layer'):
        Stages(model, [TOKENS])


def test_a_model_that_changes_its_logits_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = build(ARCHITECTURES["llama"])
    first = decoder_layers(model)[0]
    monkeypatch.setattr(first, "forward", lambda hidden, **named: 2 * type(first).forward(first, hidden, **named))
    with pytest.raises(UnknownArchitecture, match="compute other logits than their layers do one by one"):
        check_stages(model, TOKENS)


def test_copies_are_freed_at_once() -> None:
    """Not only when cycles are collected: copies of layers that are read from disk hold their weights."""
    model = build(ARCHITECTURES["mixtral"])

    def narrow(copy: Any, name: str) -> None:
        copy.to(torch.bfloat16)

    stages, prepared = Stages(model, [TOKENS], narrow), list[weakref.ref[Any]]()
    for i in range(2):
        with stages.module(i) as module:
            module.register_forward_hook(lambda module, *given: None)
            prepared += [weakref.ref(weight) for weight in module.parameters()]
        del module
    outside = [weakref.ref(weight) for weight in stages.outside.parameters() if not weight.is_meta]
    stages.close()
    assert len(prepared) > 10 and all(each() is None for each in (*prepared, *outside))


def test_samples_are_cut_into_micro_batches_by_length() -> None:
    assert micro_batches([5, 14, 9, 13], 26) == [[1], [3, 2], [0]]
    assert micro_batches([5, 14], 1) == [[1], [0]]
