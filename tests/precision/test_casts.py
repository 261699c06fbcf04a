"""Parts in fp32, against a Llama written out by hand with every cast where it belongs; loss scales against trying all of them."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding, linear, silu

from analyzers.precision.variants import PARTS, PRESETS, Part, Settings
from tests.cases import few
from tests.language_models.architectures import ARCHITECTURES, HEAD, HEADS, KEY_HEADS, LAYERS, VOCABULARY, build
from tests.precision.runs import backward, compared, forward, lockstep, make

TOKENS = torch.randint(3, VOCABULARY, (2, 10), generator=torch.Generator().manual_seed(1))


class ByHand:
    """A Llama in ``dtype`` but for ``parts``; ``weights`` are the cast ones by name, to be differentiated."""

    def __init__(self, model: nn.Module, dtype: torch.dtype, parts: tuple[Part, ...]) -> None:
        self.dtype, self.parts = dtype, parts
        self.stream = torch.float32 if "residual" in parts else dtype
        self.weights = {name: self._cast(name, value) for name, value in model.named_parameters()}
        if "lm_head.weight" not in self.weights:  # tied
            self.weights["lm_head.weight"] = self._cast("lm_head.weight", self._first(model, "embed_tokens"))

    @staticmethod
    def _first(model: nn.Module, name: str) -> Tensor:
        return next(value for key, value in model.named_parameters() if name in key)

    def _cast(self, name: str, value: Tensor) -> Tensor:
        kept = ("norm" in name and "norms" in self.parts) or ("lm_head" in name and "lm_head" in self.parts)
        return value.detach().to(torch.float32 if kept else self.dtype).requires_grad_()

    def logits(self, token_ids: Tensor) -> Tensor:
        hidden = embedding(token_ids, self.weights["model.embed_tokens.weight"])
        for layer in range(LAYERS):
            at = f"model.layers.{layer}."
            hidden = hidden.to(self.stream)
            hidden = hidden + self._attention(self._norm(hidden, f"{at}input_layernorm"), f"{at}self_attn.")
            inner = self._norm(hidden, f"{at}post_attention_layernorm").to(self.dtype)
            gate, up = (linear(inner, self.weights[f"{at}mlp.{name}_proj.weight"]) for name in ("gate", "up"))
            hidden = hidden + linear(silu(gate) * up, self.weights[f"{at}mlp.down_proj.weight"])
        head = self.weights["lm_head.weight"]
        return linear(self._norm(hidden, "model.norm").to(head.dtype), head)

    def _norm(self, hidden: Tensor, name: str) -> Tensor:
        """In the wider of stream and weight; the result in the stream's dtype."""
        weight = self.weights[f"{name}.weight"]
        wide = torch.promote_types(hidden.dtype, weight.dtype)
        exact = hidden.float() * torch.rsqrt(hidden.float().square().mean(-1, keepdim=True) + 1e-6)
        return (weight.to(wide) * exact.to(wide)).to(hidden.dtype)

    def _attention(self, hidden: Tensor, at: str) -> Tensor:
        samples, length, _ = hidden.shape
        inner = hidden.to(self.dtype)
        q, k, v = (linear(inner, self.weights[f"{at}{name}_proj.weight"]).view(samples, length, -1, HEAD).transpose(1, 2) for name in "qkv")
        angles = torch.arange(length)[:, None] * 10_000.0 ** (-torch.arange(0, HEAD, 2).float() / HEAD)
        if "softmax" in self.parts:
            q, k, v = (each.float() for each in (q, k, v))
        cos, sin = (torch.cat([f(angles)] * 2, -1).to(q.dtype) for f in (torch.cos, torch.sin))
        q, k = (x * cos + torch.cat([-x[..., HEAD // 2 :], x[..., : HEAD // 2]], -1) * sin for x in (q, k))
        k, v = (x.repeat_interleave(HEADS // KEY_HEADS, 1) for x in (k, v))
        scores = q @ k.transpose(2, 3) * HEAD**-0.5
        scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), torch.finfo(scores.dtype).min)
        found = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v
        return linear(found.transpose(1, 2).reshape(samples, length, -1).to(self.dtype), self.weights[f"{at}o_proj.weight"])


def llama(**settings: Any) -> nn.Module:
    return build(ARCHITECTURES["llama"], "eager", torch.float32, **settings)


def off(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact.double()).norm() / exact.double().norm())


@pytest.mark.parametrize("tied", few([False, True], {1}))
@pytest.mark.parametrize("parts", [(), *((part,) for part in PARTS), ("residual", "norms"), ("residual", "lm_head", "norms"), PARTS])
def test_parts_in_fp32_are_where_they_should_be(parts: tuple[Part, ...], tied: bool) -> None:
    model = llama(tie_word_embeddings=tied)
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        expected = ByHand(model, dtype, parts)
        logits = expected.logits(TOKENS[:, :-1])
        made = make(model, TOKENS, Settings.model_validate({"dtype": name, "fp32": parts}), "eager")
        own = forward(made)[-1].tensor
        assert own.dtype == logits.dtype and torch.equal(own, logits)
        found = {each.name: each.tensor for each in backward(made) if each.kind == "parameter_grad"}
        torch.autograd.backward(cross_entropy(logits.float().flatten(0, 1), TOKENS[:, 1:].flatten()))
        exact = {name: value.grad.float() for name, value in expected.weights.items() if value.grad is not None}
        if tied:
            exact["model.embed_tokens.weight"] += exact.pop("lm_head.weight")
        assert found.keys() == exact.keys()
        for key, gradient in exact.items():
            assert off(found[key], gradient) < 2 * torch.finfo(dtype).eps, key


def test_autocast_is_torch_autocast() -> None:
    model = llama().requires_grad_(True)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(TOKENS[:, :-1]).logits
    torch.autograd.backward(cross_entropy(logits.float().flatten(0, 1), TOKENS[:, 1:].flatten()))
    exact = {name: value.grad for name, value in model.named_parameters()}
    model.requires_grad_(False)
    made = make(model, TOKENS, PRESETS["bf16_autocast"], "eager")
    assert torch.equal(forward(made)[-1].tensor, logits)
    for each in backward(made):
        if each.kind == "parameter_grad":
            gradient = exact[each.name]
            assert gradient is not None and off(each.tensor, gradient) < 1e-5


def test_the_router_in_fp32_chooses_as_the_reference_does() -> None:
    """With the norms and the residual stream in fp32 too, what comes to the first router is all but the reference's."""
    model = build(ARCHITECTURES["mixtral"], "eager", torch.float32)
    errors = {}
    for parts in (("residual", "norms"), ("residual", "norms", "router")):
        for dtype in ("fp32", "bf16"):
            settings = {"dtype": dtype, "fp32": parts if dtype == "bf16" else ()}
            made = make(model, TOKENS, Settings.model_validate(settings), "eager", inside=True)
            errors[parts, dtype] = next(each.tensor for each in forward(made) if each.name == "mlp.gate" and each.layer == 0)
    exact = errors[("residual", "norms"), "fp32"]
    narrow, wide = (errors[parts, "bf16"] for parts in (("residual", "norms"), ("residual", "norms", "router")))
    assert narrow.dtype == torch.bfloat16 and wide.dtype == torch.float32
    assert off(wide, exact) < off(narrow, exact)


def test_convolutions_are_not_quantized() -> None:
    """Hybrid models have some; their weights are no rows of a product."""
    model = build(ARCHITECTURES["lfm2"], "sdpa", torch.float32)
    with make(model, TOKENS, PRESETS["bf16_int8"], "sdpa").stages.module(0) as copy:
        for name, same in (("conv.conv.weight", True), ("conv.in_proj.weight", False)):
            assert torch.equal(copy.get_parameter(name), model.get_parameter(f"model.layers.0.{name}").bfloat16()) == same


@pytest.mark.parametrize("stretched", [1.0, 2.0**9, 2.0**-12])
def test_the_loss_scale_is_the_largest_that_keeps_gradients_finite(stretched: float) -> None:
    """Also where gradients inside of a layer are much larger than those at its ends: one matrix is stretched, the next one shrunk."""
    model = llama()
    layers: Any = model.model.layers  # type: ignore[union-attr]
    layers[1].mlp.up_proj.weight.data *= stretched
    layers[1].mlp.down_proj.weight.data /= stretched
    found = compared(model, TOKENS, "eager", {"fp16": PRESETS["fp16"]})["fp16"]
    cast = llama().half().requires_grad_(True)
    cast.load_state_dict({name: value.half() for name, value in model.state_dict().items()})
    finite = []
    for exponent in range(-10, 41):
        cast.zero_grad()
        logits = cast(TOKENS[:, :-1]).logits
        torch.autograd.backward(cross_entropy(logits.float().flatten(0, 1), TOKENS[:, 1:].flatten()) * 2.0**exponent)
        if all(value.grad is not None and bool(value.grad.isfinite().all()) for value in cast.parameters()):
            finite.append(exponent)
    assert finite == list(range(-10, finite[-1] + 1))
    assert found.loss_scale == 2.0 ** finite[-1]
    assert all(row.nonfinite == 0 for row in found.tensors)
    assert found.summary.parameters_bw is not None and found.summary.parameters_bw < 0.05
    row = found.headroom[2]
    assert row.backward is not None and math.log2(found.loss_scale) <= row.backward + 1e-9


def test_the_model_is_as_it_was_also_when_a_run_is_left() -> None:
    model = llama()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    parameters, implementation = dict(model.named_parameters()), model.config._attn_implementation  # type: ignore[union-attr]
    left = lockstep(model, TOKENS, "eager", {"x": PRESETS["bf16_fp32_all_parts"]}).run()
    for _ in range(8):
        next(left)
        assert all(module.__dict__.get("forward") is None and not module._forward_hooks for module in model.modules())
        assert all(value is parameters[name] for name, value in model.named_parameters())
    left.close()
    assert model.config._attn_implementation == implementation  # type: ignore[union-attr]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
