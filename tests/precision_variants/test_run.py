"""Runs of every family, bit for bit against autograd through the same model as a whole, in fp32 and cast to bf16."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from analyzers.language_models.ffn import decoder_layers
from analyzers.precision_variants.variants import PRESETS, Settings
from tests.language_models.architectures import ARCHITECTURES, VOCABULARY, build, every_architecture
from tests.precision_variants.runs import backward, forward, make

TOKENS = torch.randint(3, VOCABULARY, (2, 10), generator=torch.Generator().manual_seed(1))


# With sdpa attention, but for the families that have none.
EAGER = ("gemma2", "vaultgemma", "gpt_oss", "gptj", "gpt_neo", "codegen", "bloom", "mpt")
# Fused projections, a tied head, experts, state spaces and linear attention, parameters and buffers in fp32, positions without rotary
# embeddings, and a multimodal model.
SOME = (
    "llama", "gemma2", "phi3", "gpt2", "gpt_oss", "minimax_m2", "deepseek_v3", "falcon_h1", "olmo_hybrid",
    "gemma3, text of a model that also sees",
)  # fmt: skip
EVERY = every_architecture(SOME)
ATTENTION = {name: "eager" if name in EAGER else "sdpa" for name in ARCHITECTURES}


def run(model: nn.Module, settings: Settings, attention: str) -> dict[tuple[str, str], Tensor]:
    """All tensors of a run, by kind and name."""
    made = make(model, TOKENS, settings, attention)
    return {(each.kind, each.name): each.tensor for each in (*forward(made), *backward(made))}


def whole(model: nn.Module) -> dict[tuple[str, str], Tensor]:
    """The same by hooks and autograd, from a model that transformers loaded in its dtype."""
    model.requires_grad_(True)
    decoder: Any = cast(Any, model).get_decoder()
    layers = next(getattr(decoder, name) for name in ("layers", "h", "blocks") if hasattr(decoder, name))
    kept: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], result: Any) -> None:
            if name == "layers.0":
                kept["embeddings"] = given[0] if given else named["hidden_states"]
                kept["embeddings"].retain_grad()
            kept[name] = result[0] if isinstance(result, tuple) else result
            kept[name].retain_grad()

        return hook

    for number, layer in enumerate(layers):
        layer.register_forward_hook(keep(f"layers.{number}"), with_kwargs=True)
    logits = cast(Any, model)(TOKENS[:, :-1], use_cache=False).logits
    logits.retain_grad()
    torch.autograd.backward(cross_entropy(logits.float().flatten(0, 1), TOKENS[:, 1:].flatten()))
    found = {("hidden", name): tensor.detach() for name, tensor in kept.items()}
    found |= {("hidden_grad", name): tensor.grad for name, tensor in kept.items() if tensor.grad is not None}
    found |= {("logits", "logits"): logits.detach(), ("logits_grad", "logits"): logits.grad}
    return found | {("parameter_grad", name): value.grad for name, value in model.named_parameters() if value.grad is not None}


def loaded(model: Any, folder: Path, dtype: torch.dtype) -> nn.Module:
    """The model saved, and loaded in ``dtype``."""
    model.save_pretrained(folder)
    options: Any = {"attn_implementation": model.config._attn_implementation, "experts_implementation": "eager"}
    return cast(nn.Module, type(model).from_pretrained(folder, dtype=dtype, **options))


def zero_padding(model: nn.Module) -> None:
    """Zero the row of the padding token, as transformers does when it loads some families."""
    embeddings = cast(Any, model).get_input_embeddings()
    if embeddings.padding_idx is not None:
        with torch.no_grad():
            embeddings.weight[embeddings.padding_idx] = 0


def off(found: Tensor, exact: Tensor) -> float:
    """The median token's relative error: a single one may be routed to another expert."""
    return float(((found.double() - exact.double()).norm(dim=-1) / exact.double().norm(dim=-1)).median())


@pytest.mark.parametrize("name", EVERY)
def test_every_family_gives_the_same_bits_as_the_whole_model(name: str, tmp_path: Path) -> None:
    """In fp32 and bf16, as loaded in that dtype.

    And with every part in fp32 it is about as near or nearer, the stream and the logits being fp32 throughout.
    """
    model = build(ARCHITECTURES[name], ATTENTION[name], torch.float32)
    zero_padding(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = {}
    for preset, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        expected = whole(loaded(model, tmp_path, dtype))
        found[preset] = run(model, PRESETS[preset], ATTENTION[name])
        assert expected.keys() <= found[preset].keys()
        for key, exact in expected.items():
            assert found[preset][key].dtype == exact.dtype
            assert torch.equal(found[preset][key], exact), key
    wide = run(model, PRESETS["bf16_fp32_all_parts"], ATTENTION[name])
    assert wide["hidden", "embeddings"].dtype == torch.bfloat16
    assert wide["hidden", "layers.0"].dtype == wide["hidden_grad", "layers.0"].dtype == wide["logits", "logits"].dtype == torch.float32
    exact, narrow = found["fp32"]["logits", "logits"], found["bf16"]["logits", "logits"]
    assert off(wide["logits", "logits"], exact) < 1.2 * off(narrow, exact)  # most of it is from the maps' weights, which both round
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any("forward" in module.__dict__ or module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("name", ["llama", "falcon"])
def test_largest_values_are_those_of_what_enters_and_leaves_modules(name: str) -> None:
    """Also in falcon, which adds the output of attention to that of its MLP in place; in llama one is a product that enters a map."""
    model = build(ARCHITECTURES[name], ATTENTION[name], torch.float32, **({"parallel_attn": True} if name == "falcon" else {}))
    made = make(model, TOKENS, Settings(), ATTENTION[name])
    forward(made)
    largest: dict[int, float] = {}
    entered: dict[int, torch.Tensor] = {}  # a layer's input is the output of the one before
    for layer, whole_layer in enumerate(decoder_layers(model)):
        for inner, module in whole_layer.named_modules():

            def enter(module: nn.Module, given: Any, layer: int = layer, whole: bool = not inner) -> None:
                if whole:
                    entered[layer] = given[0]
                for tensor in given:
                    if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.data_ptr() != entered[layer].data_ptr():
                        largest[layer] = max(largest.get(layer, 0.0), float(tensor.abs().max()))

            def leave(module: nn.Module, given: Any, output: Any, layer: int = layer) -> None:
                tensor = output[0] if isinstance(output, tuple) else output
                largest[layer] = max(largest.get(layer, 0.0), float(tensor.abs().max()))

            module.register_forward_pre_hook(enter)
            module.register_forward_hook(leave)
    with torch.no_grad():
        cast(Any, model)(TOKENS[:, :-1], use_cache=False)
    assert {layer: spot.size for layer in largest if (spot := made.forward_peaks.largest(layer))} == largest
