"""W + s B A, read as a stream, equals peft's merge_and_unload in fp32, to a rounding of B A; with DoRA, to a few ulp of its norms."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    Phi3Config,
    Phi3ForCausalLM,
)

from analyzers.checkpoints import open_checkpoint
from analyzers.core.errors import UnsupportedWeights
from tests.checkpoints.adapters import LOCAL, assert_same, llama, merged_by_peft, merged_here, write

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),  # used by peft
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`"),  # peft's own warnings of what is tested
    pytest.mark.filterwarnings("ignore:Model with `tie_word_embeddings=True`"),
    pytest.mark.filterwarnings("ignore:Adapter 'default'. 4 LoRA tensor"),
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers` to `True`"),
    pytest.mark.filterwarnings("ignore:Could not find a config file in"),
    pytest.mark.filterwarnings("ignore:The following alpha_pattern keys did not match"),
]


def gpt2() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=32, bos_token_id=0, eos_token_id=0))


def phi3() -> Phi3ForCausalLM:
    sizes = {"hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    return Phi3ForCausalLM(Phi3Config(vocab_size=64, pad_token_id=0, eos_token_id=0, **sizes))  # type: ignore[arg-type]


_CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "lora": (llama, {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"}),
    # Products in several tiles, of which the last is shorter.
    "large-rank": (lambda: llama(hidden_size=72, intermediate_size=200), {"r": 300, "target_modules": "all-linear"}),
    "patterns": (
        llama,
        {"r": 8, "use_rslora": True, "target_modules": ["q_proj", "down_proj"], "rank_pattern": {"layers.1.self_attn.q_proj": 4},
         "alpha_pattern": {"layers.1.self_attn.q_pro": 99, r".*\.0\.mlp\.down_proj": 5}},  # the first is the beginning of a name
    ),
    "embeddings": (llama, {"r": 8, "target_modules": ["embed_tokens", "q_proj", "lm_head"]}),
    "saved": (llama, {"r": 8, "target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"]}),
    "bias": (lambda: llama(attention_bias=True), {"r": 8, "bias": "all", "target_modules": ["q_proj"]}),
    "conv1d": (gpt2, {"r": 8, "target_modules": ["c_attn", "c_proj", "c_fc", "wte"], "fan_in_fan_out": True}),
    "fused": (phi3, {"r": 4, "target_modules": "all-linear"}),
}  # fmt: skip


@pytest.mark.parametrize("name", _CASES)
def test_same_values(name: str, tmp_path: Path) -> None:
    make, settings = _CASES[name]
    write(make(), LoraConfig(**settings), tmp_path)
    assert_same(merged_here(tmp_path), merged_by_peft(tmp_path))


def test_dora(tmp_path: Path) -> None:
    write(llama(), LoraConfig(r=4, use_dora=True, target_modules=["q_proj", "up_proj"]), tmp_path)
    ours, theirs = merged_here(tmp_path), merged_by_peft(tmp_path)
    # The norm of n values in fp32 is off by at most n / 2 roundings, of 2^-24 each, and a sum by one of the largest values.
    for key, tensor in theirs.items():
        expected, length = tensor.float().numpy(), max(tensor.shape)
        assert np.allclose(ours[key], expected, rtol=(length / 2 + 3) * 2**-24, atol=2**-24 * np.abs(expected).max()), key


@pytest.mark.parametrize("name", ["embedding", "transposed"])
def test_dora_of_columns_is_refused(name: str, tmp_path: Path) -> None:
    make, targets = (llama, ["embed_tokens"]) if name == "embedding" else (gpt2, ["c_attn"])
    write(make(), LoraConfig(r=4, use_dora=True, fan_in_fan_out=name != "embedding", target_modules=targets), tmp_path)
    with pytest.raises(UnsupportedWeights, match="DoRA of an embedding, a convolution or transposed weights"):
        merged_here(tmp_path)


def test_several_adapters_are_added_in_order(tmp_path: Path) -> None:
    write(llama(), LoraConfig(r=8, target_modules=["q_proj", "down_proj"]), tmp_path)
    write(None, LoraConfig(r=4, lora_alpha=6, target_modules=["v_proj", "q_proj"]), tmp_path, base=False, seed=2)
    theirs = merged_by_peft(tmp_path, ("adapter", "adapter-2"), (0.75, -0.5))
    assert_same(merged_here(tmp_path, "{0}/base+0.75*{0}/adapter+-0.5*{0}/adapter-2"), theirs)


def test_embeddings_that_the_adapter_resizes_and_changes(tmp_path: Path) -> None:
    """peft stores the resized weights next to the matrices that change them."""
    base: Any = llama()
    base.to(torch.bfloat16).save_pretrained(tmp_path / "base")
    resized = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    resized.resize_token_embeddings(100)
    resized.save_pretrained(tmp_path / "resized")
    model = get_peft_model(resized, LoraConfig(r=4, target_modules=["q_proj", "embed_tokens", "lm_head"]))
    with torch.no_grad():
        for parameter in (each for each in model.parameters() if each.requires_grad):
            parameter.copy_(torch.randn_like(parameter) / 20)
    model.save_pretrained(str(tmp_path / "adapter"))
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "resized", dtype=torch.float32)
    merged: Any = PeftModel.from_pretrained(whole, tmp_path / "adapter")
    assert_same(merged_here(tmp_path), merged.merge_and_unload().state_dict())


@pytest.mark.parametrize(("rank", "dora"), [(8, False), (8, True), (400, False)])
def test_parts(rank: int, dora: bool, tmp_path: Path) -> None:
    """Any part that is read alone has the bits that it has in the whole."""
    write(llama(), LoraConfig(r=rank, use_dora=dora, target_modules=["q_proj", "down_proj", *(() if dora else ["embed_tokens"])]), tmp_path)
    with open_checkpoint(f"{tmp_path}/base+{tmp_path}/adapter", LOCAL) as checkpoint:
        file = checkpoint.files[-1]
        whole = bytearray(file.size)
        file.read_into(0, memoryview(whole))
        random = np.random.default_rng(0)
        for start, length in zip(random.integers(0, file.size, 200).tolist(), random.integers(1, 3000, 200).tolist(), strict=True):
            part = bytearray(min(length, file.size - start))
            file.read_into(start, memoryview(part))
            assert part == whole[start : start + len(part)], (start, length)
